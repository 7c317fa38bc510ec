"""Each policy against each: the first in the domain's first seat, the second in the other.

An entry has the success and the first policy's value, each with a bootstrap over clusters.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain, Measure
from ibrl_jax.evaluation.cells import Cell, Contestant
from ibrl_jax.evaluation.columns import CROSS_PLAY, Column
from ibrl_jax.evaluation.statistics import StatisticsSettings, bootstrap_mean
from ibrl_jax.evaluation.table import values_of

Crossed = Mapping[tuple[str, str], Cell]
"""By the labels of who sat first and second."""


def column_of(second: Contestant) -> Column:
    """The column in which everybody meets one policy."""
    return Column(name=second.label, kind=CROSS_PLAY, counterparts=(second.name,))


def matrix_of(
    config: ConfigDict, domain: Domain, policies: Sequence[Contestant], crossed: Crossed
) -> dict[str, Any]:
    """The matrix, JSON-able: who sat first and second, and an entry each pair that was played.

    `value` is the first compared measure after the success (Deal-or-No-Deal: the expected utility);
    where seats are interchangeable the second policy's is there too.
    """
    settings = StatisticsSettings(**dict(config.statistics))
    success, value = measures(domain)
    labels = [policy.label for policy in policies]
    return {
        "first_seat": domain.roles[0],
        "success": {"key": success.key, "title": success.title, "form": success.form},
        "value": {"key": value.key, "title": value.title, "form": value.form},
        "first": [label for label in labels if any(a == label for a, _ in crossed)],
        "second": [label for label in labels if any(b == label for _, b in crossed)],
        "entries": [
            {"first": first, "second": second, **_entry(domain, cell, settings)}
            for (first, second), cell in crossed.items()
        ],
        "statistics": config.statistics.to_dict(),
    }


def as_csv(matrix: Mapping[str, Any]) -> str:
    """The entries, a row each; intervals take two columns."""
    text = io.StringIO()
    rows = [_flat(entry) for entry in matrix["entries"]]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def measures(domain: Domain) -> tuple[Measure, Measure]:
    """The success, and what stands for a policy's value."""
    found = [measure for measure in domain.measured if measure.compared]
    return found[0], found[min(1, len(found) - 1)]


def _entry(domain: Domain, cell: Cell, settings: StatisticsSettings) -> dict[str, Any]:
    success, value = measures(domain)
    second = domain.roles[1]
    found: dict[str, list[float]] = {"success": [], "value": []}
    if domain.interchangeable:
        found["value_second"] = []
    clusters = []
    for p in cell.played:
        mine = values_of(domain, p)
        if mine is None:
            continue
        clusters.append(p.plan.scenario.cluster)
        found["success"].append(mine[success.key])
        found["value"].append(mine[value.key])
        if domain.interchangeable:
            theirs = values_of(domain, replace(p, plan=replace(p.plan, seat=second)))
            assert theirs is not None
            found["value_second"].append(theirs[value.key])
    entry: dict[str, Any] = {
        "planned": cell.planned,
        "n": len(clusters),
        "clusters": len(set(clusters)),
    }
    for name, numbers in found.items():
        interval = bootstrap_mean(np.array(numbers), np.array(clusters, dtype=str), settings)
        low, high = interval.low, interval.high
        entry[name] = interval.mean
        entry[f"{name}_ci"] = None if low is None else [low, high]
    return entry


def _flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if key.endswith("_ci"):
            name = key.removesuffix("_ci")
            flat[f"{name}_low"], flat[f"{name}_high"] = value or (None, None)
        else:
            flat[key] = value
    return flat
