"""How the 500 evaluation profiles of the paper are made up (Table 7), as shares and as quotas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

from ibrl_jax.domains.telesales.profiles.draws import Draws
from ibrl_jax.domains.telesales.profiles.terms import (
    Difficulty,
    IntentDepth,
    Personality,
    Remote,
)

Composition = Literal["sampled", "paper_exact"]
COMPOSITIONS: tuple[Composition, ...] = ("sampled", "paper_exact")

Key = TypeVar("Key")

PAPER_SIZE = 500

DIFFICULTY: Mapping[Difficulty, int] = {
    Difficulty.EASY: 101,
    Difficulty.MEDIUM: 192,
    Difficulty.HARD: 205,
    Difficulty.STRESS: 2,
}
INTENT: Mapping[IntentDepth, int] = {
    IntentDepth.URGENT: 90,
    IntentDepth.INTERESTED: 139,
    IntentDepth.BROWSING: 138,
    IntentDepth.ACCIDENTAL: 133,
}
GEOGRAPHY: Mapping[Remote, int] = {
    Remote.SAME_CITY: 226,
    Remote.SAME_PROVINCE: 155,
    Remote.CROSS_PROVINCE: 119,
}
PERSONALITY: Mapping[Personality, int] = dict.fromkeys(Personality, 100)
REACHABLE: Mapping[bool, int] = {True: 394, False: 106}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What the composition fixes of a profile; difficulty is found afterwards."""

    intent: IntentDepth
    remote: Remote
    personality: Personality
    reachable: bool


def draw_cell(draws: Draws) -> Cell:
    """Each dimension by itself, with Table 7's shares."""
    return Cell(
        intent=draws.weighted(INTENT),
        remote=draws.weighted(GEOGRAPHY),
        personality=draws.weighted(PERSONALITY),
        reachable=draws.weighted(REACHABLE),
    )


def exact_cells(seed: int, n: int, version: str) -> list[Cell]:
    """`n` cells whose counts are Table 7's (in proportion, if n is not 500), in shuffled order."""

    def column(name: str, counts: Mapping[Key, int]) -> tuple[Key, ...]:
        items = [key for key, count in quotas(counts, n).items() for _ in range(count)]
        return Draws(version, "cells", name, seed, n).sample(items, n)

    columns = (
        column("intent", INTENT),
        column("remote", GEOGRAPHY),
        column("personality", PERSONALITY),
        column("reachable", REACHABLE),
    )
    return [
        Cell(intent=intent, remote=remote, personality=personality, reachable=reachable)
        for intent, remote, personality, reachable in zip(*columns, strict=True)
    ]


def quotas(counts: Mapping[Key, int], n: int) -> dict[Key, int]:
    """`counts` scaled to add up to `n`: whole parts first, then the largest remainders."""
    total = sum(counts.values())
    result = {key: count * n // total for key, count in counts.items()}
    by_remainder = sorted(counts, key=lambda key: -(counts[key] * n % total))
    for key in by_remainder[: n - sum(result.values())]:
        result[key] += 1
    return result
