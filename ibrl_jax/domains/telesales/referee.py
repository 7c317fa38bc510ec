"""The referee of one call: legal turns, tool calls that count, and how the call ends.

```
turn 0                    the customer picks up; the line is the domain's own
sales                     words, tool calls, end marker; the first call of each tool counts
customer                  a record, of which the agent hears the reply
HangUp                    the call ends
ConfirmAdded              a success if a call that counted can be acted on; else the talk goes on
<status=end>              the call ends
15 agent turns            the customer answers the last one, then the call ends
malformed                 the call ends with its role as the offender
```

A verbal yes is not a completed add. What the agent hears of a customer's turn is the reply; the
record is the customer's alone (`Turn.private`). What the customer hears are the words and a notice
of each call that counted.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ibrl_jax.domains.base import Outcome, Role, Scenario, Turn, TurnEnd
from ibrl_jax.domains.telesales.audit import hallucinated, invented
from ibrl_jax.domains.telesales.instructing import instructing_turns
from ibrl_jax.domains.telesales.labels import Behaviour, Language, Stage
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.record import (
    SCORES,
    CustomerError,
    CustomerFlag,
    Parsed,
    parse_record,
    write_record,
)
from ibrl_jax.domains.telesales.scenarios import (
    CUSTOMER,
    ROLES,
    SALES,
    initial_of,
    language_of,
    lead_of,
    view_of,
)
from ibrl_jax.domains.telesales.tools import (
    AgentError,
    AgentFlag,
    Call,
    Tool,
    heard,
    parse_agent_turn,
    render_agent_turn,
)

HALLUCINATION, INVENTION = "hallucination", "invention"
"""The facts of an outcome that tell whether the agent claimed something against the lead record,
and something beyond it; None where it claimed nothing. They are found by rule here, and replaced
where an auditor has looked at the call."""

INSTRUCTING = "instructing"
"""The fact of an outcome with the number of each role's turns that tried to instruct a judge."""

SCRIPTED = "scripted"
"""The flag of a line that no policy spoke."""


class Act(StrEnum):
    """What a turn does, as both sides see it."""

    PICK_UP = "pick_up"
    SPEAK = "speak"
    CALL_TOOL = "call_tool"
    END = "end"
    HANG_UP = "hang_up"
    CONFIRM = "confirm"
    MALFORMED = "malformed"


class EndReason(StrEnum):
    """Why a call ended."""

    CONFIRMED = "confirmed"
    HANG_UP = "hang_up"
    AGENT_END = "agent_end"
    TURN_LIMIT = "turn_limit"
    MALFORMED = "malformed"
    ABORTED = "aborted"


PICK_UPS: Mapping[Language, Sequence[str]] = {
    "zh": ("喂，你好。", "喂，哪位？", "你好，请讲。", "喂，您好，您是？"),
    "en": ("Hello?", "Hello, who is this?", "Yes, hello?", "Hi, who's calling?"),
}
"""How a call is picked up; which line is a matter of the scenario's id."""


@dataclass(frozen=True, kw_only=True)
class _Effect:
    """What a valid turn changes beside the record."""

    calls: tuple[Call, ...] = ()
    ended: bool = False
    behaviour: Behaviour | None = None
    state: State | None = None


class TelesalesReferee:
    """Rules on one call. The customer has picked up when it begins, and the agent speaks first."""

    def __init__(self, scenario: Scenario, *, max_agent_turns: int) -> None:
        self.scenario: Scenario = scenario
        self._language: Language = language_of(scenario)
        self._limit = max_agent_turns
        self._channels = view_of(scenario).channels
        self._start = self._state = initial_of(scenario.private[CUSTOMER])
        self._calls: list[Call] = []
        self._agreed = False
        self._checked: tuple[Turn, _Effect] | None = None
        self._outcome: Outcome | None = None
        self._turns: list[Turn] = [self._pick_up()]
        self.turns: Sequence[Turn] = self._turns

    @property
    def to_move(self) -> Role | None:
        """The role that speaks next, or None once the call has ended."""
        return None if self._outcome else ROLES[(len(self._turns) + 1) % 2]

    @property
    def outcome(self) -> Outcome | None:
        """What happened, or None while the call goes on."""
        return self._outcome

    def check(self, role: Role, text: str, end: TurnEnd) -> Turn:
        """The turn that `text` would be; nothing is recorded. Raises ValueError out of turn."""
        self._require_to_move(role)
        turn, effect = self._agent(text, end) if role == SALES else self._customer(text, end)
        self._checked = turn, effect
        return turn

    def play(self, turn: Turn) -> None:
        """Record a turn.

        A turn that was ruled on in an earlier telling of the call is taken as it stands; the line
        with which that one began is this one's too. Raises ValueError out of turn.
        """
        if SCRIPTED in turn.flags and len(self._turns) == 1:
            return
        self._require_to_move(turn.role)
        if self._checked is not None and turn is self._checked[0]:
            effect = self._checked[1]
        else:
            effect = _effect(turn)
        self._checked = None
        self._turns.append(turn)
        if not turn.valid:
            self._end(EndReason.MALFORMED, offender=turn.role)
            return
        self._calls.extend(effect.calls)
        self._state = effect.state or self._state
        self._agreed |= effect.behaviour is Behaviour.AGREE_WECHAT
        if effect.ended:
            self._end(EndReason.AGENT_END)
        elif effect.behaviour is Behaviour.HANG_UP:
            self._end(EndReason.HANG_UP)
        elif effect.behaviour is Behaviour.CONFIRM_ADDED and self._actionable():
            self._end(EndReason.CONFIRMED)
        elif turn.role == CUSTOMER and self._agent_turns() >= self._limit:
            self._end(EndReason.TURN_LIMIT)

    def abort(self, reason: str) -> None:
        """End the call without a result; its facts hold the reason. An ended one stays so."""
        if self._outcome is None:
            self._end(EndReason.ABORTED, abort=reason)

    def _pick_up(self) -> Turn:
        lines = PICK_UPS[self._language]
        line = lines[zlib.crc32(self.scenario.id.encode()) % len(lines)]
        said = write_record(Behaviour.GREETING, Stage.OPENING, self._start, self._start, line)
        return Turn(
            role=CUSTOMER,
            text=line,
            end="stop",
            action=Act.PICK_UP,
            flags=(SCRIPTED,),
            private={CUSTOMER: _record(self._start, {**json.loads(said), "said": said})},
        )

    def _agent(self, text: str, end: TurnEnd) -> tuple[Turn, _Effect]:
        if end != "stop":
            code = AgentError.TRUNCATED if end == "length" else AgentError.NOT_PRODUCED
            return _malformed(SALES, text, end, code), _Effect()
        parsed = parse_agent_turn(text)
        if parsed.error is not None:
            return _malformed(SALES, text, end, parsed.error, parsed.flags), _Effect()
        made = {call.tool for call in self._calls}
        counted: list[Call] = []
        for call in parsed.calls:
            if call.tool not in made:
                made.add(call.tool)
                counted.append(call)
        flags: tuple[str, ...] = parsed.flags
        if len(counted) < len(parsed.calls):
            flags = (*flags, AgentFlag.REPEATED_CALL)
        act = Act.END if parsed.ended else Act.CALL_TOOL if counted else Act.SPEAK
        turn = Turn(
            role=SALES,
            text=heard(parsed.words, counted, self._language),
            end=end,
            action=act,
            payload={"words": parsed.words, "calls": [call.as_json() for call in counted]},
            flags=flags,
            private={
                SALES: {"said": render_agent_turn(parsed.words, parsed.calls, ended=parsed.ended)}
            },
        )
        return turn, _Effect(calls=tuple(counted), ended=parsed.ended)

    def _customer(self, text: str, end: TurnEnd) -> tuple[Turn, _Effect]:
        if end != "stop":
            code = CustomerError.TRUNCATED if end == "length" else CustomerError.NOT_PRODUCED
            return _malformed(CUSTOMER, text, end, code), _Effect()
        parsed = parse_record(text, self._state, verbal_yes=self._agreed)
        if not isinstance(parsed, Parsed):
            return _malformed(CUSTOMER, text, end, parsed), _Effect()
        flags = parsed.flags
        act = Act.HANG_UP if parsed.behaviour is Behaviour.HANG_UP else Act.SPEAK
        if parsed.behaviour is Behaviour.CONFIRM_ADDED:
            if self._actionable():
                act = Act.CONFIRM
            else:
                flags = (*flags, CustomerFlag.CONFIRMED_NOTHING)
        turn = Turn(
            role=CUSTOMER,
            text=parsed.reply,
            end=end,
            action=act,
            flags=flags,
            private={CUSTOMER: _record(parsed.state, parsed.private)},
        )
        return turn, _Effect(behaviour=parsed.behaviour, state=parsed.state)

    def _actionable(self) -> bool:
        """Whether some call that counted leads to a contact that can be added."""
        return any(
            call.phone_number in self._channels.numbers
            if call.tool is Tool.ADD_CONTACT
            else self._channels.invitation
            for call in self._calls
        )

    def _agent_turns(self) -> int:
        return sum(turn.role == SALES for turn in self._turns)

    def _end(
        self, reason: EndReason, *, offender: Role | None = None, abort: str | None = None
    ) -> None:
        lead = lead_of(self.scenario)
        flags = Counter(str(flag) for turn in self._turns[1:] for flag in turn.flags)
        facts: dict[str, Any] = {
            "turns": len(self._turns),
            "agent_turns": self._agent_turns(),
            "calls": [call.as_json() for call in self._calls],
            "verbal_yes": self._agreed,
            "actionable": self._actionable(),
            "state_start": self._start.model_dump(),
            "state_end": self._state.model_dump(),
            "flags": dict(sorted(flags.items())),
            HALLUCINATION: hallucinated(lead, self._turns),
            INVENTION: invented(lead, self._turns),
            INSTRUCTING: {role: len(instructing_turns(self._turns, role)) for role in ROLES},
        }
        if offender is not None:
            facts["error_code"] = self._turns[-1].error_code
        if abort is not None:
            facts["abort"] = abort
        self._outcome = Outcome(
            end_reason=str(reason),
            success=reason is EndReason.CONFIRMED,
            facts=facts,
            offender=offender,
            joint=("actionable", "state_start", "state_end", HALLUCINATION, INVENTION),
        )

    def _require_to_move(self, role: Role) -> None:
        if role != self.to_move:
            state = "the call has ended" if self._outcome else f"{self.to_move} is to move"
            raise ValueError(f"{role} cannot speak: {state}")


def _record(state: State, fields: Mapping[str, Any]) -> dict[str, Any]:
    """What the customer's side of a turn holds: its record, and where it leaves the state."""
    return {**fields, "state": {name: getattr(state, name) for name in SCORES}}


def _effect(turn: Turn) -> _Effect:
    """What a turn changes, read off the turn."""
    if not turn.valid:
        return _Effect()
    if turn.role == SALES:
        calls = tuple(Call.of_json(call) for call in turn.payload["calls"])
        return _Effect(calls=calls, ended=turn.action == Act.END)
    own = turn.private.get(CUSTOMER)
    if own is None:
        raise ValueError("a customer's turn without its record cannot be ruled on")
    return _Effect(behaviour=Behaviour(own["behavior"]), state=State(**own["state"]))


def _malformed(
    role: Role, text: str, end: TurnEnd, code: StrEnum, flags: Sequence[str] = ()
) -> Turn:
    """A turn that ends the call. Nobody hears it; what was written is its own role's alone."""
    return Turn(
        role=role,
        text="",
        end=end,
        action=Act.MALFORMED,
        valid=False,
        error_code=str(code),
        flags=tuple(flags),
        private={role: {"said": text}},
    )
