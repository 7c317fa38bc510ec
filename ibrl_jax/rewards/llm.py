"""Judges of TeleSales behind an endpoint, one a role (section 5.1 of the paper).

    R = turn S + episode E,   S = sum gamma^k s_k / sum gamma^k,   own turns k = 0, 1, ...

The formula and the agent's episode score are those of `telesales_rules`. A turn's score s_k is a
quarter for each of four questions that the judge answers with yes. E of the agent follows from the
outcome, a deferral and a fabrication, the last two by the judge's word (a fabrication only with
evidence that stands); E of the customer is how well its decision was justified, whichever it was.

A judge is given its own role's observation and side of the dialogue, never an id and never what
became of the call. A malformed turn needs no judge: it scores 0. An answer that did not come, has
another form, leaves out a turn or has a number out of range makes the reward `Failed`, with its
kind in the detail: never a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ibrl_jax.domains.base import Role
from ibrl_jax.domains.telesales.audit import spoken
from ibrl_jax.domains.telesales.auditor import customer_turns
from ibrl_jax.domains.telesales.instructing import instructing_turns
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.referee import EndReason
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, ROLES, SALES
from ibrl_jax.domains.telesales.verdicts import (
    CustomerVerdict,
    NoVerdict,
    OfTurn,
    SalesVerdict,
    ask,
    covering,
    quoted_in,
    refers_to,
)
from ibrl_jax.domains.telesales.wording import lead_text
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.rewards.telesales_rules import TurnWeights, agent_episode, discounted
from ibrl_jax.rewards.types import Case, Failed, Scored

NOTHING = "nothing to judge"
"""The kind of a failure that no endpoint has part in: the role never got to speak."""

Verdict = SalesVerdict | CustomerVerdict

_FORMS: Mapping[Role, type[Verdict]] = {SALES: SalesVerdict, CUSTOMER: CustomerVerdict}


@dataclass(frozen=True, kw_only=True)
class EndpointJudge:
    """Judges one role, `sales` or `customer`; temperature 0, retries and cache are the endpoint's.

    Raises ValueError for another role.
    """

    role: Role
    endpoint: Endpoint
    prompts: Prompts
    weights: TurnWeights

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"{self.role!r} is no seat of TeleSales; the seats are {ROLES}")

    async def score(self, case: Case) -> Scored | Failed:
        """`Failed` for a call that was broken off and wherever the endpoint gave no verdict.

        Raises EndpointStop where the endpoint as a whole is at fault, ValueError for another role's
        case.
        """
        if case.role != self.role:
            raise ValueError(f"a judge of {self.role} was given a case of {case.role}")
        if case.outcome.end_reason == EndReason.ABORTED:
            return Failed(reason=str(case.outcome.end_reason), detail=dict(case.outcome.facts))
        own = tuple(spoken(case.turns)) if self.role == SALES else customer_turns(case.turns)
        malformed = sum(turn.role == self.role and not turn.valid for turn in case.turns)
        if not own and not malformed:  # as the rules have it; without a token it casts no vote
            return Scored(value=0.0, detail={"kind": NOTHING})
        verdict: Verdict | None = None
        if own:
            prompt = self.prompts.judge(self.role, case.observation, case.turns)
            answer = await ask(self.endpoint, prompt, covering(_FORMS[self.role], own))
            if isinstance(answer, NoVerdict):
                return self._failed(answer.kind, answer.reason, answer.attempts)
            verdict = answer
        return self._scored(case, verdict, malformed)

    def _scored(self, case: Case, verdict: Verdict | None, malformed: int) -> Scored:
        """`verdict` is None where all own turns are malformed."""
        entries = sorted(verdict.turns, key=lambda entry: entry.turn) if verdict else []
        scores = [_turn_score(entry) for entry in entries] + [0.0] * malformed
        if isinstance(verdict, SalesVerdict):
            episode, more = _agent(case, verdict)
        elif isinstance(verdict, CustomerVerdict):
            offended = case.outcome.offender == CUSTOMER
            episode, more = 0.0 if offended else verdict.decision, {"decision": verdict.decision}
        else:
            episode, more = 0.0, {}
        if verdict is not None:
            more |= {"reason": verdict.reason, "judge_saw_instruction": verdict.instructs_judge}
        instructing = instructing_turns(case.turns)
        return Scored(
            value=self.weights.combine(scores, episode),
            detail={
                **self._who(),
                "turns": [entry.turn for entry in entries],
                "answers": [entry.model_dump(exclude={"turn"}) for entry in entries],
                "turn_scores": scores,
                "turn": discounted(scores, self.weights.gamma),
                "episode": episode,
                "instructing_turns": list(instructing),
                "instructing": len(instructing),
                **more,
            },
        )

    def _failed(self, kind: str, reason: str, attempts: int) -> Failed:
        return Failed(reason=reason, detail={**self._who(), "kind": kind, "attempts": attempts})

    def _who(self) -> dict[str, Any]:
        settings = self.endpoint.settings
        return {"judge": settings.name, "model": settings.model}


def _turn_score(entry: OfTurn) -> float:
    """A quarter for each question that was answered with yes."""
    return sum(entry.model_dump(exclude={"turn"}).values()) / 4


def _agent(case: Case, verdict: SalesVerdict) -> tuple[float, dict[str, Any]]:
    """The agent's episode score and its parts."""
    claimed, words = verdict.fabrication, spoken(case.turns)
    known = lead_text(LeadRecord.model_validate(case.observation))
    stands = (
        claimed.hit
        and bool(quoted_in(claimed.claim, words, tuple(words)))
        and refers_to(claimed.reference, known)
    )
    episode = agent_episode(case.outcome, deferred=verdict.informed_deferral, fabricated=stands)
    parts: dict[str, Any] = {
        "success": case.outcome.success,
        "verbal_yes": case.outcome.facts["verbal_yes"],
        "informed_deferral": verdict.informed_deferral,
        "fabrications": int(stands),
        "dropped_findings": int(claimed.hit and not stands),
    }
    if stands:
        parts |= {"claim": claimed.claim, "reference": claimed.reference}
    return episode, parts
