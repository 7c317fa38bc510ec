"""Rule-based judges of both roles of TeleSales: a stand-in for judging by a language model.

    R = turn S + episode E,   S = sum gamma^k s_k / sum gamma^k,   own turns k = 0, 1, ...

Turn scores are in {0, .25, .5, .75, 1}, a quarter a criterion, and R is in [0, 1] (section 5.1 of
the paper has the weights; the criteria are ours).

The sales judge pays for the outcome. Turn: answered, grounded, not pushy, spoken. Episode: an add
that was confirmed 1, a yes in words .4, a deferral after answers .2, else 0; -.5 for a fabrication.

The customer's judge pays for realism and is indifferent to the outcome. Turn: fits the profile, a
plausible change of the scores, a legal behaviour, no change of sides. Episode: was what it
decided borne out by its own scores, and by what was said, whichever way it decided.

Each judge sees its own role's observation alone: the customer's has no lead record to compare with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibrl_jax.domains.base import Outcome, Turn
from ibrl_jax.domains.telesales.audit import fabrications, inventions, spoken
from ibrl_jax.domains.telesales.cues import cues, read
from ibrl_jax.domains.telesales.exchanges import Exchange, rate_agent
from ibrl_jax.domains.telesales.labels import (
    AFTER_VERBAL_YES,
    EVALUATION_CLIPS,
    RUBRIC_CHANGES,
    Behaviour,
    Language,
    Rubric,
)
from ibrl_jax.domains.telesales.metrics import STAND_IN
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord, TrainingAttributes
from ibrl_jax.domains.telesales.profiles.terms import IntentDepth
from ibrl_jax.domains.telesales.referee import SCRIPTED, EndReason
from ibrl_jax.domains.telesales.rubric import LENGTHS, Rated
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, SALES, attributes_of, initial_of
from ibrl_jax.rewards.types import Case, Failed, Scored

B = Rubric


@dataclass(frozen=True, kw_only=True)
class TurnWeights:
    """Section 5.1: lambda_turn, lambda_episode and gamma."""

    turn: float
    episode: float
    gamma: float

    def __post_init__(self) -> None:
        if min(self.turn, self.episode) < 0 or abs(self.turn + self.episode - 1) > 1e-9:
            raise ValueError(f"the weights {self.turn} and {self.episode} must add up to 1")
        if not 0 < self.gamma <= 1:
            raise ValueError(f"gamma is {self.gamma}; it must be in (0, 1]")

    def combine(self, scores: Sequence[float], episode: float) -> float:
        """The reward; a role without a turn has its episode alone to be paid for, and S = 0."""
        return self.turn * discounted(scores, self.gamma) + self.episode * episode


def discounted(scores: Sequence[float], gamma: float) -> float:
    """S of the module's docstring, in [0, 1] if the scores are; 0 without any."""
    weights = [gamma**k for k in range(len(scores))]
    return (
        sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights) if scores else 0.0
    )


CONFIRMED, VERBAL, DEFERRED, FABRICATED = 1.0, 0.4, 0.2, -0.5
"""The sales judge's episode scores."""


@dataclass(frozen=True, kw_only=True)
class SalesRuleJudge:
    """Outcome-oriented."""

    weights: TurnWeights

    async def score(self, case: Case) -> Scored | Failed:
        """`Failed` for a call that was broken off."""
        if case.outcome.end_reason == EndReason.ABORTED:
            return Failed(reason=str(case.outcome.end_reason), detail=dict(case.outcome.facts))
        lead = LeadRecord.model_validate(case.observation)
        exchanges = rate_agent(case.turns, lead.language, lead)
        findings = [*fabrications(lead, case.turns), *inventions(lead, case.turns)]
        wrong = {finding.turn for finding in findings}
        scores = [
            _agent_turn(k, exchange, grounded=n not in wrong)
            for k, (n, exchange) in enumerate(zip(spoken(case.turns), exchanges, strict=True))
        ]
        scores += [0.0 for turn in case.turns if turn.role == SALES and not turn.valid]
        fabricated = len(fabrications(lead, case.turns))
        paid = agent_episode(
            case.outcome, deferred=_deferred(case, exchanges), fabricated=fabricated > 0
        )
        return Scored(
            value=self.weights.combine(scores, paid),
            detail={
                "judge": STAND_IN,
                "turn_scores": scores,
                "episode": paid,
                "fabrications": fabricated,
            },
        )


def agent_episode(outcome: Outcome, *, deferred: bool, fabricated: bool) -> float:
    """The agent's episode score, in [0, 1].

    `deferred`: the customer put the contact off after answers; it counts where there was no yes.
    """
    if outcome.success:
        worth = CONFIRMED
    elif outcome.offender == SALES:
        worth = 0.0
    elif outcome.facts["verbal_yes"]:
        worth = VERBAL
    else:
        worth = DEFERRED if deferred else 0.0
    return min(max(worth + (FABRICATED if fabricated else 0.0), 0.0), 1.0)


def _deferred(case: Case, exchanges: Sequence[Exchange]) -> bool:
    refused = any("says_never" in cues(e.before, e.rated.reading.language) for e in exchanges)
    answered = sum(exchange.rated.answered is True for exchange in exchanges)
    open_end = case.outcome.end_reason in (EndReason.AGENT_END, EndReason.TURN_LIMIT)
    return open_end and answered >= 2 and not refused


@dataclass(frozen=True, kw_only=True)
class CustomerRuleJudge:
    """Realism-oriented, whatever the outcome."""

    weights: TurnWeights

    async def score(self, case: Case) -> Scored | Failed:
        """`Failed` for a call that was broken off, and for turns without the customer's record."""
        if case.outcome.end_reason == EndReason.ABORTED:
            return Failed(reason=str(case.outcome.end_reason), detail=dict(case.outcome.facts))
        language: Language = case.public["language"]
        exchanges = rate_agent(case.turns, language, None)
        own = [t for t in case.turns if t.role == CUSTOMER and SCRIPTED not in t.flags]
        valid = [turn for turn in own if turn.valid]
        if any(CUSTOMER not in turn.private for turn in valid):
            return Failed(reason="a customer's turn has no record to judge")
        scores = [
            _customer_turn(case, turn, exchanges[: k + 1], language) for k, turn in enumerate(valid)
        ]
        scores += [0.0] * (len(own) - len(valid))
        episode = 0.0 if case.outcome.offender == CUSTOMER else _justified(case, valid, exchanges)
        return Scored(
            value=self.weights.combine(scores, episode),
            detail={"judge": STAND_IN, "turn_scores": scores, "episode": episode},
        )


def _agent_turn(index: int, exchange: Exchange, *, grounded: bool) -> float:
    """Answered, grounded, not pushy, spoken."""
    rated = exchange.rated
    hits, words = set(rated.hits), rated.reading.words
    # who speaks first says who it is; where nothing was asked, a turn answers by being about it
    answered = B.B02 in hits if index == 0 else rated.answered is not False
    pushy = hits & {B.B08, B.B09, B.B10, B.B12}
    spoken = words and not rated.stale and not hits & {B.B07, B.B16, B.B18}
    return 0.25 * sum(map(bool, (answered, grounded, not pushy, spoken)))


_COLD = (Behaviour.DECLINE_SOFT, Behaviour.DECLINE_HARD, Behaviour.HANG_UP)
_OFFENCES = {B.B07, B.B08, B.B09, B.B10, B.B12, B.B16}
TOLERANCE = 0.08
"""How far a recorded change may be from what the rubric makes of the agent's turn."""

READY_FROM, NOT_BELOW, OUT_OF_PATIENCE = 0.5, 0.65, 0.4
"""A yes needs that much willingness; a no has less than that, or less patience than that."""

DRIFT = 0.1
"""How far recorded scores may have gone from what the agent's turns make of them, and count."""

FITTING = {
    IntentDepth.URGENT: 0.45,
    IntentDepth.INTERESTED: 0.45,
    IntentDepth.BROWSING: 0.5,
    IntentDepth.ACCIDENTAL: 0.55,
}
"""The willingness below which a yes does not fit the customer's intent."""


def _customer_turn(
    case: Case, turn: Turn, exchanges: Sequence[Exchange], language: Language
) -> float:
    """Fits the profile, a plausible change, a legal behaviour, no change of sides."""
    record, rated = turn.private[CUSTOMER], exchanges[-1].rated
    behaviour = Behaviour(record["behavior"])
    user = attributes_of(case.observation)
    training = isinstance(user, TrainingAttributes)
    intent = user.purchase_intent.intent_depth if training else user.intent_state.intent_depth
    willingness = _after(record, "willingness")
    reading = read(turn.text, language)
    fits = reading.length <= LENGTHS[language].long and (
        willingness >= FITTING[intent] if behaviour is Behaviour.AGREE_WECHAT else True
    )
    plausible = all(
        abs(_delta(record, name) - _expected(rated, name)) <= TOLERANCE
        for name in ("willingness", "patience")
    )
    invited = any(e.rated.invited for e in exchanges)
    called = any(e.turn.payload["calls"] for e in exchanges)
    legal = not (
        (behaviour is Behaviour.AGREE_WECHAT and not invited)
        or (behaviour is Behaviour.CONFIRM_ADDED and not called)
        or (behaviour in AFTER_VERBAL_YES and not invited)
        or ("asks_contact" in reading.cues and not invited)
    )
    seller = {"identity", "purpose"} <= reading.cues or "evidence" in reading.cues
    own_side = not seller and not reading.claims and "<" not in turn.text
    return 0.25 * sum((fits, plausible, legal, own_side))


def _justified(case: Case, own: Sequence[Turn], exchanges: Sequence[Exchange]) -> float:
    """Half for a decision that the own scores bear out, half for one that what was said does.

    Between `READY_FROM` and `NOT_BELOW` both a yes and a no are borne out by the scores, which
    count as recorded as far as they are within `DRIFT` of what the agent's turns make of them.
    """
    if not own:
        return 0.0
    records = [turn.private[CUSTOMER] for turn in own]
    behaviours = [Behaviour(record["behavior"]) for record in records]
    agreed = Behaviour.AGREE_WECHAT in behaviours
    end = behaviours.index(Behaviour.AGREE_WECHAT) if agreed else len(own) - 1
    heard = [exchange.rated for exchange in exchanges[: end + 1]]
    willingness, patience = (
        _believed(case, records[end], heard, name) for name in ("willingness", "patience")
    )
    found_out = sum(B.B03 in rated.hits for rated in heard)
    answers = sum(rated.answered is True for rated in heard) - max(found_out - 1, 0)
    if agreed:
        return 0.5 * ((willingness >= READY_FROM) + (answers >= 1 and heard[-1].invited))
    offences = sum(rated.answered is False or bool(_OFFENCES & set(rated.hits)) for rated in heard)
    pressed = sum(rated.invited for rated in heard) > 2
    little = sum(B.B04 in rated.hits for rated in heard) < 2  # told, and not shown
    if behaviours[-1] in _COLD:
        scores = willingness < NOT_BELOW or patience < OUT_OF_PATIENCE
        return 0.5 * (scores + (offences >= answers or pressed or little))
    return 0.5 * ((willingness < 0.75) + (offences < answers or willingness < NOT_BELOW))


def _believed(case: Case, record: dict, heard: Sequence[Rated], name: str) -> float:
    """A recorded score, held to within `DRIFT` of the one that follows from what was heard."""
    score = getattr(initial_of(case.observation), name)
    for rated in heard:
        score = min(max(score + _expected(rated, name), 0.0), 1.0)
    return min(max(_after(record, name), score - DRIFT), score + DRIFT)


def _after(record: dict, name: str) -> float:
    return float(record["state"][name])


def _delta(record: dict, name: str) -> float:
    """The recorded change; the simulator's form has it under its deltas."""
    if f"{name}_delta" in record:
        return float(record[f"{name}_delta"])
    return float(record["score_delta"][name])


def _expected(rated: Rated, name: str) -> float:
    """What the rubric adds to a score for a turn, clipped (Tables 9 and 11)."""
    total = sum(getattr(RUBRIC_CHANGES[code], name) for code in rated.hits)
    return getattr(EVALUATION_CLIPS, name)(total)
