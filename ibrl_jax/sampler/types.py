"""What goes into an engine and what comes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ibrl_jax.errors import UserError
from ibrl_jax.sampler.programs import Shape

_KEYS = {
    "slots": "an engine's number of slots",
    "max_length": "config.rollout.max_view_tokens",
    "rows": "config.engine.rows",
    "new_tokens": "config.engine.new_tokens",
    "lengths": "config.engine.lengths",
    "max_new": "config.rollout.max_new_tokens",
    "block": "config.engine.block",
}
"""What a message calls each setting: the key that a user changes."""

_CALL = 64
"""What a call costs besides, in tokens that it could read in that time: on two CPU cores with a
network of 160 thousand parameters; on an accelerator reading the weights costs a large one 100."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Sizes of an engine. Buckets ascend; a call is padded to the smallest that fits."""

    slots: int
    """Dialogues that can be open at once; each has a cache of the largest `lengths`."""
    max_length: int
    """Tokens of a view, those to be sampled included."""
    rows: tuple[int, ...]
    """Requests a call; more are split."""
    new_tokens: tuple[int, ...]
    """Unread tokens a request, at least 2; more are read in pieces."""
    lengths: tuple[int, ...]
    """Cache entries that a call works on; the largest is at least `max_length`."""
    max_new: int
    """Tokens a request may sample at most."""
    block: int
    """Tokens a request samples in a step of the engine; from `max_new` on, all of them."""
    stragglers: float
    """A call ends when no more than this share of its rows still goes on; 0: when none does."""

    def __post_init__(self) -> None:
        for name in ("slots", "max_length", "max_new", "block"):
            if getattr(self, name) < 1:
                raise UserError(f"{_KEYS[name]} is {getattr(self, name)}; it must be at least 1.")
        for name in ("rows", "new_tokens", "lengths"):
            buckets = getattr(self, name)
            least = 2 if name == "new_tokens" else 1
            if not buckets or min(buckets) < least or list(buckets) != sorted(set(buckets)):
                raise UserError(
                    f"{_KEYS[name]} is {buckets}; it must be ascending numbers of at least {least}."
                )
        if not 0 <= self.stragglers < 1:
            raise UserError(
                f"config.engine.stragglers is {self.stragglers}; it must be from 0 to below 1."
            )
        if self.lengths[-1] < self.max_length:
            raise UserError(
                f"The largest of {_KEYS['lengths']} is {self.lengths[-1]}; it must be at least "
                f"{_KEYS['max_length']}, {self.max_length}."
            )

    @property
    def samples_at_once(self) -> int:
        """Tokens that a call samples at most."""
        return min(self.block, self.max_new)

    def shapes(self, *, aligned: bool) -> list[Shape]:
        """Every shape that a call can have: a view is at least as long as what is new in it."""
        below = dict(zip(self.new_tokens, (0, *self.new_tokens), strict=False)) | {1: 0}
        going_on = (1,) if self.block < self.max_new or self.stragglers else ()
        return [
            Shape(rows=r, new_tokens=t, length=s, aligned=aligned)
            for r in ((self.slots,) if aligned else self.rows)
            for t in (*going_on, *self.new_tokens)
            for s in self.lengths
            if below[t] < min(s, self.max_length)
        ]

    def shape(self, rows: int, new_tokens: int | None, length: int, *, aligned: bool) -> Shape:
        """The smallest shape for so many rows, new tokens and cache entries.

        `new_tokens`: None for rows that go on with their turn, each from its last token.
        """
        return Shape(
            rows=self.slots if aligned else _bucket(self.rows, rows),
            new_tokens=1 if new_tokens is None else _bucket(self.new_tokens, new_tokens),
            length=self.entries(length),
            aligned=aligned,
        )

    def width(self, unread: Sequence[int], *, aligned: bool) -> int:
        """How many tokens a row the last of the calls should read that read so many a row.

        The rows that have more read the rest ahead, in pieces, in calls of their own:

        ```
        T = 4   r r r r          T = 2   . . r r      row 0, in a call of one row and one of three
                r r . .                  r r
                r . . .                  r .          the second costs less
        ```
        """

        def price(rows: int, new_tokens: int) -> int:
            return _CALL + (self.slots if aligned else _bucket(self.rows, rows)) * new_tokens

        def cost(width: int) -> int:
            total, left = price(len(unread), width), [n - width for n in unread if n > width]
            while left:
                total += price(len(left), width)
                left = [n - width for n in left if n > width]
            return total

        return min(self.new_tokens, key=cost)

    def entries(self, length: int) -> int:
        """The smallest of `lengths` that holds so many."""
        return _bucket(self.lengths, length)


@dataclass(frozen=True, slots=True)
class Request:
    """Go on from a view."""

    params: str  # the name of a loaded set of parameters
    slot: int  # from `acquire`
    ids: Sequence[int]  # the whole view
    key: tuple[int, int]  # key data of the draws; the token at position p uses fold_in(key, p)
    temperature: float  # 0: greedy
    max_new: int  # tokens to sample at most


@dataclass(frozen=True, slots=True)
class Completion:
    """What was sampled, the stop token included; empty where the view has no room left."""

    ids: list[int]
    logps: list[float]  # under the distribution that was sampled from
    end: Literal["stop", "length"]


@dataclass(kw_only=True)
class EngineStats:
    """Counts since the engine was made."""

    steps: int = 0
    calls: int = 0  # of the device
    rows_run: int = 0  # rows of all calls, padding included
    tokens_read: int = 0  # unread tokens of requests; cached ones are not counted
    tokens_cached: int = 0  # tokens of requests that were not read again
    tokens_shared: int = 0  # of openings, copied into a slot instead of read
    tokens_sampled: int = 0
    decode_steps: int = 0  # passes over one token a row, summed over calls
    seconds: float = 0.0  # inside `step`


def _bucket(buckets: tuple[int, ...], needed: int) -> int:
    return next(bucket for bucket in buckets if bucket >= needed)
