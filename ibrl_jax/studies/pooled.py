"""Statistics over the dialogues of all seeds together.

Their unit is the cluster of a scenario: what makes it hard, it has at every seed. So a comparison
here says which of *these* policies fails less often; whether their methods differ is asked of the
seeds (`studies.seeds`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ibrl_jax.evaluation.statistics import (
    Arm,
    Interval,
    OddsRatio,
    StatisticsSettings,
    bootstrap_mean,
    compare,
)
from ibrl_jax.studies import seeds
from ibrl_jax.studies.declare import Measured
from ibrl_jax.studies.results import Cell, Results


def interval(cell: Cell, measure: Measured, settings: StatisticsSettings) -> Interval:
    """A measure's mean over a cell's dialogues with an interval over clusters, where one exists."""
    sums = cell.sums(measure)
    if sums is None:
        return Interval(
            mean=cell.value(measure),
            low=None,
            high=None,
            rows=cell.n,
            clusters=len(set(cell.clusters.tolist())),
            note="of whole profiles, without an interval here",
        )
    values, known = sums
    if not cell.n:
        return Interval(mean=None, low=None, high=None, rows=0, clusters=0, note="no dialogues")
    return bootstrap_mean(values, cell.clusters, settings, known)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One column's comparisons with a reference, Holm-corrected together.

    `reference` is a run (all its trained rows together) or one row of it.
    """

    column: str
    reference: str
    ratios: tuple[OddsRatio, ...]


def families(results: Results) -> list[Family]:
    """Odds ratios of failing against the run `design.against`, and against each of its policies.

    A family is a column and a reference. Every other row stands in it, the start too.
    """
    design = results.design
    trained = design.trained[design.against]
    references: dict[str, tuple[str, ...]] = {design.against: trained}
    if len(trained) > 1:
        references |= {row: (row,) for row in trained}
    others = [row for row in design.rows if row not in trained]
    success = design.measures[0]
    found = []
    for name, rows in references.items():
        for column in design.shown:
            reference = results.cell(rows, column)
            arms = [
                _arm(row, cell, success)
                for row in others
                if (cell := results.cell((row,), column)) is not None and cell.n
            ]
            if reference is None or not reference.n or not arms:
                continue
            ratios = compare(_arm(name, reference, success), arms, results.statistics)
            found.append(Family(column=column, reference=name, ratios=ratios))
    return found


def _arm(name: str, cell: Cell, success: Measured) -> Arm:
    return Arm(name=name, fails=1.0 - cell.values[success.key], clusters=cell.clusters)


def arm(
    results: Results, coefficient: float, rows: Sequence[str], column: str, measure: Measured
) -> seeds.Arm:
    """An arm of a contrast over seeds: some rows in a column."""
    found = {}
    for seed, cell in results.by_seed(rows, column).items():
        sums = cell.sums(measure)
        if sums is not None and cell.n:
            found[seed] = seeds.Sums(*sums, cell.clusters)
    return seeds.Arm(coefficient, found)


def by_seed(
    results: Results, rows: Sequence[str], column: str, measure: Measured
) -> dict[int, float]:
    """A measure at each seed, where it is defined."""
    cells = results.by_seed(rows, column)
    values = {seed: cell.value(measure) for seed, cell in cells.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def over_seeds(values: dict[int, float]) -> tuple[float, float, float] | None:
    """Mean, least and greatest over seeds; None without any."""
    found = np.array(list(values.values()))
    return (float(found.mean()), float(found.min()), float(found.max())) if found.size else None
