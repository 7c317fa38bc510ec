"""Draws that are the same on every machine: a stream a name, from uniform numbers alone."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

Item = TypeVar("Item")


class Draws:
    """A stream of draws; its name holds all that it depends on.

    `random.Random(text).random()` is what Python keeps the same from version to version, so
    everything here is made of it.
    """

    def __init__(self, *name: object) -> None:
        self._random = random.Random(":".join(map(str, name))).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def integer(self, low: int, high: int, step: int = 1) -> int:
        """One of low, low + step, ..., none above `high`."""
        return low + step * int(self._random() * ((high - low) // step + 1))

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random()

    def normal(self) -> float:
        """A draw from N(0, 1) (Box and Muller)."""
        radius = math.sqrt(-2 * math.log(1 - self._random()))
        return radius * math.cos(2 * math.pi * self._random())

    def pick(self, items: Sequence[Item]) -> Item:
        return items[int(self._random() * len(items))]

    def weighted(self, weights: Mapping[Item, float]) -> Item:
        """A key, in proportion to its weight."""
        left = self._random() * sum(weights.values())
        for item, weight in weights.items():
            left -= weight
            if left < 0:
                return item
        return list(weights)[-1]

    def sample(self, items: Sequence[Item], count: int) -> tuple[Item, ...]:
        """`count` different items, or all of them in some order if there are fewer."""
        left = list(items)
        return tuple(
            left.pop(int(self._random() * len(left))) for _ in range(min(count, len(left)))
        )
