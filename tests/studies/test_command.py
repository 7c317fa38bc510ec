"""`python -m ibrl_jax.study`: its plans, what it says of mistakes, and going on after a stop."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import study
from ibrl_jax.errors import UserError
from ibrl_jax.jobs import queue
from ibrl_jax.jobs.processes import Job
from ibrl_jax.studies.plan import Plan
from tests.studies.fakes import DESIGN, STUDY, evaluate, finish, planned

FEW = ("--config.statistics.resamples=400", "--config.statistics.permutations=100")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny study under its own name, whatever experiments/ holds."""
    load = study.load_study
    monkeypatch.setattr(study, "load_study", lambda name: STUDY if name == "tiny" else load(name))


def run(root: Path, *options: str) -> str:
    out = io.StringIO()
    given = ["--study=tiny", "--jobs=1", f"--config.run.root={root}", *FEW]
    given += [f"--to={root / 'tiny-mini'}", *options]
    study.main(given, Console(file=out, width=250))
    return out.getvalue()


Work = Callable[[Plan, Job], None]


def played_by(monkeypatch: pytest.MonkeyPatch, work: Work, *, bad: Sequence[str] = ()) -> list[str]:
    """Jobs are done by `work` in this process, those of `bad` fail; the names of those begun."""
    begun: list[str] = []
    real = study.plan

    def plan(*args: object, **kw: object) -> Plan:
        made = real(*args, **kw)  # type: ignore[arg-type]

        def command(job: Job) -> tuple[str, ...]:
            failing = "raise SystemExit('it broke')" if job.name in bad else "pass"
            return (sys.executable, "-S", "-E", "-c", failing)

        found = replace(made, jobs=tuple(replace(j, command=command(j)) for j in made.jobs))

        class Begun(queue.Running):
            @classmethod
            def start(cls, job: Job, share: tuple[int, ...]) -> queue.Running:
                begun.append(job.name)
                if job.name not in bad:
                    work(made, job)
                return super().start(job, share)

        monkeypatch.setattr(queue, "Running", Begun)
        return found

    monkeypatch.setattr(study, "plan", plan)
    monkeypatch.setattr(queue, "_LOOKS", 0.005)
    return begun


def pretend(made: Plan, job: Job) -> None:
    for one in made.runs:
        if one.job.name == job.name:
            finish(one)
    for one in made.evaluations:
        if one.job.name == job.name:
            evaluate(one, lambda *_: 0.5, scenarios=10)


def test_a_plan_tells_every_job_and_begins_nothing(tmp_path: Path) -> None:
    finish(planned(tmp_path).runs[0])
    said = run(tmp_path, "--plan")
    assert "        finished  pair seed0" in said
    assert "           to do  alone seed1" in said
    assert "after alone seed0" in said
    assert "1 of 12 jobs are finished; nothing was started" in said
    assert not list(tmp_path.glob("tiny-mini"))


def test_everything_is_done_in_order_and_laid_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = played_by(monkeypatch, pretend)
    said = run(tmp_path)
    assert begun[:3] == ["start seed0", "pair seed0", "alone seed0"] or "pair seed0" in begun[:4]
    assert len(begun) == 12
    assert "| first | 50.0 / 0.600 / 0.300 |" in said
    to = tmp_path / "tiny-mini"
    ends = ("md", "csv", "json", "svg", "png")
    assert {f.name for f in to.iterdir()} == {*(f"tiny.{end}" for end in ends), "log.txt"}
    log = (to / "log.txt").read_text()
    assert "pair seed0: done after" in log
    assert "12 jobs: 0 finished before, 12 run here" in log


def test_a_second_time_nothing_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = played_by(monkeypatch, pretend)
    run(tmp_path)
    begun.clear()
    run(tmp_path, f"--to={tmp_path / 'elsewhere'}")
    assert begun == []
    assert (tmp_path / "elsewhere" / "tiny.md").is_file()


def test_a_job_that_failed_costs_its_own_rows_and_the_next_time_only_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        played_by(patch, pretend, bad=("alone seed1",))
        with pytest.raises(UserError, match=r"2 of 12 jobs are not done \(alone seed1 failed\)"):
            run(tmp_path)
    text = (tmp_path / "tiny-mini" / "tiny.md").read_text()
    assert "Coverage: 5 of 6 evaluations" in text
    assert "alone seed1: failed; its log is" in text
    assert "evaluation of alone seed1: not begun" in text
    assert "    it broke" in (tmp_path / "tiny-mini" / "log.txt").read_text()
    begun = played_by(monkeypatch, pretend)
    run(tmp_path)
    assert begun == ["start seed1", "alone seed1", "evaluation of alone seed1"]
    assert "Coverage: 6 of 6" in (tmp_path / "tiny-mini" / "tiny.md").read_text()


def test_a_study_that_was_killed_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(made: Plan, job: Job) -> None:
        if job.name == "alone seed1":
            raise SystemExit("killed")
        pretend(made, job)

    with monkeypatch.context() as patch:
        before = played_by(patch, killed)
        with pytest.raises(SystemExit):
            run(tmp_path)
    after = played_by(monkeypatch, pretend)
    run(tmp_path)
    # A start leaves its own trace in the runs that take it, so it may be asked for again.
    assert {n for n in before if n in after and not n.startswith("start")} == {"alone seed1"}
    assert "Coverage: 6 of 6" in (tmp_path / "tiny-mini" / "tiny.md").read_text()


def test_a_study_that_was_stopped_between_two_jobs_says_so_and_lays_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(made: Plan, job: Job) -> None:
        pretend(made, job)
        if job.name == "pair seed0":
            signal.raise_signal(signal.SIGINT)

    played_by(monkeypatch, work)
    with pytest.raises(KeyboardInterrupt, match="stopped with .* not finished"):
        run(tmp_path)
    assert not (tmp_path / "tiny-mini" / "tiny.md").is_file()


@pytest.mark.parametrize(
    "seeds, overrides, name",
    [
        ((), (), []),
        ((), ("--config.run.root=/some/where", "--config.run.text_every=5"), []),
        ((3, 0), (), ["seeds0-3"]),
        ((0,), ("--config.iterations=50",), ["seeds0", "iterations=50"]),
        ((), ("--config.b=2", "--config.a=1", "--config.b=3"), ["a=1", "b=3"]),
        ((), ("--config.policy.folder=models/Qwen",), ["95d44e"]),
        ((), (f"--config.a={'9' * 80}",), ["f307b8"]),
    ],
)
def test_a_page_is_named_by_what_was_asked_for_otherwise(
    seeds: tuple[int, ...], overrides: tuple[str, ...], name: list[str]
) -> None:
    assert study.otherwise(seeds, overrides) == name


def test_other_seeds_leave_the_page_of_the_studys_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played_by(monkeypatch, pretend)
    out = Console(file=io.StringIO(), width=250)
    for seeds in ("1,0", "1"):
        given = ["--study=tiny", "--jobs=1", f"--seeds={seeds}", f"--config.run.root={tmp_path}"]
        study.main(given, out)
    assert (tmp_path / "tiny-mini" / "tiny.md").is_file(), "the study's own seeds, in any order"
    assert "Seeds: 1 (" in (tmp_path / "tiny-mini-seeds1" / "tiny.md").read_text()
    assert "Seeds: 1, 0 (" in (tmp_path / "tiny-mini" / "tiny.md").read_text()


@pytest.mark.parametrize(
    "options, says",
    [
        (("--study=table0",), "there is no study 'table0'; experiments/ holds fig3"),
        (("--study=../x",), "there is no study '../x'"),
        (("--scale=huge",), "--scale is 'huge'; tiny has mini"),
        (("--seeds=0,0",), "different whole numbers"),
        (("--jobs=999",), "jobs is 999"),
        (("--config.seed=1",), "name the seeds by --seeds"),
        (("--config.nothing=1",), "config.nothing does not exist"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, options: Sequence[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        run(tmp_path, *options)
    assert os.listdir(tmp_path) == []


def test_weights_that_are_not_there_stop_it_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = replace(DESIGN.runs[0], changes={"policy.folder": "no/such/folder"})
    small = replace(DESIGN, runs=(first,), references=())
    monkeypatch.setattr(study, "load_study", lambda name: replace(STUDY, designs={"mini": small}))
    with pytest.raises(UserError, match="policy.folder of pair is no/such/folder, which is not"):
        run(tmp_path)
    assert os.listdir(tmp_path) == []


def test_nor_does_it_begin_without_the_data_of_its_domain(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="dond.data_dir of pair is no/data, which is not there"):
        run(tmp_path, "--config.dond.data_dir=no/data", "--config.telesales.test_file=nothing")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["table2", "table3", "fig3"])
@pytest.mark.parametrize("scale", ["mini", "paper"])
def test_the_papers_studies_can_be_planned(tmp_path: Path, name: str, scale: str) -> None:
    said = run(tmp_path, f"--study={name}", f"--scale={scale}", "--seeds=0", "--plan")
    assert "nothing was started" in said
    assert ("not set: IBRL_" in said) == (scale == "paper")
    assert os.listdir(tmp_path) == []


def test_what_is_missing_in_the_environment_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs the environment variables IBRL_DEEPSEEK_KEY"):
        run(tmp_path, "--study=table2", "--scale=paper")


def test_the_tables_share_the_run_of_ib_rl(tmp_path: Path) -> None:
    lines = {
        name: run(tmp_path, f"--study={name}", "--seeds=0", "--plan").splitlines()
        for name in ("table2", "table3", "fig3")
    }
    for what in ("  ib-rl seed0", "evaluation of ib-rl seed0"):
        folders = {
            next(line for line in said if what in line).split(str(tmp_path))[1].split()[0]
            for said in lines.values()
        }
        assert len(folders) == 1, what
