"""What an allocation is worth: points, first best, Pareto optimality, and a scenario set's oracles.

For counts c and values a, b an allocation gives n units to one side and c - n to the other:

    points(n) = (n . a, (c - n) . b)        first best = max_n  n . a + (c - n) . b

An allocation is Pareto-optimal if no other gives one side more and neither less.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from ibrl_jax.domains.base import Role, Scenario
from ibrl_jax.domains.dond.grammar import Items

ROLES: tuple[Role, Role] = ("agent0", "agent1")
POINTS = 10
"""What all items together are worth to each side."""


def other(role: Role) -> Role:
    """The other seat."""
    return ROLES[1] if role == ROLES[0] else ROLES[0]


def worth(items: Sequence[int], values: Sequence[int]) -> int:
    """Points of `items` units at `values` points a unit."""
    return items[0] * values[0] + items[1] * values[1] + items[2] * values[2]


def complement(items: Sequence[int], counts: Sequence[int]) -> Items:
    """What is left for the other side (negative where `items` exceeds `counts`)."""
    return counts[0] - items[0], counts[1] - items[1], counts[2] - items[2]


@cache
def allocations(counts: Items) -> tuple[Items, ...]:
    """Everything that one side can be given."""
    c0, c1, c2 = counts
    return tuple(product(range(c0 + 1), range(c1 + 1), range(c2 + 1)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """All that can happen in one scenario.

    `first_best` is the largest feasible total; `pareto` holds the first side's allocations that are
    Pareto-optimal; the means are over a uniformly random allocation.
    """

    first_best: int
    pareto: frozenset[Items]
    random_own: float
    random_joint: float
    random_pareto: float


@cache
def analyse(counts: Items, first: Items, second: Items) -> Analysis:
    """Exhaustive analysis of one scenario; `first` and `second` are the sides' values a unit."""
    points = {
        n: (worth(n, first), worth(complement(n, counts), second)) for n in allocations(counts)
    }
    best_second: dict[int, int] = {}
    for p, q in points.values():
        best_second[p] = max(q, best_second.get(p, 0))
    pareto = frozenset(
        n
        for n, (p, q) in points.items()
        if q == best_second[p] and all(y < q for x, y in best_second.items() if x > p)
    )
    totals = [p + q for p, q in points.values()]
    first_best = max(totals)
    own = sum(p / worth(counts, first) + q / worth(counts, second) for p, q in points.values())
    return Analysis(
        first_best=first_best,
        pareto=pareto,
        random_own=own / (2 * len(totals)),
        random_joint=sum(totals) / (first_best * len(totals)),
        random_pareto=len(pareto) / len(totals),
    )


def analyse_scenario(scenario: Scenario) -> Analysis:
    """The analysis of a scenario, with `agent0` as the first side."""
    counts, first, second = board(scenario)
    return analyse(counts, first, second)


def board(scenario: Scenario) -> tuple[Items, Items, Items]:
    """Counts, the values of `agent0` and the values of `agent1`."""
    sides = scenario.private
    return (
        _items(scenario.public["counts"]),
        _items(sides[ROLES[0]]["values"]),
        _items(sides[ROLES[1]]["values"]),
    )


def settle(scenario: Scenario, items: Items | None) -> dict[str, Any]:
    """The facts of a result: `items` is what `agent0` receives on a deal, None without one.

    JSON-able: points, items and total (points if one received everything) by role, the first best,
    and whether the allocation is Pareto-optimal (None without a deal).
    """
    counts, first, second = board(scenario)
    analysis = analyse(counts, first, second)
    total = {ROLES[0]: worth(counts, first), ROLES[1]: worth(counts, second)}
    facts: dict[str, Any] = {"total": total, "first_best": analysis.first_best}
    if items is None:
        return facts | {"points": dict.fromkeys(ROLES, 0), "items": None, "pareto": None}
    rest = complement(items, counts)
    if min(*items, *rest) < 0:
        raise ValueError(f"agent0 cannot receive {list(items)} of {list(counts)}")
    return facts | {
        "points": {ROLES[0]: worth(items, first), ROLES[1]: worth(rest, second)},
        "items": {ROLES[0]: list(items), ROLES[1]: list(rest)},
        "pareto": items in analysis.pareto,
    }


@dataclass(frozen=True, kw_only=True)
class Oracles:
    """Means over scenarios: the first best in points; what a uniformly random allocation gets."""

    scenarios: int
    first_best: float
    own_utility: float
    joint_value: float
    pareto: float


def oracles(scenarios: Iterable[Scenario]) -> Oracles:
    """Exact oracles of a set of scenarios, each counted once a mention."""
    found = [analyse_scenario(scenario) for scenario in scenarios]
    if not found:
        raise ValueError("oracles need at least one scenario")
    n = len(found)
    return Oracles(
        scenarios=n,
        first_best=sum(a.first_best for a in found) / n,
        own_utility=sum(a.random_own for a in found) / n,
        joint_value=sum(a.random_joint for a in found) / n,
        pareto=sum(a.random_pareto for a in found) / n,
    )


def _items(numbers: Sequence[int]) -> Items:
    n0, n1, n2 = numbers
    return n0, n1, n2
