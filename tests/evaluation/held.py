"""An evaluation as commands hold it, of contestants that stand for policies, and what it kept."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.domains.base import Outcome, Role, Scenario, Turn
from ibrl_jax.evaluation.cells import Contestant, Local
from ibrl_jax.evaluation.columns import columns_of, evaluation_scenarios
from ibrl_jax.evaluation.matches import Games, playable
from ibrl_jax.evaluation.store import Store, cell_file
from ibrl_jax.evaluation.table import table_of


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """A line of a cell's file, read back."""

    scenario: Scenario
    draw: str
    rollout: int
    first: Role
    matchup: frozenset[Role]
    speakers: Mapping[Role, str]
    turns: tuple[Turn, ...]
    outcome: Outcome


Kept = dict[tuple[str, str], list[Dialogue]]
"""What is in each cell's file, by policy and column."""


def local_policy(label: str, role: str | None, version: int, *partners: str) -> Contestant:
    """A contestant that is a local policy, `frozen:<label>`."""
    return Contestant(
        label=label, name=f"frozen:{label}", role=role, version=version, partners=partners
    )


def hold(
    config: ConfigDict, cast: Cast, rows: Sequence[Contestant], params: Mapping[str, Any]
) -> tuple[dict[str, Any], Kept]:
    """The table and the dialogues; `params` are what a cast holds of each policy, by label."""
    known = {row.label: row for row in rows}
    locals_ = {
        f"frozen:{label}": Local(
            id=label,
            role=known[label].role if label in known else None,
            version=known[label].version if label in known else rows[0].version,
            fingerprint=label,
            params=partial(_same, values),
        )
        for label, values in params.items()
    }
    columns = playable(cast, columns_of(config))
    scenarios = {s.id: s for s in evaluation_scenarios(config, cast.domain)}
    with TemporaryDirectory() as folder:
        games = Games(config, cast, locals_, Store(Path(folder), say_nothing), say_nothing)
        cells = games.cells(rows, columns)
        kept = {
            (label, name): [
                _read(line, scenarios)
                for line in (Path(folder) / cell_file(label, name)).read_text().splitlines()
            ]
            for label, found in cells.items()
            for name in found
        }
    return table_of(config, cast, rows, columns, cells), kept


def _read(line: str, scenarios: Mapping[str, Scenario]) -> Dialogue:
    row = json.loads(line)
    return Dialogue(
        scenario=scenarios[row["scenario"]["id"]],
        **{key: row[key] for key in ("draw", "rollout", "first", "speakers")},
        matchup=frozenset(row["matchup"]),
        turns=tuple(Turn(**{**turn, "flags": tuple(turn["flags"])}) for turn in row["turns"]),
        outcome=Outcome(**{**row["outcome"], "joint": tuple(row["outcome"]["joint"])}),
    )


def _same(values: Any) -> Any:
    return values


def say_nothing(note: str) -> None:
    pass
