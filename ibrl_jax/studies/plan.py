"""What a study has to do: its starts, runs and evaluations as jobs, and which of them are done.

```
<run.root>/
  starts/<key>/                       the supervised starts, which runs share
  starting/<key>/seed<k>/log.txt      what was said while they were made
  <run's name>-<hash>/seed<k>/        a run folder like any other
  evaluations/<what>-<hash>/seed<k>/  evaluation.json, outcomes.csv, log.txt
```

Folders are keyed by all that shapes what is in them: settings, what lies in the files that they
name, and `RESULTS_VERSION`. So a study finds what another one has made, and a changed setting or
file never meets what an earlier one left.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.audits import audit_key
from ibrl_jax.jobs.processes import Job
from ibrl_jax.studies.declare import Design, Reference, Row, Run, options, resolved
from ibrl_jax.trainer.contents import contents, flat
from ibrl_jax.trainer.finished import is_finished, is_whole
from ibrl_jax.trainer.run import RunFolder, as_json, may_differ, named_by

ROOT = "runs/studies"
"""Where the runs of studies lie, unless `run.root` says otherwise."""

RESULTS_VERSION = 3
"""Raised by hand where the code changes what the same settings lead to (other random numbers, a
rule of the game, a loss): every study then begins anew. What only reads, tells or speeds up leaves
it alone."""

START = "frozen:start"
"""In a column: the start of the run that is measured."""

_OURS = ("name", "seed", "evaluation.policies", "evaluation.counterparts")
"""Settings that the study itself makes."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run at a seed. `overrides` are the options that make its config of the file."""

    run: Run
    seed: int
    file: str
    overrides: tuple[str, ...]
    config: ConfigDict
    folder: RunFolder
    job: Job

    def policy(self, row: Row) -> str:
        """The name of a row's policy in an evaluation.

        Raises:
            UserError: the run writes no snapshot at that iteration.
        """
        name = f"frozen:{self.folder.path}:{row.policy}"
        if row.at == 1.0 or row.policy == "start":
            return name
        iteration = round(row.at * self.config.iterations, 6)
        every = self.config.run.snapshots_every
        if not every or iteration % every:
            raise UserError(
                f"the row {row.label!r} is the policy after {iteration:g} of "
                f"{self.config.iterations} iterations, and config.run.snapshots_every is {every}; "
                "it must divide the first number"
            )
        return f"{name}@{int(iteration)}"


@dataclass(frozen=True, kw_only=True)
class PlannedEvaluation:
    """An evaluation at a seed: of a run's rows, or of the references (`run` is None).

    `policies`: who is measured, by what it is called there. `rows`: the labels of those.
    """

    run: Run | None
    seed: int
    policies: Mapping[str, str]
    rows: Mapping[str, str]
    config: ConfigDict
    folder: Path
    job: Job


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All of a study's jobs, in the order in which they should be done."""

    jobs: tuple[Job, ...]
    runs: tuple[PlannedRun, ...]
    evaluations: tuple[PlannedEvaluation, ...]
    settings: ConfigDict
    """A config of the study's, for what is no run's: the statistics, the root of its folders."""
    missing: frozenset[str]
    """Environment variables that are not set; without them nothing may begin."""


def plan(design: Design, seeds: Sequence[int], overrides: Sequence[str] = ()) -> Plan:
    """The jobs of a design. `overrides` (`--config.key=value`) change every run and evaluation.

    Raises:
        UserError: a config cannot be used, or a folder holds another run.
    """
    for option in overrides:
        key = option.removeprefix("--config.").partition("=")[0]
        if key in _OURS:
            raise UserError(
                f"a study says itself what config.{key} is; leave it out"
                + ("" if key != "seed" else ", and name the seeds by --seeds")
            )
    missing: set[str] = set()
    jobs: list[Job] = []
    runs: list[PlannedRun] = []
    evaluations: list[PlannedEvaluation] = []
    for seed in seeds:
        here = [_run(run, seed, overrides, missing) for run in design.runs]
        starts = _starts(here)
        ours = []
        for planned in here:
            after = tuple(s.name for s, users in starts if planned in users)
            ours.append(_after(planned, after))
        jobs += [*(job for job, _ in starts), *(planned.job for planned in ours)]
        runs += ours
        if design.columns or design.in_system or design.self_play:
            found = [_evaluation(design, planned, overrides, missing) for planned in ours]
            found = [evaluation for evaluation in found if evaluation.policies]
            if design.references:
                lead = next(p for p in ours if p.run.label == design.against)
                found.append(
                    _evaluation(design, lead, overrides, missing, references=design.references)
                )
            evaluations += found
            jobs += [evaluation.job for evaluation in found]
    return Plan(
        jobs=tuple(jobs),
        runs=tuple(runs),
        evaluations=tuple(evaluations),
        settings=runs[0].config if runs else _plain(overrides),
        missing=frozenset(missing),
    )


def _plain(overrides: Sequence[str]) -> ConfigDict:
    """The settings of a study that trains nothing."""
    config = configs.default_config()
    config.run.root = ROOT
    return configs.override(config, overrides)


def _run(run: Run, seed: int, overrides: Sequence[str], missing: set[str]) -> PlannedRun:
    changes = options({"run.root": ROOT} | resolved(run.changes, missing))
    given = [*changes, *overrides]
    config = configs.load(run.file, given)
    own = (f"--config.name={run.name}-{_key(shaping(config))}", f"--config.seed={seed}")
    full = (*given, *own)
    config = configs.override(config, own)
    folder = RunFolder.of(config)
    folder.check(config)
    command = (sys.executable, "-m", "ibrl_jax.train", f"--config={run.file}", *full)
    return PlannedRun(
        run=run,
        seed=seed,
        file=run.file,
        overrides=full,
        config=config,
        folder=folder,
        job=Job(
            name=f"{run.name} seed{seed}",
            command=command,
            folder=folder.path,
            total=config.iterations,
            finished=is_finished(folder, config, evaluate=False),
            kind="run",
        ),
    )


def shaping(config: ConfigDict) -> dict[str, Any]:
    """All settings that shape a run but its seed, by key, and what lies in files that they name.

    How often policies are kept counts too: a study that needs snapshots must not find a run that
    has none.
    """
    values = flat(as_json(config))
    apart = ("name", "seed", *(key for key in may_differ(config) if key != "iterations"))
    kept = {key: value for key, value in values.items() if not _under(key, apart)}
    kept["run.snapshots_every"] = values["run.snapshots_every"]
    if files := contents(kept):
        kept["contents"] = files
    kept["results"] = RESULTS_VERSION
    return kept


def _under(key: str, names: Sequence[str]) -> bool:
    """Whether a setting, or a group that it is in, is one of these."""
    parts = key.split(".")
    return any(named_by(".".join(parts[:n]), names) for n in range(1, len(parts) + 1))


def _key(values: Any) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _starts(runs: Sequence[PlannedRun]) -> list[tuple[Job, list[PlannedRun]]]:
    """A job for each start that runs of a seed share, and those runs.

    A run keeps its own copy of its start, so a start is done with when all its runs have theirs.
    What two runs must agree in to share one is told by settings; the trainer has the last word.
    """
    groups: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        config = planned.config
        if config.policy.start != "sft":
            continue
        values = as_json(config)
        names = ("domain", "policy", "sft", "lora", config.domain)
        made_of = {name: values[name] for name in names}
        made_of["room"] = config.rollout.max_view_tokens
        made_of["root"] = config.run.root
        groups.setdefault(_key(made_of), []).append(planned)
    found = []
    for key, users in groups.items():
        first = users[0]
        name = f"start seed{first.seed}" if len(groups) == 1 else f"start {key} seed{first.seed}"
        command = (sys.executable, "-m", "ibrl_jax.sft", f"--config={first.file}")
        job = Job(
            name=name,
            command=(*command, *first.overrides),
            folder=Path(first.config.run.root) / "starting" / key / f"seed{first.seed}",
            total=0,
            finished=all((u.folder.policy("start") / "policy.json").is_file() for u in users),
            kind="start",
        )
        found.append((job, users))
    return found


def _after(planned: PlannedRun, names: tuple[str, ...]) -> PlannedRun:
    return replace(planned, job=replace(planned.job, after=names))


def _evaluation(
    design: Design,
    planned: PlannedRun,
    overrides: Sequence[str],
    missing: set[str],
    *,
    references: Sequence[Reference] = (),
) -> PlannedEvaluation:
    """The evaluation of a run's rows; with `references`, of these by the same settings."""
    run, seed = planned.run, planned.seed
    if references:
        policies = {reference.label: reference.policy for reference in references}
        rows = {label: label for label in policies}
    else:
        policies = {row.measured_as: planned.policy(row) for row in run.rows}
        rows = {row.measured_as: row.label for row in run.rows}
    own = resolved(design.evaluation, missing) | {
        "evaluation.policies": tuple(f"{label}={name}" for label, name in policies.items()),
        "evaluation.counterparts": tuple(
            f"{column.name}={'+'.join(own_start(column.counterparts, planned))}"
            for column in design.columns
        ),
        "evaluation.in_system": design.in_system and not references,
        "evaluation.self_play": design.self_play,
    }
    changes = [*options(own), *overrides]
    config = configs.override(planned.config.copy_and_resolve_references(), changes)
    settings = as_json(config)["evaluation"]
    settings["policies"] = [(r.label, r.policy) for r in references] or list(policies)
    named = planned.policy(Row(label="start", policy="start"))
    settings["counterparts"] = [text.replace(named, START) for text in settings["counterparts"]]
    shaped_by = {"run": shaping(config), "evaluation": settings}
    if audits := audit_key(config):
        shaped_by["audits"] = audits
    of_runs = any(START in column.counterparts for column in design.columns)
    what = "references" if references else run.name
    folder = Path(config.run.root) / "evaluations" / f"{what}-{_key(shaped_by)}" / f"seed{seed}"
    command = (sys.executable, "-m", "ibrl_jax.evaluate", f"--config={planned.file}")
    return PlannedEvaluation(
        run=None if references else run,
        seed=seed,
        policies=policies,
        rows=rows,
        config=config,
        folder=folder,
        job=Job(
            name=f"evaluation of {what} seed{seed}",
            command=(*command, *planned.overrides, *changes, f"--to={folder}"),
            folder=folder,
            total=0,
            finished=is_whole(folder)
            and (bool(references and not of_runs) or planned.job.finished),
            after=() if references and not of_runs else (planned.job.name,),
            kind="evaluation",
        ),
    )


def own_start(names: Sequence[str], planned: PlannedRun) -> list[str]:
    """A column's counterparts for a run: `frozen:start` is its own."""
    start = planned.policy(Row(label="start", policy="start"))
    return [start if name == START else name for name in names]
