"""What the customer writes in a turn: one JSON object, in one of two forms.

record (Table 16)     of a trained or rule-based customer: behaviour, stage, willingness and
                      patience before, what is added to them and after, reply
simulator (Table 9)   of the prompted customer of the evaluation: intent, dialogue action, rubric
                      hits, the three scores, reply

A record must be in order: `before` is where the last turn left the state, `before + delta = after`,
deltas lie in [-.20, .15], and what needs a verbal yes comes after one. Of the simulator's scores
the rubric hits alone are believed: deltas are summed and clipped here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ibrl_jax.domains.telesales.labels import (
    AFTER_VERBAL_YES,
    EVALUATION_CLIPS,
    RUBRIC_CHANGES,
    TRAINING_CLIP,
    Behaviour,
    DialogueAction,
    Intent,
    Rubric,
    Stage,
)
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.endpoints.answers import find_object, strip_leading_thoughts
from ibrl_jax.endpoints.errors import AttemptFailed

SCORES = ("willingness", "trust", "patience")
ROUNDING = 0.005 + 1e-6
"""Half a unit of the second decimal: how far numbers written with two decimals may be apart."""


class CustomerError(StrEnum):
    """Why a customer's turn is malformed."""

    TRUNCATED = "truncated"
    NOT_PRODUCED = "not_produced"
    NOT_JSON = "not_json"
    SCHEMA = "schema"
    UNKNOWN_LABEL = "unknown_label"
    OUT_OF_RANGE = "out_of_range"
    NOT_THE_STATE = "not_the_state"
    ARITHMETIC = "arithmetic"
    DELTA_RANGE = "delta_range"
    NO_VERBAL_YES = "no_verbal_yes"
    EMPTY = "empty"


class CustomerFlag(StrEnum):
    """Tolerated oddities of a customer's turn."""

    WRAPPED = "wrapped"
    """Something else than white space stood around the object."""
    RESCORED = "rescored"
    """The simulator's own arithmetic was not that of its rubric hits."""
    CONFIRMED_NOTHING = "confirmed_nothing"
    """It says that it has added a contact that it cannot have: no entry could be acted on."""


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


_Score = Annotated[float, Field(allow_inf_nan=False)]


def _by(labels: type[StrEnum]) -> BeforeValidator:
    """Reads a label by its value or its wording."""
    return BeforeValidator(lambda text: labels(text) if isinstance(text, str) else text)


class CustomerRecord(_Form):
    """Table 16, in the order in which the fields are written.

    A change stands before the sum, so that whoever writes a record settles one thing at a time.
    """

    behavior: Annotated[Behaviour, _by(Behaviour)]
    stage: Annotated[Stage, _by(Stage)]
    willingness_before: _Score
    willingness_delta: _Score
    willingness_after: _Score
    patience_before: _Score
    patience_delta: _Score
    patience_after: _Score
    reply: str


class Scores(_Form):
    """The three scores of the simulator, or what is added to them."""

    willingness: _Score
    trust: _Score
    patience: _Score


class SimulatorRecord(_Form):
    """Table 9. The thinking fields are for logs alone."""

    intent_action_thinking: str
    intent_action: Annotated[Intent, _by(Intent)]
    dialogue_action_thinking: str
    dialogue_action: Annotated[DialogueAction, _by(DialogueAction)]
    score_rules_hit: list[Annotated[Rubric, _by(Rubric)]]
    score_delta: Scores
    score_after: Scores
    user_reply_thinking: str
    user_reply: str


Form = Literal["record", "simulator"]

_AS_BEHAVIOUR: Mapping[DialogueAction, Behaviour] = {
    DialogueAction.GREETING_RESPONSE: Behaviour.GREETING,
    DialogueAction.PROACTIVE_QUESTION: Behaviour.ASK_QUESTION,
    DialogueAction.REQUESTING_MATERIALS: Behaviour.REQUEST_VALUE,
    DialogueAction.EXPRESSING_CONCERN: Behaviour.EXPRESS_CONCERN,
    DialogueAction.HESITANT_STALLING: Behaviour.HESITATE,
    DialogueAction.SOFTENING: Behaviour.PARTIAL_AGREE,
    DialogueAction.VERBAL_AGREEMENT: Behaviour.AGREE_WECHAT,
    DialogueAction.POLITE_REFUSAL: Behaviour.DECLINE_SOFT,
    DialogueAction.EXPLICIT_REFUSAL: Behaviour.DECLINE_HARD,
    DialogueAction.URGING: Behaviour.INTERRUPTION,
    DialogueAction.HANG_UP: Behaviour.HANG_UP,
    DialogueAction.CONFIRMING: Behaviour.CONFIRM_ADDED,
    DialogueAction.SHELVING: Behaviour.IGNORE_REQUEST,
    DialogueAction.REFUSING_TO_ADD: Behaviour.REJECT_REQUEST,
}
"""The simulator's 14 actions as the training customer's 14 behaviours, for tables of both."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A customer's turn that is in order. `private` is its JSON, `state` where it leaves it."""

    reply: str
    behaviour: Behaviour
    state: State
    private: Mapping[str, Any]
    flags: tuple[CustomerFlag, ...] = ()


def parse_record(text: str, before: State, *, verbal_yes: bool) -> Parsed | CustomerError:
    """The customer's turn in `text`, or why it is none.

    Args:
        before: where the last turn left the state.
        verbal_yes: whether the customer has agreed in words in an earlier turn.
    """
    bare = strip_leading_thoughts(text)
    try:
        value = find_object(bare)
        json.dumps(value, ensure_ascii=False).encode()
    except (AttemptFailed, UnicodeEncodeError):  # half of a surrogate pair is no text
        return CustomerError.NOT_JSON
    wrapped = () if bare.startswith("{") and bare.endswith("}") else (CustomerFlag.WRAPPED,)
    try:
        if "dialogue_action" in value:
            return _simulated(SimulatorRecord.model_validate(value), before, wrapped)
        return _recorded(CustomerRecord.model_validate(value), before, wrapped, verbal_yes)
    except ValidationError as error:
        kinds = {e["type"] for e in error.errors(include_url=False)}
        return CustomerError.UNKNOWN_LABEL if kinds <= {"value_error"} else CustomerError.SCHEMA


def write_record(
    behaviour: Behaviour, stage: Stage, before: State, after: State, reply: str
) -> str:
    """The record of a turn as a customer writes it, its numbers with two decimals.

    Raises ValueError where rounded numbers would break a rule of the record.
    """
    fields: dict[str, Any] = {"behavior": str(behaviour), "stage": str(stage)}
    for name in ("willingness", "patience"):
        low, high = round(getattr(before, name), 2), round(getattr(after, name), 2)
        delta = round(high - low, 2)
        if not _in_range(delta):
            raise ValueError(f"{name} cannot go from {low} to {high} in one turn")
        fields |= {f"{name}_before": low, f"{name}_delta": delta, f"{name}_after": high}
    return json.dumps(fields | {"reply": reply}, ensure_ascii=False)


def rescored(before: State, hits: Iterable[Rubric]) -> tuple[State, Scores]:
    """The state after rubric hits, and the clipped deltas (Tables 9 and 11)."""
    changes = [RUBRIC_CHANGES[code] for code in dict.fromkeys(hits)]
    delta = {
        name: getattr(EVALUATION_CLIPS, name)(sum(getattr(change, name) for change in changes))
        for name in SCORES
    }
    after = {n: round(min(max(getattr(before, n) + d, 0.0), 1.0), 6) for n, d in delta.items()}
    return State(**after), Scores(**delta)


def on_grid(state: State, step: float) -> State:
    """The scores as the nearest multiples of `step`, a divisor of 1."""
    return State(**{n: round(round(getattr(state, n) / step) * step, 2) for n in SCORES})


def moved(before: State, hits: Iterable[Rubric], step: float) -> State:
    """The state after rubric hits, every change rounded to a multiple of `step`.

    None is rounded beyond what a record may hold. Scores stay multiples where `before`'s are.
    """
    most, least = (_whole(bound / step) for bound in (TRAINING_CLIP.high, TRAINING_CLIP.low))
    _, delta = rescored(before, hits)
    after: dict[str, float] = {}
    for name in SCORES:
        steps = min(max(round(getattr(delta, name) / step), least), most)
        after[name] = round(min(max(getattr(before, name) + steps * step, 0.0), 1.0), 2)
    return State(**after)


def _whole(steps: float) -> int:
    """What is left of a number of steps towards 0, safe from the last bits of a division."""
    return int(steps + math.copysign(1e-6, steps))


def _recorded(
    record: CustomerRecord,
    before: State,
    flags: Sequence[CustomerFlag],
    verbal_yes: bool,
) -> Parsed | CustomerError:
    after: dict[str, float] = {}
    for name in ("willingness", "patience"):
        start, end, delta = (getattr(record, f"{name}_{w}") for w in ("before", "after", "delta"))
        if not (0 <= start <= 1 and 0 <= end <= 1):
            return CustomerError.OUT_OF_RANGE
        if not _in_range(delta):
            return CustomerError.DELTA_RANGE
        if abs(start - getattr(before, name)) > ROUNDING:
            return CustomerError.NOT_THE_STATE
        if abs(start + delta - end) > ROUNDING:
            return CustomerError.ARITHMETIC
        after[name] = end
    if record.behavior in AFTER_VERBAL_YES and not verbal_yes:
        return CustomerError.NO_VERBAL_YES
    reply = record.reply.strip()
    if not reply and record.behavior is not Behaviour.HANG_UP:
        return CustomerError.EMPTY
    fields = record.model_dump(mode="json")
    return Parsed(
        reply=reply,
        behaviour=record.behavior,
        state=State(**after, trust=before.trust),
        private={"said": json.dumps(fields, ensure_ascii=False), "form": "record", **fields},
        flags=tuple(flags),
    )


def _simulated(
    record: SimulatorRecord,
    before: State,
    flags: Sequence[CustomerFlag],
) -> Parsed | CustomerError:
    behaviour = _AS_BEHAVIOUR[record.dialogue_action]
    reply = record.user_reply.strip()
    if not reply and behaviour is not Behaviour.HANG_UP:
        return CustomerError.EMPTY
    state, delta = rescored(before, record.score_rules_hit)
    own = [(getattr(record.score_delta, n), getattr(delta, n)) for n in SCORES]
    if any(abs(mine - theirs) > ROUNDING for mine, theirs in own):
        flags = (*flags, CustomerFlag.RESCORED)
    fields = record.model_dump(mode="json")
    return Parsed(
        reply=reply,
        behaviour=behaviour,
        state=state,
        private={
            "said": json.dumps(fields, ensure_ascii=False),
            "form": "simulator",
            **fields,
            "behavior": str(behaviour),
            "score_delta": delta.model_dump(),
            "score_after": {n: getattr(state, n) for n in SCORES},
        },
        flags=tuple(flags),
    )


def _in_range(delta: float) -> bool:
    return TRAINING_CLIP.low - 1e-6 <= delta <= TRAINING_CLIP.high + 1e-6
