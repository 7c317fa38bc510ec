"""A measure of some rows in a column: over all seeds' dialogues together, and seed by seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ibrl_jax.evaluation.statistics import Interval, StatisticsSettings, bootstrap_mean
from ibrl_jax.studies import seeds
from ibrl_jax.studies.declare import Measured
from ibrl_jax.studies.results import Cell, Results


def interval(cell: Cell, measure: Measured, settings: StatisticsSettings) -> Interval:
    """A measure's mean over a cell's dialogues, with an interval over clusters."""
    values, known = cell.sums(measure.key)
    if not cell.n:
        return Interval(mean=None, low=None, high=None, rows=0, clusters=0, note="no dialogues")
    return bootstrap_mean(values, cell.clusters, settings, known)


def arm(
    results: Results, coefficient: float, rows: Sequence[str], column: str, measure: Measured
) -> seeds.Arm:
    """An arm of a contrast over seeds: some rows in a column."""
    found = {}
    for seed, cell in results.by_seed(rows, column).items():
        if cell.n:
            found[seed] = seeds.Sums(*cell.sums(measure.key), cell.clusters)
    return seeds.Arm(coefficient, found)


def by_seed(
    results: Results, rows: Sequence[str], column: str, measure: Measured
) -> dict[int, float]:
    """A measure at each seed, where it is defined."""
    cells = results.by_seed(rows, column)
    values = {seed: cell.value(measure.key) for seed, cell in cells.items()}
    return {seed: value for seed, value in values.items() if value is not None}


def over_seeds(values: dict[int, float]) -> tuple[float, float, float] | None:
    """Mean, least and greatest over seeds; None without any."""
    found = np.array(list(values.values()))
    return (float(found.mean()), float(found.min()), float(found.max())) if found.size else None
