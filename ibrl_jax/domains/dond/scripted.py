"""Rule-based negotiators: what all families share.

A negotiator knows its own values, the rules of the game and the public record, nothing else. Its
state is read from the record at every turn, so it copes with any legal counterpart. Each turn it

1. confirms a pending selection that leaves it its own last offer or enough;
2. selects the complement of the counterpart's last try when that is worth its aspiration, or no
   less than what it would ask for next;
3. makes an offer, while one can still become a deal;
4. at its last chance takes what is above its floor, and otherwise walks away.

A deal needs two more turns after the offer. With `left` turns to go, this one included, a side can
still select at this turn if `left >= 2`, and an offer made now can still become a deal if `left >=
3`.

A family fills in two methods: `aspiration` (points it wants now) and `offer` (what it asks for).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ibrl_jax.domains.base import Role, Turn
from ibrl_jax.domains.dond.grammar import Action, Items
from ibrl_jax.domains.dond.scoring import allocations, complement, worth


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """What a negotiator knows before the first word. `horizon` counts turns of both sides."""

    role: Role
    counts: Items
    values: Items
    horizon: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The public record as one side reads it.

    Tries are in order; each holds the units of whoever made it. `pending` is the counterpart's
    selection that waits for ours. `talked` says whether we made small talk.
    """

    mine: tuple[Items, ...]
    theirs: tuple[Items, ...]
    pending: Items | None
    talked: bool
    index: int
    left: int

    @classmethod
    def read(cls, turns: Sequence[Turn], seat: Seat) -> Position:
        """Read the record of a dialogue in which `seat` is to move."""
        mine: list[Items] = []
        theirs: list[Items] = []
        talked = False
        for turn in turns:
            if turn.action == Action.PROPOSE and turn.payload:
                n0, n1, n2 = turn.payload["items"]
                (mine if turn.role == seat.role else theirs).append((n0, n1, n2))
            talked |= turn.action == Action.TALK and turn.role == seat.role
        pending = None
        if turns and turns[-1].action == Action.SELECT and turns[-1].payload:
            n0, n1, n2 = turns[-1].payload["items"]
            pending = (n0, n1, n2)
        return cls(
            mine=tuple(mine),
            theirs=tuple(theirs),
            pending=pending,
            talked=talked,
            index=len(turns),
            left=seat.horizon - len(turns),
        )


@dataclass(frozen=True, kw_only=True)
class Phrases:
    """What a family says before an offer.

    That is the first one, one that repeats the last, one that gives up points, any other, and the
    last that can still become a deal. `greet` is small talk without an offer.
    """

    open: tuple[str, ...]
    hold: tuple[str, ...]
    concede: tuple[str, ...]
    counter: tuple[str, ...]
    last: tuple[str, ...]
    greet: tuple[str, ...] = ()

    def all(self) -> tuple[str, ...]:
        """Every phrase."""
        return self.open + self.hold + self.concede + self.counter + self.last + self.greet


class Negotiator(ABC):
    """One side of one dialogue.

    `floor` is the least it takes at its last chance, in points; `greets` the probability of small
    talk before its first offer, when time allows.
    """

    phrases: ClassVar[Phrases]
    floor: ClassVar[float] = 3.0
    greets: ClassVar[float] = 0.0

    def __init__(self, seat: Seat, rng: np.random.Generator):
        self.seat = seat
        self.rng = rng
        self.total = worth(seat.counts, seat.values)
        self.options = allocations(seat.counts)
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 (a family may have nothing to draw)
        """Draw what is random about this negotiator; called once."""

    @abstractmethod
    def aspiration(self, position: Position) -> float:
        """The points that it wants now."""

    @abstractmethod
    def offer(self, position: Position) -> Items:
        """The units that it asks for now."""

    def accepts(self, position: Position, items: Items, planned: Items) -> bool:
        """Whether it takes `items` rather than ask for `planned`."""
        return self.points(items) >= min(self.aspiration(position), self.points(planned))

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next utterance, given the whole public record so far."""
        position = Position.read(turns, self.seat)
        planned = self.offer(position)
        offered = self.offered(position)
        if position.pending is not None:
            rest = complement(position.pending, self.seat.counts)
            agreed = bool(position.mine) and rest == position.mine[-1]
            if agreed or self.accepts(position, rest, planned) or self._settles(position, rest):
                return tagged("selection", rest)
        elif offered is not None and position.left >= 2:
            if self.accepts(position, offered, planned) or self._settles(position, offered):
                return tagged("selection", offered)
        if position.left < 3:
            return "<disagree>"
        return self._speak(position, planned)

    def points(self, items: Sequence[int]) -> int:
        """What units are worth to this side."""
        return worth(items, self.seat.values)

    def offered(self, position: Position) -> Items | None:
        """What the counterpart's last try leaves for this side; None before any."""
        return complement(position.theirs[-1], self.seat.counts) if position.theirs else None

    def progress(self, position: Position) -> float:
        """The share of the time for offers that is gone: 0 at the first turn, 1 at the end."""
        return min(1.0, position.index / max(1, self.seat.horizon - 3))

    def at_least(self, target: float, prefer: Callable[[Items], tuple]) -> Items:
        """The allocation worth `target` points or more that ranks highest by `prefer`.

        If nothing is worth that much, everything.
        """
        fitting = [items for items in self.options if self.points(items) >= target]
        return max(fitting, key=prefer) if fitting else self.seat.counts

    def _settles(self, position: Position, items: Items) -> bool:
        """At the last chance to select, the floor decides."""
        return position.left <= 3 and self.points(items) >= self.floor

    def _speak(self, position: Position, planned: Items) -> str:
        style = self.phrases
        if not position.mine:
            if self.greets and not position.talked and position.left >= 6:
                if self.rng.random() < self.greets:
                    return self._pick(style.greet)
            kind = style.open
        elif position.left <= 4:
            kind = style.last
        elif planned == position.mine[-1]:
            kind = style.hold
        elif self.points(planned) < self.points(position.mine[-1]):
            kind = style.concede
        else:
            kind = style.counter
        return f"{self._pick(kind)} {tagged('try', planned)}"

    def _pick(self, phrases: tuple[str, ...]) -> str:
        return phrases[int(self.rng.integers(len(phrases)))]


def tagged(tag: str, items: Items) -> str:
    """An allocation between two tags, in the form that every close setting takes."""
    return f"<{tag}> item0={items[0]} item1={items[1]} item2={items[2]} <{tag}>"


def vocabulary(families: Mapping[str, type[Negotiator]]) -> set[str]:
    """The words of all phrases of some families (tags and numbers aside)."""
    return {
        word
        for family in families.values()
        for phrase in family.phrases.all()
        for word in phrase.split()
    }
