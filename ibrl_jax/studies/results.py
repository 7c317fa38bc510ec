"""What a study's runs and evaluations left, read from their folders and grouped.

A *cell* is what some policies did in one column at one seed. Whatever is not there yet, or failed,
is missing with its reason, and everything else is laid out without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.outcomes import OutcomeRow, read_outcomes
from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.reporting.runs import read_metrics
from ibrl_jax.reporting.unfinished import unfinished
from ibrl_jax.studies.declare import Design, Measured, Study
from ibrl_jax.studies.plan import Plan, PlannedEvaluation
from ibrl_jax.trainer.finished import is_of_today
from ibrl_jax.trainer.run import read_json


class Bounds(NamedTuple):
    """The least and the most successes that there can be, were everything that is missing a failure
    or a success, of so many."""

    least: float
    most: float
    of: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The dialogues of some rows in one column at one seed.

    `values` [n] by measure, NaN where it is undefined, and `clusters` [n] of those that came to an
    end, of `planned`. A value of all dialogues of a scenario stands with the first of them.
    `bounds`, by measure, of those whose values lie in [0, 1] for success.
    """

    values: Mapping[str, np.ndarray]
    clusters: np.ndarray
    planned: int
    kinds: frozenset[str]
    bounds: Mapping[str, Bounds]

    @property
    def n(self) -> int:
        return len(self.clusters)

    def sums(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """A measure and whether it is defined, a dialogue at a time: two [n], the first 0 where it
        is not."""
        values = self.values.get(key, np.full(self.n, np.nan))
        known = np.isfinite(values)
        return np.where(known, values, 0.0), known.astype(np.float64)

    def value(self, key: str) -> float | None:
        """A measure over the cell's dialogues; None where it is undefined."""
        top, bottom = self.sums(key)
        return float(top.sum() / bottom.sum()) if bottom.sum() else None


def pooled(cells: Sequence[Cell]) -> Cell:
    """One cell of the dialogues of several.

    A scenario is the same cluster in all of them, whatever the seed.
    """
    keys = sorted({key for cell in cells for key in cell.values})
    return Cell(
        values={
            key: np.concatenate([c.values.get(key, np.full(c.n, np.nan)) for c in cells])
            for key in keys
        },
        clusters=np.concatenate([cell.clusters for cell in cells]),
        planned=sum(cell.planned for cell in cells),
        kinds=frozenset().union(*(cell.kinds for cell in cells)),
        bounds={
            key: Bounds(*(sum(of) for of in zip(*(c.bounds[key] for c in cells), strict=True)))
            for key in set.intersection(*(set(cell.bounds) for cell in cells))
        },
    )


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that a study is laid out from.

    `cells[row, column][seed]`; `metrics[run's label][seed]` are rows of metrics.jsonl, also of a
    run that has not ended; `evaluations[what, seed]` are the files `evaluation.json`. `missing`
    says in sentences what is not there.
    """

    study: Study
    design: Design
    scale: str
    seeds: tuple[int, ...]
    plan: Plan
    statistics: StatisticsSettings
    cells: Mapping[tuple[str, str], Mapping[int, Cell]]
    metrics: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
    evaluations: Mapping[tuple[str, int], Mapping[str, Any]]
    missing: tuple[str, ...]

    def by_seed(self, rows: Sequence[str], column: str) -> dict[int, Cell]:
        """The cell of several rows together, at each seed that has all of them."""
        found = [self.cells.get((row, column), {}) for row in rows]
        if not found:
            return {}
        seeds = sorted(set.intersection(*(set(cells) for cells in found)))
        return {seed: pooled([cells[seed] for cells in found]) for seed in seeds}

    def cell(self, rows: Sequence[str], column: str) -> Cell | None:
        """The cell of several rows over all seeds that have them; None if none has."""
        found = list(self.by_seed(rows, column).values())
        return pooled(found) if found else None


def collect(
    study: Study, scale: str, seeds: Sequence[int], plan: Plan, missing: Sequence[str] = ()
) -> Results:
    """Read whatever there is; what is damaged is missing too.

    Args:
        missing: what is known to be missing, in sentences.
    """
    design = study.designs[scale]
    cells: dict[tuple[str, str], dict[int, Cell]] = {}
    evaluations = {}
    absent = list(missing)
    for planned in plan.evaluations:
        what = planned.run.label if planned.run else "references"
        try:
            found, outcomes = _evaluation(planned)
        except UserError as error:
            absent.append(f"the evaluation of {what} at seed {planned.seed} {error}")
            continue
        evaluations[what, planned.seed] = found
        absent += [
            f"of the evaluation of {what} at seed {planned.seed}, {clause}; the same command goes "
            "on with these"
            for clause in unfinished(found)
        ]
        for (policy, column), cell in _cells(outcomes, design).items():
            if policy in planned.rows:
                cells.setdefault((planned.rows[policy], column), {})[planned.seed] = cell
    metrics: dict[str, dict[int, Sequence[Mapping[str, Any]]]] = {}
    for planned in plan.runs:
        if planned.folder.metrics.is_file():
            try:
                rows = read_metrics(planned.folder.metrics)
                rows = [row for k, row in enumerate(rows) if row["iteration"] == k]
            except UserError as error:
                absent.append(
                    f"the curves of {planned.run.label} at seed {planned.seed} are left out: "
                    f"{error}"
                )
                continue
            if len(rows) < planned.config.iterations:
                absent.append(
                    f"{planned.run.label} at seed {planned.seed} has {len(rows)} of "
                    f"{planned.config.iterations} iterations, and its curves end there"
                )
            if rows:
                metrics.setdefault(planned.run.label, {})[planned.seed] = rows
    return Results(
        study=study,
        design=design,
        scale=scale,
        seeds=tuple(seeds),
        plan=plan,
        statistics=StatisticsSettings(**dict(plan.settings.statistics)),
        cells=cells,
        metrics=metrics,
        evaluations=evaluations,
        missing=tuple(dict.fromkeys(absent)),
    )


def _evaluation(planned: PlannedEvaluation) -> tuple[dict[str, Any], list[OutcomeRow]]:
    """What an evaluation has left. Raises UserError, as the end of a sentence, where that is not
    all there."""
    file, outcomes = (planned.folder / name for name in ("evaluation.json", "outcomes.csv"))
    if not file.is_file():
        raise UserError("is not there")
    again = f"remove {file}, and the same command writes both again, of the dialogues that are kept"
    try:
        found, rows = read_json(file), read_outcomes(outcomes)
    except UserError as error:
        raise UserError(f"is damaged and left out ({error}); {again}") from error
    if not is_of_today(planned.folder):
        raise UserError("is of earlier policies")
    played = found.get("coverage", {}).get("planned", len(rows))
    if len(rows) != played:
        raise UserError(
            f"is left out, since {outcomes} has {len(rows)} of its {played} dialogues; {again}"
        )
    return found, rows


def _cells(rows: Sequence[OutcomeRow], design: Design) -> dict[tuple[str, str], Cell]:
    """The cells of one evaluation, by (policy, column)."""
    groups: dict[tuple[str, str], list[OutcomeRow]] = {}
    for row in rows:
        groups.setdefault((row.policy, row.column), []).append(row)
    return {where: _cell(group, design) for where, group in groups.items()}


def _cell(group: Sequence[OutcomeRow], design: Design) -> Cell:
    ended = [row for row in group if not row.aborted]
    keys = sorted({key for row in ended for key in row.values})
    values = {
        key: np.array([row.values.get(key, np.nan) for row in ended], np.float64) for key in keys
    }
    missing = len(group) - len(ended)
    bounds = {}
    for key in design.judged:
        won = float(np.nansum(values.get(key, 0.0)))
        bounds[key] = Bounds(won, won + missing, len(group))
    for measure in design.measures:
        if measure.at_least:
            values[measure.key], bounds[measure.key] = _of_scenarios(group, measure)
    return Cell(
        values=values,
        clusters=np.array([row.cluster for row in ended], dtype=str),
        planned=len(group),
        kinds=frozenset(row.kind for row in group),
        bounds=bounds,
    )


def _of_scenarios(group: Sequence[OutcomeRow], measure: Measured) -> tuple[np.ndarray, Bounds]:
    """A measure of all of a scenario's dialogues with a counterpart: [n] of those that ended, with
    the first of each that is whole; and its bounds, the others counted too."""
    scenarios: dict[tuple[str, str], list[OutcomeRow]] = {}
    for row in group:
        scenarios.setdefault((row.cluster, row.counterpart), []).append(row)
    whole: dict[int, bool] = {}
    least = most = 0
    for dialogues in scenarios.values():
        won = sum(bool(row.values.get(measure.of)) for row in dialogues)
        missing = sum(row.aborted for row in dialogues)
        least += won >= measure.at_least
        most += won + missing >= measure.at_least
        if not missing:
            whole[id(dialogues[0])] = won >= measure.at_least
    values = [float(whole.get(id(row), np.nan)) for row in group if not row.aborted]
    return np.array(values, np.float64), Bounds(least, most, len(scenarios))
