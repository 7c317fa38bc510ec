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
}
"""What a message calls each setting: the key that a user changes."""


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
    """Unread tokens a request; more are read in pieces."""
    lengths: tuple[int, ...]
    """Cache entries that a call works on; the largest is at least `max_length`."""
    max_new: int
    """Tokens a request may sample at most."""

    def __post_init__(self) -> None:
        for name in ("slots", "max_length", "max_new"):
            if getattr(self, name) < 1:
                raise UserError(f"{_KEYS[name]} is {getattr(self, name)}; it must be at least 1.")
        for name in ("rows", "new_tokens", "lengths"):
            buckets = getattr(self, name)
            if not buckets or min(buckets) < 1 or list(buckets) != sorted(set(buckets)):
                raise UserError(
                    f"{_KEYS[name]} is {buckets}; it must be ascending numbers of at least 1."
                )
        if self.lengths[-1] < self.max_length:
            raise UserError(
                f"The largest of {_KEYS['lengths']} is {self.lengths[-1]}; it must be at least "
                f"{_KEYS['max_length']}, {self.max_length}."
            )

    def shapes(self, *, aligned: bool) -> list[Shape]:
        """Every shape that a call can have: a view is at least as long as what is new in it."""
        below = dict(zip(self.new_tokens, (0, *self.new_tokens), strict=False))
        return [
            Shape(rows=r, new_tokens=t, length=s, aligned=aligned)
            for r in ((self.slots,) if aligned else self.rows)
            for t in self.new_tokens
            for s in self.lengths
            if below[t] < min(s, self.max_length)
        ]

    def shape(self, rows: int, new_tokens: int, length: int, *, aligned: bool) -> Shape:
        """The smallest shape for so many rows, new tokens and cache entries."""
        return Shape(
            rows=self.slots if aligned else _bucket(self.rows, rows),
            new_tokens=_bucket(self.new_tokens, new_tokens),
            length=_bucket(self.lengths, length),
            aligned=aligned,
        )


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

    calls: int = 0
    tokens_read: int = 0  # unread tokens of requests; cached ones are not counted
    tokens_cached: int = 0  # tokens of requests that were not read again
    tokens_sampled: int = 0
    decode_steps: int = 0
    seconds: float = 0.0  # inside `run`


def _bucket(buckets: tuple[int, ...], needed: int) -> int:
    return next(bucket for bucket in buckets if bucket >= needed)
