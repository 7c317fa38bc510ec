"""The table of an evaluation: each cell's measures with intervals, and the comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.domains.base import Domain, Measure
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.evaluation.audits import auditor_name
from ibrl_jax.evaluation.cells import Cell, Contestant, Played, pooled
from ibrl_jax.evaluation.columns import HELD_OUT, Column
from ibrl_jax.evaluation.statistics import (
    Arm,
    StatisticsSettings,
    bootstrap_difference,
    bootstrap_mean,
    compare,
)
from ibrl_jax.names import ALL_HELD_OUT, kind_of

Cells = dict[str, dict[str, Cell]]
"""By the policy's label, then by the column's name."""


def measures_of(domain: Domain) -> list[Measure]:
    """All that a table of the domain holds: its own measures, and some at first try."""
    first = [
        replace(
            m,
            key=f"first_try_{m.key}",
            title=f"{m.title} at first try",
            short=f"{m.short} at first try",
            shown=False,
            ranked=False,
            first_try=False,
        )
        for m in domain.measured
        if m.first_try
    ]
    return [*domain.measured, *first]


def compared(domain: Domain) -> tuple[str, ...]:
    """The keys of what has intervals and is compared, the success first.

    `first_try`: as if no turn were ever sampled again.
    """
    return tuple(m.key for m in measures_of(domain) if m.compared)


def values_of(domain: Domain, played: Played) -> dict[str, float] | None:
    """One dialogue's value of every compared measure; None if it was aborted.

    One in which a turn was refused and sampled again counts 0 in the `first_try` measures: without
    resampling it would have ended there, and the others would have gone just the same.
    """
    plan = played.plan
    found = domain.measures(plan.scenario, played.outcome, plan.seat)
    if found is None:
        return None
    values = {m.key: float(found[m.key]) for m in domain.measured if m.compared}
    for m in domain.measured:
        if m.compared and m.first_try:
            values[f"first_try_{m.key}"] = values[m.key] * (not played.retries)
    return values


def table_of(
    config: ConfigDict,
    cast: Cast,
    contestants: Sequence[Contestant],
    columns: Sequence[Column],
    cells: Mapping[str, Mapping[str, Cell]],
) -> dict[str, Any]:
    """The table, JSON-able; `evaluation.reference` is empty or the label of a contestant."""
    domain, settings = cast.domain, StatisticsSettings(**dict(config.statistics))
    held_out = [column.name for column in columns if column.kind == HELD_OUT]
    columns = list(columns)
    cells = {label: dict(row) for label, row in cells.items()}
    if held_out:
        columns.insert(0, Column(name=ALL_HELD_OUT, kind=HELD_OUT))
        for row in cells.values():
            if met := [row[name] for name in held_out if name in row]:
                row[ALL_HELD_OUT] = pooled(met)
    rows = [
        {
            "policy": contestant.label,
            "role": contestant.role,
            "version": contestant.version,
            "cells": {
                column.name: _cell(domain, cells[contestant.label][column.name], settings)
                for column in columns
                if column.name in cells[contestant.label]
            },
        }
        for contestant in contestants
    ]
    names = [name for column in columns for name in column.counterparts]
    scripted = any(kind_of(name) == "scripted" for name in (*names, *(c.name for c in contestants)))
    return {
        "measures": [asdict(measure) for measure in measures_of(domain)],
        "deed": list(domain.deed),
        "remark": domain.remark if scripted else "",
        "auditor": auditor_name(config, cast),
        "columns": [
            {"name": c.name, "kind": c.kind, "counterpart": c.counterpart} for c in columns
        ],
        "rows": rows,
        "comparisons": _comparisons(
            domain, _reference(config, contestants), contestants, columns, cells, settings
        ),
        "endpoints": {
            name: endpoint.ledger.summary()
            for name, endpoint in cast.endpoints.items()
            if isinstance(endpoint, Endpoint)
        },
        "settings": {
            "evaluation": config.evaluation.to_dict(),
            "statistics": config.statistics.to_dict(),
            "domain": config[config.domain].to_dict(),
            "group": "a draw of a scenario, by its id",
            "advantage": config.advantage.to_dict(),
            "seed": config.seed,
            "in_system": {c.label: list(c.partners) for c in contestants},
        },
    }


def _reference(config: ConfigDict, contestants: Sequence[Contestant]) -> Contestant:
    named = config.evaluation.reference
    return next(c for c in contestants if named in ("", c.label))


def _cell(domain: Domain, cell: Cell, settings: StatisticsSettings) -> dict[str, Any]:
    several = len(set(cell.against)) > 1  # then a scenario counts anew with each counterpart
    results = []
    for p, against in zip(cell.played, cell.against, strict=True):
        scenario = p.plan.scenario
        if several:
            scenario = replace(scenario, cluster=f"{scenario.cluster}@{against}")
        results.append((scenario, p.outcome, p.plan.seat))
    values, clusters = _values(domain, cell)
    row: dict[str, Any] = dict(domain.tabulate(results, cell.planned))
    success = compared(domain)[0]
    row["bounds"] = {success: worst_case(values[success], cell.planned), **row.get("bounds", {})}
    row["clusters"] = len(set(clusters.tolist()))
    row["retries"] = sum(p.retries for p in cell.played)
    for name in compared(domain):
        interval = bootstrap_mean(values[name], clusters, settings)
        row.setdefault(name, interval.mean)
        row[f"{name}_ci"] = None if interval.low is None else [interval.low, interval.high]
    return row


def worst_case(values: np.ndarray, planned: int) -> list[float] | None:
    """The least and the greatest mean of `values` [n] in [0, 1], were what is missing of `planned`
    all 0, or all 1; None where nothing was planned."""
    if not planned:
        return None
    missing = planned - values.size
    return [float(values.sum()) / planned, float(values.sum() + missing) / planned]


def _values(domain: Domain, cell: Cell) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Each measure's value a finished dialogue [n], and the dialogues' clusters [n]."""
    finished = [(p, v) for p in cell.played if (v := values_of(domain, p)) is not None]
    arrays = {
        name: np.array([v[name] for _, v in finished], np.float64) for name in compared(domain)
    }
    return arrays, np.array([p.plan.scenario.cluster for p, _ in finished], dtype=str)


def _comparisons(
    domain: Domain,
    reference: Contestant,
    contestants: Sequence[Contestant],
    columns: Sequence[Column],
    cells: Mapping[str, Mapping[str, Cell]],
    settings: StatisticsSettings,
) -> list[dict[str, Any]]:
    """Each policy against the reference, a column and measure at a time.

    Differences with a bootstrap interval; for the success also the odds ratio of *failing* by a
    clustered GEE, Holm-corrected over the policies of a column.
    """
    rest = [c for c in contestants if c is not reference]
    names = compared(domain)
    success = names[0]
    rows = []
    for column in columns:
        others = [c for c in rest if column.name in cells[c.label]]
        if column.name not in cells[reference.label] or not others:
            continue
        values = {
            c.label: _values(domain, cells[c.label][column.name]) for c in (reference, *others)
        }
        theirs, their_clusters = values[reference.label]
        arms = {
            label: Arm(name=label, fails=1.0 - found[success], clusters=clusters)
            for label, (found, clusters) in values.items()
        }
        ratios = compare(arms[reference.label], [arms[c.label] for c in others], settings)
        for contestant, ratio in zip(others, ratios, strict=True):
            mine, my_clusters = values[contestant.label]
            for name in names:
                difference = bootstrap_difference(
                    (mine[name], my_clusters), (theirs[name], their_clusters), settings
                )
                rows.append(
                    {
                        **(ratio.as_json() if name == success else {}),
                        "note": difference.note or ratio.note,
                        "policy": contestant.label,
                        "reference": reference.label,
                        "column": column.name,
                        "measure": name,
                        "difference": difference.mean,
                        "ci": None if difference.low is None else [difference.low, difference.high],
                    }
                )
    return rows
