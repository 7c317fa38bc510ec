"""Scenarios of Deal-or-No-Deal: the enumeration, its names, and splits that never share a scenario.

A context is three counts (1 to `max_count`, 5 to 7 units in all) and one side's values, worth 10
points in all. A scenario is two contexts over the same counts in which every item is valued by a
side and some item by both. Its `id` names the ordered pair (`agent0` first), its `cluster` the
unordered one, which is what the splits and the statistics go by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import combinations, product

from ibrl_jax.domains.base import Scenario
from ibrl_jax.domains.dond.grammar import Items
from ibrl_jax.domains.dond.scoring import POINTS, ROLES, board, worth
from ibrl_jax.errors import UserError

SPLITS = ("train", "val", "test")
MIN_UNITS, MAX_UNITS = 5, 7


@cache
def make_scenario(counts: Items, first: Items, second: Items) -> Scenario:
    """The scenario in which `agent0` values units at `first` and `agent1` at `second`."""
    low, high = sorted((first, second))
    return Scenario(
        id=_name(counts, first, second),
        cluster=_name(counts, low, high),
        public={"counts": list(counts)},
        private={
            role: {"counts": list(counts), "values": list(values)}
            for role, values in zip(ROLES, (first, second), strict=True)
        },
    )


def swapped(scenario: Scenario) -> Scenario:
    """The same scenario with the sides in each other's seats."""
    counts, first, second = board(scenario)
    return make_scenario(counts, second, first)


def count_triples(max_count: int) -> list[Items]:
    """All counts of the three items that a scenario may have."""
    numbers = range(1, max_count + 1)
    return [c for c in product(numbers, numbers, numbers) if MIN_UNITS <= sum(c) <= MAX_UNITS]


def side_values(counts: Items) -> list[Items]:
    """All values that one side may have: whole points, worth 10 in all."""
    v0, v1, v2 = (range(POINTS // count + 1) for count in counts)
    return [values for values in product(v0, v1, v2) if worth(counts, values) == POINTS]


@cache
def enumerate_ordered(max_count: int) -> tuple[Scenario, ...]:
    """All ordered scenarios, in lexicographic order of counts and values."""
    return tuple(
        make_scenario(counts, first, second)
        for counts in count_triples(max_count)
        for first, second in product(side_values(counts), repeat=2)
        if _playable(first, second)
    )


def enumerate_unordered(max_count: int) -> tuple[Scenario, ...]:
    """One of the two orders of each scenario: the one whose id is the cluster's name."""
    return tuple(s for s in enumerate_ordered(max_count) if s.id == s.cluster)


def split_of(cluster: str, *, seed: int, fractions: Sequence[float]) -> str:
    """The split of an unordered scenario: a hash of (seed, cluster) against cumulative fractions.

    It depends on nothing else, so a scenario stays in its split whatever else is enumerated.
    """
    position, reached = _hash_unit(f"split:{seed}:{cluster}"), 0.0
    for split, fraction in zip(SPLITS, fractions, strict=True):
        reached += fraction
        if position < reached:
            return split
    return SPLITS[-1]


def enumerated_splits(
    *, max_count: int, seed: int, fractions: Sequence[float]
) -> dict[str, tuple[Scenario, ...]]:
    """The enumeration, split.

    Training holds both orders of a scenario; val and test hold one, by a seeded coin.

    Raises UserError if the fractions are not three shares that add up to 1, or if a split comes out
    empty.
    """
    if len(fractions) != 3 or min(fractions) <= 0 or abs(sum(fractions) - 1) > 1e-9:
        raise UserError(
            f"config.dond.split_fractions is {tuple(fractions)}; "
            "it needs three positive shares (train, val, test) that add up to 1."
        )
    parts: dict[str, list[Scenario]] = {split: [] for split in SPLITS}
    for scenario in enumerate_ordered(max_count):
        split = split_of(scenario.cluster, seed=seed, fractions=fractions)
        if split == "train" or scenario.id == pick_order(scenario, seed).id:
            parts[split].append(scenario)
    for split, scenarios in parts.items():
        if not scenarios:
            raise UserError(
                f"config.dond.split_fractions {tuple(fractions)} leave no scenario in {split} with "
                f"config.dond.max_count={max_count}; give {split} a larger share."
            )
    return {split: tuple(scenarios) for split, scenarios in parts.items()}


def pick_order(scenario: Scenario, seed: int) -> Scenario:
    """One of the two orders of a scenario by a seeded coin, the same for either order given."""
    mirror = swapped(scenario)
    first, second = sorted((scenario, mirror), key=lambda s: s.id)
    return first if _hash_unit(f"order:{seed}:{scenario.cluster}") < 0.5 else second


def one_order_each(scenarios: Iterable[Scenario], seed: int) -> tuple[Scenario, ...]:
    """The distinct unordered scenarios in order of first appearance, each in one seeded order."""
    return tuple({s.cluster: pick_order(s, seed) for s in scenarios}.values())


def check_disjoint(splits: Mapping[str, Iterable[Scenario]]) -> None:
    """Raise UserError if two splits share an unordered scenario."""
    clusters = {split: {s.cluster for s in scenarios} for split, scenarios in splits.items()}
    for a, b in combinations(clusters, 2):
        shared = sorted(clusters[a] & clusters[b])
        if shared:
            raise UserError(
                f"The splits {a} and {b} share {len(shared)} scenario(s), first {shared[0]}; they "
                "must be disjoint, whichever side sits where."
            )


def _playable(first: Items, second: Items) -> bool:
    every = all(a or b for a, b in zip(first, second, strict=True))
    return every and any(a and b for a, b in zip(first, second, strict=True))


def _name(*numbers: Items) -> str:
    return "-".join(".".join(map(str, triple)) for triple in numbers)


def _hash_unit(text: str) -> float:
    """A number in [0, 1) from a text, the same on every machine."""
    return int.from_bytes(blake2b(text.encode(), digest_size=6).digest()) / 2**48
