"""What each supervised step learns from: whole dialogues at last, something easier before.

```
the first `sft.curriculum` of the steps     pieces (`sft.cut`), or the shorter half of all dialogues
    among them, fewer and fewer             recitals (`sft.recitals`), several a row
after that                                  all dialogues, in two padded lengths
```

A recital is an exercise: a role is asked for some fields of its prompt, by a word of each, and says
them, numbers and all. A small network learns in it to look up and to copy, which dialogues ask for
too seldom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.errors import UserError
from ibrl_jax.trainer.supervised import Rows
from ibrl_jax.trainer.teachers import Example


class Lessons:
    """The rows of one step after another, drawn by a generator that the caller keeps."""

    def __init__(
        self, sft: ConfigDict, data: Sequence[Example], recitals: Sequence[Example]
    ) -> None:
        """Of the settings of `sft`. `recitals` may be empty where `sft.recitals` is 0.

        Raises:
            UserError: pieces cannot be that short, or a recital is longer than they are.
        """
        self._batch: int = sft.batch
        self._rows = packed if sft.packed else padded
        self._first: float = sft.curriculum * sft.steps
        self._short, self._whole = lengths(data)
        self._shorter = [e for e in data if len(e.ids) <= self._short]
        self._longer = [e for e in data if len(e.ids) > self._short]
        self._share = len(self._shorter) / len(data)
        self._opening = min(sft.cut, self._whole) if sft.cut else self._short
        self._simple = cut(data, self._opening) if sft.cut else self._shorter
        self._recitals, self._fading = recitals, 2 * sft.recitals * self._first
        longest = max((len(e.ids) for e in recitals), default=0)
        if longest > self._opening:
            raise UserError(
                f"a recital has {longest} tokens, and rows of the curriculum are cut to "
                f"{self._opening}; raise config.sft.cut, or set config.sft.recitals=0"
            )

    def rows(self, index: int, rng: np.random.Generator) -> Rows:
        """Those of step `index`, counted from 0."""
        if index < self._first:
            if self._fading and rng.random() < 1 - index / self._fading:
                return packed(self._recitals, self._opening, self._batch, rng)
            return self._rows(self._simple, self._opening, self._batch, rng)
        if not self._longer or rng.random() < self._share:
            return self._rows(self._shorter, self._short, self._batch, rng)
        return self._rows(self._longer, self._whole, self._batch, rng)


def lengths(data: Sequence[Example]) -> tuple[int, int]:
    """Two padded lengths, multiples of 16: one for the shorter half, one for all."""
    found = sorted(-(-len(example.ids) // 16) * 16 for example in data)
    return found[len(found) // 2], found[-1]


def cut(data: Sequence[Example], length: int) -> list[Example]:
    """Pieces of dialogues, of at most `length` tokens each: the prompt, and some turns in a row.

    A piece begins with what was heard, and goes on where the one before it had no room for the
    answer. So whatever a dialogue needs is learned from the first step on, its end included, and
    several pieces cost as much as one whole dialogue.

    Raises:
        UserError: no turn of anybody begins so early.
    """
    found = [piece for example in data for piece in _pieces(example, length)]
    if not found:
        raise UserError(
            f"config.sft.cut is {length}, and no turn begins before that token; give it more"
        )
    return found


def _pieces(example: Example, length: int) -> Iterator[Example]:
    """Those of one dialogue in which there is something to learn."""
    begin, room = example.opening, length - example.opening
    while room > 0:
        here = np.r_[: example.opening, begin : min(begin + room, len(example.ids))]
        piece = replace(example, ids=example.ids[here], weight=example.weight[here])
        if piece.weight.any():
            yield piece
        later = [at for at in example.heard if at > begin]
        if begin + room >= len(example.ids) or not later:
            return
        begin = max((at for at in later if at <= begin + room), default=later[0])


def padded(data: Sequence[Example], length: int, size: int, rng: np.random.Generator) -> Rows:
    """ids, segment ids and weights [B, T], right-padded."""
    ids = np.zeros((size, length), np.int32)
    segments = np.zeros((size, length), np.int32)
    weight = np.zeros((size, length), np.float32)
    for row, index in enumerate(rng.integers(len(data), size=size)):
        example = data[index]
        n = len(example.ids)
        ids[row, :n], segments[row, :n], weight[row, :n] = example.ids, 1, example.weight
    return ids, segments, weight


def packed(data: Sequence[Example], length: int, size: int, rng: np.random.Generator) -> Rows:
    """The same, with as many examples after another in a row as were drawn before one that is too
    long for what is left of it; their segments count from 1.
    """
    ids = np.zeros((size, length), np.int32)
    segments = np.zeros((size, length), np.int32)
    weight = np.zeros((size, length), np.float32)
    for row in range(size):
        at, segment = 0, 1
        while at + len((example := data[int(rng.integers(len(data)))]).ids) <= length:
            here = slice(at, at + len(example.ids))
            ids[row, here], weight[row, here] = example.ids, example.weight
            segments[row, here] = segment
            at, segment = here.stop, segment + 1
    return ids, segments, weight
