"""Frozen policies against counterparts, in both seats: who meets whom, and the resulting table.

A cell is one policy against one counterpart: every scenario of the split, every seed, the policy
once in each seat where seats are interchangeable, and else in its own; who opens alternates. Its
unit of statistics is the scenario's cluster, whichever side sat where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.dialogue.agents import Speaker
from ibrl_jax.dialogue.build import at_once, build_hall
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Match, play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Domain, Measure, Role
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.audits import auditor_name, build_audit
from ibrl_jax.evaluation.columns import (
    HELD_OUT,
    IN_SYSTEM,
    SELF_PLAY,
    Column,
    columns_of,
    evaluation_scenarios,
)
from ibrl_jax.evaluation.statistics import (
    Arm,
    StatisticsSettings,
    bootstrap_difference,
    bootstrap_mean,
    compare,
)
from ibrl_jax.models.params import Params
from ibrl_jax.rewards.types import Failed


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


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A frozen policy to be measured. `partners` hold the other seat in its in-system column.

    `params` is what was trained of it; a base under adapters is the cast's.
    """

    label: str
    role: Role | None
    params: Params
    version: int
    partners: tuple[str, ...]
    """Labels of contestants, or names of counterparts (`scripted:...`, `api:...`)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One policy in one column: its dialogues, in which seat the policy sat, and against whom."""

    trajectories: list[Trajectory]
    seats: list[Role]
    columns: list[str]
    planned: int


def evaluate(
    config: ConfigDict,
    cast: Cast,
    contestants: Sequence[Contestant],
    note: Callable[[str], None],
    keep: Callable[[str, str, Sequence[Trajectory]], None],
    partners: Mapping[str, Params] | None = None,
) -> dict[str, Any]:
    """The table, JSON-able. `keep` is given every cell's dialogues.

    `partners` are the policies, by name, that contestants have trained with and that are no rows.

    Raises:
        UserError: a counterpart is unknown or an endpoint cannot be used.
    """
    audit = build_audit(config, cast)
    for contestant in contestants:
        for role in cast.domain.roles:
            cast.load(role, contestant.label, contestant.params)
    partners = partners or {}
    for name, params in partners.items():
        for role in cast.domain.roles:
            cast.load(role, name, params)
    versions = dict.fromkeys(partners, 0) | {c.label: c.version for c in contestants}
    domain = cast.domain
    columns = [c for c in columns_of(config) if c.kind != SELF_PLAY or domain.interchangeable]
    settings = StatisticsSettings(**dict(config.statistics))
    cells: dict[str, dict[str, Cell]] = {}
    for contestant in contestants:
        note(f"evaluating {contestant.label} in {len(columns)} columns")
        cells[contestant.label] = {}
        for column in columns:
            cell = _play_cell(config, cast, versions, contestant, column)
            if cell is not None:
                if audit is not None:
                    if config.evaluation.auditor:
                        note(f"auditing {len(cell.trajectories)} calls against {column.name}")
                    cell = replace(cell, trajectories=audit(cell.trajectories))
                cells[contestant.label][column.name] = cell
                keep(contestant.label, column.name, cell.trajectories)
    held_out = [column.name for column in columns if column.kind == HELD_OUT]
    if held_out:
        columns.insert(0, Column(name="all held-out", kind=HELD_OUT, counterpart=None))
        for row in cells.values():
            if met := [row[name] for name in held_out if name in row]:
                row["all held-out"] = _pooled(met)
    rows = [
        {
            "policy": contestant.label,
            "role": contestant.role,
            "version": contestant.version,
            "cells": {
                column.name: _cell(cast, cells[contestant.label][column.name], settings)
                for column in columns
                if column.name in cells[contestant.label]
            },
        }
        for contestant in contestants
    ]
    scripted = any((c.counterpart or "").startswith("scripted:") for c in columns)
    return {
        "measures": [asdict(measure) for measure in measures_of(domain)],
        "deed": list(domain.deed),
        "remark": domain.remark if scripted else "",
        "auditor": auditor_name(config, cast),
        "columns": [
            {"name": c.name, "kind": c.kind, "counterpart": c.counterpart} for c in columns
        ],
        "rows": rows,
        "comparisons": _comparisons(cast, contestants, columns, cells, settings),
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


def _play_cell(
    config: ConfigDict,
    cast: Cast,
    versions: Mapping[str, int],
    policy: Contestant,
    column: Column,
) -> Cell | None:
    """The dialogues of a cell; None where the policy has no seat in it.

    `versions` are those of the local policies, by name.
    """
    matches, seats = [], []
    roles = cast.domain.roles
    own = _seats(cast.domain, policy, column)
    if not own:
        return None

    def speaker(name: str, role: Role) -> Speaker:
        if name not in versions:
            return cast.named(name, role)
        ref = PolicyRef(id=name, seat="frozen", version=versions[name])
        return cast.local(role, name, ref, config.evaluation.temperature)

    for index, scenario in enumerate(evaluation_scenarios(config, cast.domain)):
        for seed in range(config.evaluation.seeds):
            for seat in own:
                others = {
                    SELF_PLAY: (policy.label,),
                    IN_SYSTEM: policy.partners,
                }.get(column.kind) or (column.counterpart or "",)
                other = others[(index + seed) % len(others)]
                matches.append(
                    Match(
                        stage=("evaluate", policy.label, column.name),
                        draw=f"{scenario.id}.{seed}",
                        rollout=roles.index(seat),
                        scenario=scenario,
                        first=roles[(index + seed) % len(roles)],
                        matchup=frozenset(),
                        speakers={
                            role: speaker(policy.label if role == seat else other, role)
                            for role in roles
                        },
                    )
                )
                seats.append(seat)
    hall = build_hall(
        config,
        cast.domain,
        retries=config.evaluation.retries,
        concurrency=at_once(config),
    )
    played = play(hall, matches)
    if len(played) != len(matches):
        raise RuntimeError(f"{len(played)} dialogues of {len(matches)} asked for")
    aborted = [t for t in played if any(isinstance(r, Failed) for r in t.rewards.values())]
    coverage = 1 - len(aborted) / len(played)
    if coverage < config.rewards.min_coverage:
        failed = next(r for r in aborted[0].rewards.values() if isinstance(r, Failed))
        raise UserError(
            f"only {coverage:.0%} of the dialogues of {policy.label} against {column.name} came to "
            f"an end, less than config.rewards.min_coverage; the first failure: {failed.reason}"
        )
    return Cell(
        trajectories=played,
        seats=seats,
        columns=[column.name] * len(played),
        planned=len(matches),
    )


def _seats(domain: Domain, policy: Contestant, column: Column) -> tuple[Role, ...]:
    """Where a policy sits in a column.

    Where seats are not interchangeable a policy has its own, and the start, which has none, the
    first one that the column's counterpart leaves it.
    """
    if domain.interchangeable:
        return domain.roles
    free = [
        role
        for role in domain.roles
        if all(_can_hold(domain, column.counterpart, o) for o in domain.roles if o != role)
    ]
    return tuple(free[:1]) if policy.role is None else tuple({policy.role} & {*free})


def _can_hold(domain: Domain, name: str | None, role: Role) -> bool:
    """Whether a counterpart can hold a role's seat; a policy (None) was trained to."""
    kind, _, which = (name or "").partition(":")
    if kind == "scripted":
        return which in domain.families[role]
    form = which.partition(":")[2]
    try:
        return not form or bool(domain.adapter(form, role))
    except UserError:
        return False


def _pooled(cells: Sequence[Cell]) -> Cell:
    return Cell(
        trajectories=[t for cell in cells for t in cell.trajectories],
        seats=[seat for cell in cells for seat in cell.seats],
        columns=[name for cell in cells for name in cell.columns],
        planned=sum(cell.planned for cell in cells),
    )


def _cell(cast: Cast, cell: Cell, settings: StatisticsSettings) -> dict[str, Any]:
    several = len(set(cell.columns)) > 1  # then a scenario counts anew with each counterpart
    results = [
        (
            replace(t.scenario, cluster=f"{t.scenario.cluster}@{c}") if several else t.scenario,
            t.outcome,
            seat,
        )
        for t, seat, c in zip(cell.trajectories, cell.seats, cell.columns, strict=True)
    ]
    values, clusters = _values(cast, cell)
    row: dict[str, Any] = dict(cast.domain.tabulate(results, cell.planned))
    row["clusters"] = len(set(clusters.tolist()))
    row["retries"] = sum(sum(t.retries.values()) for t in cell.trajectories)
    for name in compared(cast.domain):
        interval = bootstrap_mean(values[name], clusters, settings)
        row.setdefault(name, interval.mean)
        row[f"{name}_ci"] = None if interval.low is None else [interval.low, interval.high]
    return row


def _values(cast: Cast, cell: Cell) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Each measure's value a finished dialogue [n], and the dialogues' clusters [n].

    A dialogue in which a turn was refused and sampled again counts 0 in the `first_try` measures:
    without resampling it would have ended there, and the others would have gone just the same.
    """
    values: dict[str, list[float]] = {name: [] for name in compared(cast.domain)}
    clusters = []
    for t, seat in zip(cell.trajectories, cell.seats, strict=True):
        measures = cast.domain.measures(t.scenario, t.outcome, seat)
        if measures is None:
            continue
        clusters.append(t.scenario.cluster)
        first = not any(t.retries.values())
        for m in cast.domain.measured:
            if m.compared:
                values[m.key].append(measures[m.key])
            if m.compared and m.first_try:
                values[f"first_try_{m.key}"].append(measures[m.key] * first)
    arrays = {name: np.array(column, np.float64) for name, column in values.items()}
    return arrays, np.array(clusters, dtype=str)


def _comparisons(
    cast: Cast,
    contestants: Sequence[Contestant],
    columns: Sequence[Column],
    cells: Mapping[str, Mapping[str, Cell]],
    settings: StatisticsSettings,
) -> list[dict[str, Any]]:
    """Each policy against the first one (the start), a column and measure at a time.

    Differences with a bootstrap interval; for the success also the odds ratio of *failing* by a
    clustered GEE, Holm-corrected over the policies of a column.
    """
    reference, *rest = contestants
    names = compared(cast.domain)
    success = names[0]
    rows = []
    for column in columns:
        others = [c for c in rest if column.name in cells[c.label]]
        if column.name not in cells[reference.label] or not others:
            continue
        values = {c.label: _values(cast, cells[c.label][column.name]) for c in (reference, *others)}
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
