"""A small study, and run folders and evaluations as the trainer would have left them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ibrl_jax.config import to_dict
from ibrl_jax.studies.declare import Column, Design, Measured, Printed, Reference, Row, Run, Study
from ibrl_jax.studies.figures import bars
from ibrl_jax.studies.odds import odds_of_failing
from ibrl_jax.studies.plan import Plan, PlannedEvaluation, PlannedRun, plan
from ibrl_jax.studies.tables import printed_table, result_table, seed_table
from ibrl_jax.studies.training import curve_table, what_runs_had
from ibrl_jax.studies.verdict import verdict
from ibrl_jax.trainer.run import write_json

SMOKE = "configs/dond/smoke.py"
SHORT = {"iterations": 4, "run.snapshots_every": 2}

DESIGN = Design(
    runs=(
        Run(
            label="pair",
            name="pair",
            file=SMOKE,
            changes=SHORT,
            rows=(
                Row(label="SFT start", policy="start"),
                Row(label="first", policy="agent0", printed="theirs"),
                Row(label="second", policy="agent1"),
            ),
        ),
        Run(
            label="alone",
            name="alone",
            file=SMOKE,
            changes=SHORT
            | {"roles.agent1.train": False, "roles.agent1.counterpart": ("frozen:start",)},
            rows=(
                Row(label="alone", policy="agent0"),
                Row(label="alone halfway", policy="agent0", at=0.5),
            ),
        ),
    ),
    references=(Reference(label="fair", policy="scripted:fair"),),
    columns=(Column(name="A", counterparts=("scripted:lexi", "scripted:mirror"), printed="vs X"),),
    against="pair",
    measures=(
        Measured(key="agreement", title="Agreement", form="percent"),
        Measured(key="own_utility", title="Own utility", form="share"),
        Measured(key="expected_utility", title="Expected utility", form="share"),
    ),
    judged=("agreement", "expected_utility"),
)

STUDY = Study(
    name="tiny",
    title="A tiny study",
    about="Does it hold together?",
    designs={"mini": DESIGN},
    seeds=(0, 1),
    printed=Printed(
        title="Theirs:",
        rows={"theirs": {"vs X": {"agreement": 90.0, "own_utility": 0.5}}},
        percent=("agreement",),
    ),
    parts={
        "Results": result_table,
        "Figure": bars,
        "Verdict": verdict,
        "Printed": printed_table,
        "Comparisons": odds_of_failing,
        "Seeds": seed_table,
        "Curves": curve_table,
        "Training": what_runs_had,
    },
)


def planned(root: Path, seeds: Sequence[int] = (0, 1), design: Design = DESIGN) -> Plan:
    few = ("--config.statistics.resamples=400", "--config.statistics.permutations=100")
    return plan(design, seeds, [f"--config.run.root={root}", *few])


def finish(run: PlannedRun, reward: Callable[[int], float] = lambda k: k / 10) -> None:
    """Leave what a run leaves at its end."""
    folder, config = run.folder, run.config
    write_json(folder.path / "config.json", to_dict(config))
    learners = [role for role, settings in config.roles.items() if settings.train]
    for name in ("start", *learners):
        write_json(folder.policy(name) / "policy.json", {"updates": 4})
    with folder.metrics.open("w") as out:
        for k in range(config.iterations):
            roles = {role: {"reward": reward(k), "updated": role in learners} for role in learners}
            row = {"iteration": k, "dialogues": {"count": 8}, "seconds": {"total": 0.5}}
            out.write(json.dumps({**row, "roles": roles}) + "\n")
    write_json(folder.path / "summary.json", {"iterations": config.iterations})


Chance = Callable[[str, str, int], float]
"""The share of agreements of a policy (as its evaluation calls it) in a column at a seed."""

FIXED = ("policy", "column", "kind", "counterpart", "seat", "first", "scenario", "cluster")
FIXED += ("seed", "end_reason", "aborted", "retries")
MEASURES = ("agreement", "expected_utility", "own_utility")


def evaluate(
    one: PlannedEvaluation,
    chance: Chance,
    scenarios: int = 50,
    kinds: Mapping[str, str] = {},
    columns: Sequence[str] = ("A", "in-system", "self-play"),
) -> None:
    """Leave an evaluation: in each cell the first `chance` of all scenarios have a deal at .6."""
    rows: list[list[Any]] = []
    tables = []
    for policy in one.policies:
        cells = {}
        for column in columns:
            if column == "in-system" and one.run is None:
                continue
            kind = kinds.get(column, "held-out" if column == "A" else column)
            deals = round(chance(policy, column, one.seed) * scenarios)
            for s in range(scenarios):
                agreed = s < deals
                values = [float(agreed), 0.6 * agreed, 0.6 if agreed else ""]
                told = [policy, column, kind, "x", "agent0", "agent0", f"s{s}", f"s{s}"]
                rows.append([*told, 0, "deal" if agreed else "horizon", 0, 0, *values])
            cells[column] = {"n": scenarios, "agreement": deals / scenarios}
        tables.append({"policy": policy, "cells": cells})
    one.folder.mkdir(parents=True, exist_ok=True)
    with (one.folder / "outcomes.csv").open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([[*FIXED, *MEASURES], *rows])
    write_json(one.folder / "evaluation.json", {"rows": tables, "leakage": {"seen": 1}})
