"""`make table2` and the like: everything that one table or figure takes, and then the table.

    python -m ibrl_jax.study --study=table2 --scale=mini --seeds=0,1,2,3,4 --jobs=2

What is finished is used as it is, and what was stopped goes on. `--plan` says what there is to do
and where, and begins nothing. `--config.key=value` changes every run and evaluation. `--to` is
where the table goes; without it, a folder whose name says what was asked for otherwise than the
study does. Exit code 2, after whatever there is was laid out, if a job failed.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError
from ibrl_jax.host import cores
from ibrl_jax.jobs.processes import Job
from ibrl_jax.jobs.queue import Ended, run_jobs, seeds_of, shares
from ibrl_jax.reporting.progress import duration
from ibrl_jax.settings import ROLES
from ibrl_jax.studies.declare import Study, need
from ibrl_jax.studies.pages import coverage, headline, write_study
from ibrl_jax.studies.plan import Plan, plan
from ibrl_jax.studies.results import collect
from ibrl_jax.trainer.contents import PATHS

STUDIES = Path("experiments")

_LONGEST = 80
"""Characters of what is told in a folder's name; more, or a path, is told by a hash."""
_PLAIN = re.compile(r"[\w.,=+-]+")


def main(argv: Sequence[str], console: Console) -> None:
    known = ("study", "scale", "seeds", "jobs", "to", "plan")
    options = Options([o for o in argv if o != "--"], known)
    study = load_study(options.need("study", "table2"))
    scale = options.get("scale", "mini")
    if scale not in study.designs:
        scales = ", ".join(study.designs)
        raise UserError(f"--scale is {scale!r}; {study.name} has {scales}")
    design = study.designs[scale]
    usual = design.seeds or study.seeds
    seeds = tuple(seeds_of(options.get("seeds", ",".join(map(str, usual)))))
    planned = plan(design, seeds, options.overrides)
    if options.flag("plan"):
        for line in told(planned):
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    need(set(planned.missing), study.name)
    check_inputs(planned)
    at_once = options.number("jobs", max(1, min(cores(), len(planned.jobs))))
    shares(at_once)
    root = Path(planned.settings.run.root)
    changed = otherwise(seeds if set(seeds) != set(usual) else (), options.overrides)
    to = Path(options.get("to", str(root / "-".join([study.name, scale, *changed]))))
    command = shlex.join(["python", "-m", "ibrl_jax.study", *(o for o in argv if o != "--")])
    with log_of(to / "log.txt", command) as keep:
        ended = run_jobs(planned.jobs, at_once, console, keep)
        keep(_sum(ended))
        failed = [e.job.name for e in ended if e.ending == "failed"]
        stopped = [e.job.name for e in ended if e.ending == "stopped"]
        if stopped or (_not_done(ended) and not failed):  # Ctrl-C, maybe between two jobs
            raise KeyboardInterrupt(
                f"stopped with {', '.join(stopped) or 'some jobs'} not finished; "
                "the same command goes on from here"
            )
        missing = [f"{e.job.name}: {e.ending}; its log is {e.job.log}" for e in _not_done(ended)]
        results = collect(study, scale, seeds, planned, missing)
        pieces = write_study(results, to, command)
        found = coverage(results)
        keep(f"{found['dialogues']:,} dialogues laid out in {to / study.name}.md")
    first = headline(results, list(pieces.values()))
    console.print(first, highlight=False, markup=False, soft_wrap=True)
    sentence = f"{study.title}: {to / study.name}.md, .csv, .json"
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if missing:
        raise UserError(
            f"{len(missing)} of {len(ended)} jobs are not done ({', '.join(failed)} failed), so "
            f"{to / study.name}.md holds {found['evaluations']} of "
            f"{found['evaluations_planned']} evaluations; the same command goes on with the others"
        )


def otherwise(seeds: Sequence[int], overrides: Sequence[str]) -> list[str]:
    """What is asked for otherwise than a study says, for the name of its page's folder.

    `seeds0-1`, `iterations=50`; what is long or not plain by six digits of a hash. What a run
    writes and where (`run.*`) is not part of it.

    Args:
        seeds: those that are not the study's own; empty if they are.
    """
    parts = (option.removeprefix("--config.").partition("=") for option in overrides)
    changes = {key: value for key, _, value in parts if not key.startswith("run.")}
    told = [f"seeds{'-'.join(map(str, sorted(seeds)))}"] if seeds else []
    told += [f"{key}={value}" for key, value in sorted(changes.items())]
    text = "-".join(told)
    if len(text) > _LONGEST or not _PLAIN.fullmatch(text):
        told = [hashlib.sha256(text.encode()).hexdigest()[:6]] if text else []
    return told


def load_study(name: str) -> Study:
    """The `STUDY` of a file in experiments/.

    Raises:
        UserError: there is no such file, or it declares no study.
    """
    file = STUDIES / f"{name}.py"
    if not name.isidentifier() or not file.is_file():
        there = sorted(f.stem for f in STUDIES.glob("*.py") if "STUDY" in f.read_text())
        raise UserError(
            f"there is no study {name!r}; experiments/ holds {', '.join(there) or 'none here'}"
        )
    found = getattr(importlib.import_module(f"{STUDIES.name}.{name}"), "STUDY", None)
    if not isinstance(found, Study):
        raise UserError(f"{file} declares no STUDY")
    return found


def told(planned: Plan) -> Iterator[str]:
    """Every job with its state and its folder, and what stands in the way."""
    widest = max((len(job.name) for job in planned.jobs), default=0)
    for job in planned.jobs:
        after = f"  after {', '.join(job.after)}" if job.after and not job.finished else ""
        yield f"{_state(job):>16}  {job.name:<{widest}}  {job.folder}{after}"
    done = sum(job.finished for job in planned.jobs)
    yield f"{done} of {len(planned.jobs)} jobs are finished; nothing was started"
    if planned.missing:
        yield (
            f"not set: {', '.join(sorted(planned.missing))}; folders that depend on these "
            "variables will have other names"
        )


def _state(job: Job) -> str:
    if job.finished:
        return "finished"
    metrics = job.folder / "metrics.jsonl"
    rows = metrics.read_bytes().count(b"\n") if job.total and metrics.is_file() else 0
    return f"at {rows} of {job.total}" if rows else "to do"


def check_inputs(planned: Plan) -> None:
    """Raises UserError if a file that runs read is not there, before anything begins."""
    for one in planned.runs:
        domain = one.config.domain
        for key in PATHS:
            group, _, name = key.partition(".")
            path = one.config[group][name] if group not in ROLES or group == domain else ""
            if path and not one.job.finished and not Path(path).exists():
                raise UserError(
                    f"config.{key} of {one.run.label} is {path}, which is not there; "
                    f"name it by --config.{key}=path"
                )


def _not_done(ended: Sequence[Ended]) -> list[Ended]:
    return [e for e in ended if e.ending not in ("done", "finished before")]


def _sum(ended: Sequence[Ended]) -> str:
    ran = [e.seconds for e in ended if e.seconds is not None]
    before = sum(e.ending == "finished before" for e in ended)
    return (
        f"{len(ended)} jobs: {before} finished before, {len(ran)} run here in "
        f"{duration(sum(ran))} of process time, {len(_not_done(ended))} not done"
    )


@contextmanager
def log_of(file: Path, command: str) -> Iterator[Callable[[str], None]]:
    """What is told about the jobs, each line with the time since the command began."""
    file.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with file.open("a", encoding="utf-8") as out:

        def keep(line: str) -> None:
            out.write(f"[{duration(time.monotonic() - began):>7}] {line}\n")
            out.flush()

        out.write(f"$ {command}  # {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n")
        yield keep


if __name__ == "__main__":
    run(main)
