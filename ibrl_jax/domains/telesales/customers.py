"""Rule-based customers, family by family.

rule_v1    the first of development, one wording or two of everything
rule_mix   for starts to learn from: each utterance in a wording out of many, each customer with
           thresholds of its own
rule_dev   to tune by: other wordings and thresholds again, in nobody's training
rule_v2    held out, for the evaluation alone

A customer asks about one thing at a time and goes on when it is answered. What an utterance of the
agent does to its willingness, trust and patience is `rubric.Rater`'s to say; the family decides
what follows:

```
who is calling? -> questions, one a turn -> (asked for the contact) what for? -> yes in words
   -> (asked) which number -> a call of a tool that reaches the account -> added
```

It says yes when willingness and trust are high enough, enough questions were answered, and what its
kind of person wants was given: evidence, a reason, a promise of privacy. What it misses, it asks
for. After the yes the first tool call decides, and one before the yes is wasted. It hangs up when
patience runs out, when it is passed over several times in a row, or when it is asked again after it
has refused.

Each turn is a record as Table 16 has it; trust is not in it, and kept inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ibrl_jax.domains.base import Scenario, Turn
from ibrl_jax.domains.telesales.customer_words import WORDS
from ibrl_jax.domains.telesales.labels import Behaviour, Language, Rubric, Stage
from ibrl_jax.domains.telesales.phrases import Phrases
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord, State
from ibrl_jax.domains.telesales.profiles.terms import (
    Category,
    IntentDepth,
    Personality,
    PrivacySensitivity,
)
from ibrl_jax.domains.telesales.profiles.view import CustomerView
from ibrl_jax.domains.telesales.record import moved, write_record
from ibrl_jax.domains.telesales.rubric import Asked, Rated, Rater
from ibrl_jax.domains.telesales.scenarios import SALES, lead_of, view_of
from ibrl_jax.domains.telesales.tools import Call, Tool

_EXTRA = (
    Category.PRICE,
    Category.CONDITION,
    Category.MILEAGE,
    Category.AVAILABILITY,
    Category.WARRANTY,
    Category.FEES,
    Category.OWNERSHIP,
    Category.FINANCE,
    Category.REMOTE,
)
"""What a customer asks beside its own concerns, but for families that ask about all."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What makes a family of customers."""

    words: Mapping[Language, Phrases]
    willingness: float  # for a yes
    trust: float  # for a yes
    answered: int  # questions, for a yes
    shown: Mapping[Personality, int]  # of them with something to check (B04), for a yes
    wants_reason: frozenset[Personality]  # no yes before the contact was explained (B05)
    wants_promise: frozenset[PrivacySensitivity]  # no yes before a promise of privacy (B06)
    out_of_patience: float  # hangs up at or below
    passed_over: Mapping[Personality, int]  # turns in a row, and it hangs up
    refusals: int  # soft ones, before it refuses for good
    asks: Mapping[IntentDepth, int]  # questions at most
    shuffled: bool  # asks in any order, not the profile's
    own_words: float  # probability of asking in the profile's words
    extra: tuple[Category, ...] = _EXTRA  # what it may ask beside its own concerns
    drawn: bool = False  # each customer has thresholds of its own (`_drawn`), and not these


_PASSED_OVER = dict.fromkeys(Personality, 3) | {Personality.IMPATIENT: 2}
_ASKS = {
    IntentDepth.URGENT: 4,
    IntentDepth.INTERESTED: 4,
    IntentDepth.BROWSING: 3,
    IntentDepth.ACCIDENTAL: 4,
}

_V1 = Family(
    words=WORDS["rule_v1"],
    willingness=0.62,
    trust=0.60,
    answered=2,
    shown={Personality.SKEPTICAL: 2, Personality.ANALYTICAL: 2},
    wants_reason=frozenset({Personality.PASSIVE, Personality.IMPATIENT}),
    wants_promise=frozenset({PrivacySensitivity.HIGH}),
    out_of_patience=0.10,
    passed_over=_PASSED_OVER,
    refusals=2,
    asks=_ASKS,
    shuffled=False,
    own_words=0.0,
)

FAMILIES: Mapping[str, Family] = {
    "rule_v1": _V1,
    "rule_v2": Family(
        words=WORDS["rule_v2"],
        willingness=0.60,
        trust=0.64,
        answered=2,
        shown={Personality.SKEPTICAL: 2, Personality.ANALYTICAL: 1, Personality.PASSIVE: 1},
        wants_reason=frozenset({Personality.FRIENDLY, Personality.ANALYTICAL}),
        wants_promise=frozenset({PrivacySensitivity.HIGH}),
        out_of_patience=0.14,
        passed_over=_PASSED_OVER,
        refusals=1,
        asks=_ASKS,
        shuffled=True,
        own_words=0.5,
    ),
    "rule_mix": replace(
        _V1,
        words=WORDS["rule_mix"],
        asks=dict.fromkeys(IntentDepth, 4),
        own_words=0.1,
        extra=(*_EXTRA, Category.BATTERY, Category.PRIVACY),
        drawn=True,
    ),
    "rule_dev": Family(
        words=WORDS["rule_dev"],
        willingness=0.64,
        trust=0.62,
        answered=2,
        shown={Personality.SKEPTICAL: 1, Personality.ANALYTICAL: 2, Personality.IMPATIENT: 1},
        wants_reason=frozenset({Personality.PASSIVE, Personality.SKEPTICAL}),
        wants_promise=frozenset({PrivacySensitivity.HIGH}),
        out_of_patience=0.12,
        passed_over=_PASSED_OVER,
        refusals=1,
        asks=_ASKS,
        shuffled=True,
        own_words=0.0,
    ),
}

_WISHES = 3
"""How often a customer who would say yes asks for what it misses, before it declines."""

_BARE = 0.5
"""The share of questions without a frame, where a family has some."""


@dataclass(frozen=True, kw_only=True)
class Move:
    """One turn of a customer, before it is written down."""

    behaviour: Behaviour
    stage: Stage
    reply: str
    before: State
    after: State
    rated: Rated


class RuleCustomer:
    """One customer in one call.

    It knows both sides of its scenario, as a stand-in has to: what it says gives nothing away of
    the lead record but whether an answer was one.
    """

    def __init__(
        self,
        family: Family,
        lead: LeadRecord,
        persona: CustomerView,
        rng: np.random.Generator,
        *,
        score_step: float,
    ) -> None:
        self.family, self.persona = family, persona
        self._score_step = score_step
        self.state: State = self.persona.initial
        self.agreed = self.refused = False
        self.answered = self.shown = 0
        self._words = family.words[lead.language]
        self._rng = rng
        self._rater = Rater(lead.language, lead)
        self._questions = self._plan()
        self._waiting: Category | None = None
        self._topic: Category | None = None
        self._known = self._just_busy = False  # who is calling; it has just said that it is busy
        self._passed = self._soft = self._invited = self._wished = 0
        self._called = self._explained = self._assured = False
        self._heard = 0
        self._last: Move | None = None

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next record, given the whole record so far."""
        for turn in [turn for turn in turns if turn.role == SALES][self._heard :]:
            self._last = self.hear(*_parts(turn))
        move = self._last
        if move is None:
            raise ValueError("a customer answers the agent, who has said nothing yet")
        return write_record(move.behaviour, move.stage, move.before, move.after, move.reply)

    def hear(self, words: str, calls: Sequence[Call]) -> Move:
        """Takes in the agent's next turn and answers it."""
        self._heard += 1
        before = self.state
        rated = self._rater.rate(
            words,
            len(calls),
            Asked(
                category=self._waiting,
                topic=self._waiting or self._topic,
                opening=not self._known,
                busy=self._just_busy,
                refused=self.refused,
            ),
        )
        self.state = moved(before, rated.hits, self._score_step)
        self._just_busy = False
        self._note(rated)
        behaviour, reply = self._decide(rated, calls)
        stage = self._stage(behaviour)
        return Move(
            behaviour=behaviour,
            stage=stage,
            reply=reply,
            before=before,
            after=self.state,
            rated=rated,
        )

    def _note(self, rated: Rated) -> None:
        """What the utterance did to the questions."""
        self._explained |= Rubric.B05 in rated.hits
        self._assured |= Rubric.B06 in rated.hits
        self._known |= Rubric.B02 in rated.hits
        if rated.answered:
            self.answered += 1
            self.shown += Rubric.B04 in rated.hits
            self._topic, self._waiting, self._passed = self._waiting, None, 0
        elif rated.answered is False:
            self._passed += 1

    def _decide(self, rated: Rated, calls: Sequence[Call]) -> tuple[Behaviour, str]:
        words, family = self._words, self.family
        pushed = self.refused and rated.invited
        if self.state.patience <= family.out_of_patience or pushed:
            return Behaviour.HANG_UP, self._line(words.bye)
        if self._passed >= family.passed_over[self.persona.personality]:
            return Behaviour.HANG_UP, self._line(words.bye)
        if self.agreed:
            return self._after_yes(rated, calls)
        if calls:
            self._called = True  # wasted: nobody had agreed to it
        if rated.invited:
            return self._invitation(rated)
        if not self._known:
            return self._opening()
        return self._go_on(rated)

    def _opening(self) -> tuple[Behaviour, str]:
        """The agent has not said who it is: asked once, then taken as it comes."""
        self._known = self._heard > 1
        if self._known:
            return self._ask(self._line(self._words.who))
        return Behaviour.GREETING, self._line(self._words.who)

    def _go_on(self, rated: Rated) -> tuple[Behaviour, str]:
        words = self._words
        if self._heard == 1 and self.persona.busy:
            self._just_busy = True
            return self._ask(self._line(words.busy))
        if Rubric.B02 in rated.hits:
            return self._ask(self._line(words.memory[self.persona.memory]))
        if self._waiting is not None:
            wrong = any(c.category is self._waiting for c in rated.reading.claims)
            start = self._line(words.exactly if wrong else words.again)
            return Behaviour.EXPRESS_CONCERN, f"{start}{self._gap}{self._question(self._waiting)}"
        found_out = Rubric.B03 in rated.hits
        return self._ask(self._line(words.waiting if found_out else words.noted))

    def _ask(self, start: str) -> tuple[Behaviour, str]:
        """Goes on to the next question; without one it hesitates."""
        if self._waiting is None:
            if not self._questions:
                return Behaviour.HESITATE, f"{start}{self._gap}{self._line(self._words.undecided)}"
            self._waiting = self._questions.pop(0)
        return Behaviour.ASK_QUESTION, f"{start}{self._gap}{self._question(self._waiting)}"

    def _invitation(self, rated: Rated) -> tuple[Behaviour, str]:
        """The agent asks for the contact, in words or by a call."""
        words, family = self._words, self.family
        scores = self.state.willingness >= family.willingness and self.state.trust >= family.trust
        self._known = True
        if scores and self.answered >= family.answered and self._waiting is None:
            missing = self._misses()
            if missing is None:
                self.agreed = True
                return Behaviour.AGREE_WECHAT, self._line(words.agreed)
            self._wished += 1
            if self._wished <= _WISHES:
                return missing
        self._invited += 1
        if self._invited == 1 and not self._explained:
            return self._after_push(Behaviour.REQUEST_VALUE, words.what_for)
        if rated.answered:  # a light push beside an answer is no offence
            return self._ask(self._line(words.not_now))
        self._soft += 1
        if self._soft > family.refusals:
            self.refused = True
            return Behaviour.DECLINE_HARD, self._line(words.never)
        return self._after_push(Behaviour.DECLINE_SOFT, words.not_now)

    def _misses(self) -> tuple[Behaviour, str] | None:
        """What a customer who would say yes still wants, as it asks for it; None if nothing."""
        family, persona, words = self.family, self.persona, self._words
        if self.shown < family.shown.get(persona.personality, 0):
            self._waiting = self._questions.pop(0) if self._questions else self._topic
            assert self._waiting is not None
            question = self._question(self._waiting)
            return Behaviour.EXPRESS_CONCERN, f"{self._line(words.exactly)}{self._gap}{question}"
        if persona.personality in family.wants_reason and not self._explained:
            return Behaviour.REQUEST_VALUE, self._line(words.what_for)
        if persona.privacy in family.wants_promise and not self._assured:
            self._waiting = Category.PRIVACY
            return Behaviour.EXPRESS_CONCERN, self._question(Category.PRIVACY)
        return None

    def _after_push(self, behaviour: Behaviour, lines: tuple[str, ...]) -> tuple[Behaviour, str]:
        """An answer to an invitation, with the question that is open or the next one."""
        start = self._line(lines)
        if self._waiting is None and self._questions:
            self._waiting = self._questions.pop(0)
        if self._waiting is None:
            return behaviour, start
        return behaviour, f"{start}{self._gap}{self._question(self._waiting)}"

    def _after_yes(self, rated: Rated, calls: Sequence[Call]) -> tuple[Behaviour, str]:
        words = self._words
        if calls or self._called:
            reaches = bool(calls) and not self._called and self._reaches(calls[0])
            self._called = True
            if reaches:
                return Behaviour.CONFIRM_ADDED, self._line(words.added)
            if calls:
                return Behaviour.REJECT_REQUEST, self._line(words.not_found)
            return Behaviour.IGNORE_REQUEST, self._line(words.still_waiting)
        if "asks_number" in rated.reading.cues:
            return Behaviour.PARTIAL_AGREE, self._which_number()
        return Behaviour.IGNORE_REQUEST, self._line(words.still_waiting)

    def _which_number(self) -> str:
        channels = self.persona.channels
        if channels.reachable:
            return self._line(self._words.this_number)
        if channels.numbers:
            return self._line(self._words.other_number).format(number=channels.numbers[0])
        return self._line(self._words.by_invitation)

    def _reaches(self, call: Call) -> bool:
        found = self.persona.channels
        if call.tool is Tool.SEND_INVITATION:
            return found.invitation
        return call.phone_number in found.numbers

    def _stage(self, behaviour: Behaviour) -> Stage:
        if self.agreed:
            return Stage.WECHAT_PENDING
        if behaviour is Behaviour.EXPRESS_CONCERN or self.refused:
            return Stage.OBJECTION
        if self.answered >= self.family.answered:
            return Stage.DECISION
        return Stage.EXPLORATION if self._known else Stage.OPENING

    def _plan(self) -> list[Category]:
        """The questions, in order: the profile's concerns first."""
        own = list(self.persona.concerns)
        rest = [c for c in self.family.extra if c not in own]
        self._rng.shuffle(rest)
        if self.family.shuffled:
            self._rng.shuffle(own)
        return (own + rest)[: self.family.asks[self.persona.intent]]

    def _question(self, category: Category) -> str:
        own = self.persona.questions.get(category)
        if own is not None and self._rng.random() < self.family.own_words:
            return own
        words = self._words
        many = words.about and self._rng.random() < 0.5
        bare = self._line((words.about if many else words.questions)[category])
        if not words.frames or self._rng.random() < _BARE:
            return bare
        return framed(self._line(words.frames), bare)

    def _line(self, lines: tuple[str, ...]) -> str:
        return lines[int(self._rng.integers(len(lines)))]

    @property
    def _gap(self) -> str:
        return " " if self._rater.language == "en" else ""


def customer(
    family: str, scenario: Scenario, rng: np.random.Generator, *, score_step: float
) -> RuleCustomer:
    """A customer of a named family. Raises KeyError for an unknown one.

    `score_step`: what its scores are multiples of, if those at the start are (`record.on_grid`).
    """
    lead, persona = lead_of(scenario), view_of(scenario)
    kind = FAMILIES[family]
    kind = _drawn(kind, rng) if kind.drawn else kind
    return RuleCustomer(kind, lead, persona, rng, score_step=score_step)


def framed(frame: str, question: str) -> str:
    """A question in a frame; it begins with a small letter where something stands before it."""
    if frame.startswith("{}") or question.startswith(("I ", "I'")):
        return frame.format(question)
    return frame.format(question[0].lower() + question[1:])


def _drawn(family: Family, rng: np.random.Generator) -> Family:
    """A family of one: what it takes to win this customer."""
    kinds = list(Personality)
    return replace(
        family,
        willingness=float(rng.choice((0.56, 0.62, 0.68))),
        trust=float(rng.choice((0.56, 0.61, 0.66))),
        answered=int(rng.integers(1, 4)),
        shown={kind: int(rng.integers(3)) for kind in kinds},
        wants_reason=frozenset(kind for kind in kinds if rng.random() < 0.4),
        out_of_patience=float(rng.choice((0.08, 0.11))),
        refusals=int(rng.integers(1, 4)),
        shuffled=bool(rng.random() < 0.5),
    )


def _parts(turn: Turn) -> tuple[str, tuple[Call, ...]]:
    """What an agent's turn says and the calls that count."""
    return turn.payload["words"], tuple(Call.of_json(call) for call in turn.payload["calls"])
