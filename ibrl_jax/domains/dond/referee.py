"""The referee of one Deal-or-No-Deal dialogue: legal turns, pending selections, and how it ends.

```
PROPOSE, TALK             the talk goes on; a pending selection is withdrawn
SELECT, none pending      is now pending; it needs an earlier try (`any_try`), or must complement
                          the counterpart's last try (`last_try`)
SELECT, other's pending   the two add up to the counts: a deal; otherwise no deal, coded
DISAGREE                  no deal
malformed                 no deal, with its role as the offender
```
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from ibrl_jax.domains.base import Outcome, Role, Scenario, Turn, TurnEnd
from ibrl_jax.domains.dond.grammar import (
    Action,
    CloseForm,
    ErrorCode,
    Flag,
    Items,
    Parsed,
    parse,
    visible,
)
from ibrl_jax.domains.dond.scoring import ROLES, complement, other, settle

SelectRule = Literal["any_try", "last_try"]
"""What a first selection needs: some try before it, or to complement the counterpart's last try."""


class EndReason(StrEnum):
    """Why a dialogue ended. `SELECTIONS_*`: two selections that do not add up to the counts."""

    DEAL = "deal"
    DISAGREE = "disagree"
    SELECTIONS_SAME = "selections_same"
    SELECTIONS_SHORT = "selections_short"
    SELECTIONS_OVER = "selections_over"
    SELECTIONS_MIXED = "selections_mixed"
    TURN_LIMIT = "turn_limit"
    MALFORMED = "malformed"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class RefereeSettings:
    """The protocol. `horizon_turns` counts utterances, two a round."""

    horizon_turns: int
    select_rule: SelectRule
    close: CloseForm


class DondReferee:
    """Rules on one dialogue that `first` opens."""

    def __init__(self, scenario: Scenario, first: Role, settings: RefereeSettings):
        if first not in ROLES:
            raise ValueError(f"{first!r} is no seat of Deal-or-No-Deal; the seats are {ROLES}")
        self.scenario: Scenario = scenario
        self._turns: list[Turn] = []
        self.turns: Sequence[Turn] = self._turns
        self._settings = settings
        self._counts: tuple[int, ...] = tuple(scenario.public["counts"])
        self._to_move: Role = first
        self._pending: Items | None = None  # the first selection, by whoever does not move now
        self._last_try: dict[Role, Items] = {}
        self._last_proposer: Role | None = None
        self._checked: Turn | None = None
        self._outcome: Outcome | None = None

    @property
    def to_move(self) -> Role | None:
        """The role that speaks next, or None once the dialogue has ended."""
        return None if self._outcome else self._to_move

    @property
    def outcome(self) -> Outcome | None:
        """What happened, or None while the dialogue goes on."""
        return self._outcome

    def check(self, role: Role, text: str, end: TurnEnd) -> Turn:
        """The turn that `text` would be; nothing is recorded. Raises ValueError out of turn."""
        self._require_to_move(role)
        parsed = self._rule(role, text, end)
        self._checked = Turn(
            role=role,
            text=visible(text),
            end=end,
            action=parsed.action,
            valid=parsed.action is not Action.MALFORMED,
            payload=None if parsed.allocation is None else {"items": list(parsed.allocation)},
            error_code=parsed.error_code,
            flags=parsed.flags,
        )
        return self._checked

    def play(self, turn: Turn) -> None:
        """Record a turn. Raises ValueError out of turn, or if a valid turn is not what it says."""
        self._require_to_move(turn.role)
        if turn.valid and turn is not self._checked:
            ruled = self.check(turn.role, turn.text, turn.end)
            if (ruled.action, ruled.payload) != (turn.action, turn.payload):
                raise ValueError(
                    f"the turn {turn.text!r} reads as {ruled.action}, not {turn.action}"
                )
        self._checked = None
        self._turns.append(turn)
        self._to_move = other(turn.role)
        items = _items(turn)
        if not turn.valid:
            self._end(EndReason.MALFORMED, offender=turn.role)
        elif turn.action == Action.DISAGREE:
            self._end(EndReason.DISAGREE)
        elif turn.action == Action.SELECT and items is not None:
            self._select(turn.role, items)
        else:
            self._pending = None
            if turn.action == Action.PROPOSE and items is not None:
                self._last_try[turn.role] = items
                self._last_proposer = turn.role
        if self._outcome is None and len(self._turns) >= self._settings.horizon_turns:
            self._end(EndReason.TURN_LIMIT)

    def abort(self, reason: str) -> None:
        """End the dialogue without a result; its facts hold the reason. An ended one stays so."""
        if self._outcome is None:
            self._end(EndReason.ABORTED, abort=reason)

    def _rule(self, role: Role, text: str, end: TurnEnd) -> Parsed:
        if end != "stop":
            code = ErrorCode.TRUNCATED if end == "length" else ErrorCode.NOT_PRODUCED
            return Parsed(action=Action.MALFORMED, error_code=code)
        parsed = parse(text, self._counts, close=self._settings.close)
        if parsed.action is not Action.SELECT or parsed.allocation is None:
            return parsed
        if self._last_proposer is None:
            return Parsed(action=Action.MALFORMED, error_code=ErrorCode.SELECTION_BEFORE_TRY)
        rest = complement(parsed.allocation, self._counts)
        if self._settings.select_rule == "last_try" and self._pending is None:
            if self._last_try.get(other(role)) != rest:
                code = ErrorCode.SELECTION_NOT_LAST_TRY
                return Parsed(action=Action.MALFORMED, error_code=code)
        own_view = parsed.allocation if self._last_proposer == role else rest
        if self._last_try[self._last_proposer] == own_view:
            return parsed
        return Parsed(
            action=parsed.action,
            allocation=parsed.allocation,
            flags=(*parsed.flags, Flag.NOT_LAST_TRY),
        )

    def _select(self, role: Role, items: Items) -> None:
        theirs = self._pending
        if theirs is None:
            self._pending = items
        elif complement(items, self._counts) == theirs:
            self._end(EndReason.DEAL, items=items if role == ROLES[0] else theirs)
        else:
            self._end(_mismatch(items, theirs, self._counts))

    def _end(
        self,
        reason: EndReason,
        *,
        items: Items | None = None,
        offender: Role | None = None,
        abort: str | None = None,
    ) -> None:
        """`items` is what `agent0` receives on a deal."""
        flags = Counter(flag for turn in self._turns for flag in turn.flags)
        closed = sum(turn.payload is not None for turn in self._turns)
        facts = settle(self.scenario, items) | {
            "turns": len(self._turns),
            "tries": sum(turn.action == Action.PROPOSE for turn in self._turns),
            "allocations": closed,
            "flags": {str(flag): n for flag, n in sorted(flags.items())},
            "not_last_try": items is not None and Flag.NOT_LAST_TRY in self._turns[-1].flags,
            "select_rule": self._settings.select_rule,
        }
        if offender is not None:
            facts["error_code"] = self._turns[-1].error_code
        if abort is not None:
            facts["abort"] = abort
        self._outcome = Outcome(
            end_reason=str(reason),
            success=reason is EndReason.DEAL,
            facts=facts,
            offender=offender,
            joint=("first_best", "pareto"),
        )

    def _require_to_move(self, role: Role) -> None:
        if role != self.to_move:
            state = "the dialogue has ended" if self._outcome else f"{self._to_move} is to move"
            raise ValueError(f"{role} cannot speak: {state}")


def _mismatch(mine: Items, theirs: Items, counts: Sequence[int]) -> EndReason:
    totals = [a + b - c for a, b, c in zip(mine, theirs, counts, strict=True)]
    if mine == theirs:
        return EndReason.SELECTIONS_SAME
    if max(totals) <= 0:
        return EndReason.SELECTIONS_SHORT
    return EndReason.SELECTIONS_OVER if min(totals) >= 0 else EndReason.SELECTIONS_MIXED


def _items(turn: Turn) -> Items | None:
    """The units that a turn claims for its speaker."""
    if not isinstance(turn.payload, dict):
        return None
    n0, n1, n2 = turn.payload["items"]
    return n0, n1, n2
