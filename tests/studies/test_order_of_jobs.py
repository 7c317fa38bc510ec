"""A job waits for those that it needs, is left out where one fails, and the time left is told."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax.jobs import queue
from ibrl_jax.jobs.board import Pace, time_left
from ibrl_jax.jobs.processes import Job
from ibrl_jax.jobs.queue import run_jobs


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "_LOOKS", 0.005)
    monkeypatch.setattr(queue, "shares", lambda n: [tuple(sorted(queue._cores()))] * n)


def make(folder: Path, name: str, code: str, *after: str, finished: bool = False) -> Job:
    command = (sys.executable, "-S", "-E", "-c", code)
    return Job(
        name=name,
        command=command,
        folder=folder / name,
        total=0,
        finished=finished,
        after=after,
    )


def run(made: list[Job], at_once: int = 2) -> tuple[dict[str, str], str, list[str]]:
    """Endings by name, what was printed, and what was kept."""
    out, kept = io.StringIO(), []
    ended = run_jobs(made, at_once, Console(file=out, width=200), kept.append)
    return {e.job.name: e.ending for e in ended}, out.getvalue(), kept


def test_a_job_begins_when_those_before_it_are_done(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    slow = f"import time; time.sleep(.1); open({str(mark)!r}, 'w')"
    needs = f"open({str(mark)!r})"
    made = [make(tmp_path, "late", needs, "early"), make(tmp_path, "early", slow)]
    assert run(made)[0] == {"late": "done", "early": "done"}


def test_what_needs_a_failed_job_is_left_out_to_the_last_and_the_others_go_on(
    tmp_path: Path,
) -> None:
    made = [
        make(tmp_path, "bad", "raise SystemExit('no')"),
        make(tmp_path, "second", "pass", "bad"),
        make(tmp_path, "third", "pass", "second"),
        make(tmp_path, "other", "pass"),
    ]
    endings, said, kept = run(made, 1)
    assert endings == {
        "bad": "failed",
        "second": "not begun",
        "third": "not begun",
        "other": "done",
    }
    assert "second: not begun, since it needs bad" in said
    assert "third: not begun, since it needs second" in said
    assert "    no" in kept
    assert not (tmp_path / "third").exists()


def test_a_job_that_was_finished_before_holds_nothing_up(tmp_path: Path) -> None:
    made = [make(tmp_path, "old", "pass", finished=True), make(tmp_path, "new", "pass", "old")]
    assert run(made)[0] == {"old": "finished before", "new": "done"}


def test_jobs_that_wait_for_each_other_end_the_queue(tmp_path: Path) -> None:
    made = [make(tmp_path, "a", "pass", "b"), make(tmp_path, "b", "pass", "a")]
    assert set(run(made)[0].values()) == {"not begun"}
    with pytest.raises(ValueError, match="a comes after nobody"):
        run([make(tmp_path, "a", "pass", "nobody")])


def test_the_time_left_is_told_after_each_job(tmp_path: Path) -> None:
    made = [make(tmp_path, name, "pass") for name in ("a", "b")]
    _, said, kept = run(made, 1)
    assert "1 of 2 jobs over, about 0s left" in said
    assert "2 of 2 jobs over, nothing left" in said
    assert kept[0].startswith("a: begins")


def pace(kind: str, units: int, done: int, seconds: float, *, over: bool = False) -> Pace:
    return Pace(kind=kind, units=units, done=done, seconds=seconds, timed=done, over=over)


def test_each_kind_goes_on_at_its_own_rate() -> None:
    paces = [
        pace("run", 100, 100, 200.0, over=True),
        pace("run", 100, 50, 100.0),
        pace("run", 100, 0, 0.0),
        pace("evaluation", 1, 1, 40.0, over=True),
        pace("evaluation", 1, 0, 0.0),
    ]
    # 50 + 100 rows of 2 s, and an evaluation of 40 s, on two shares; alone the longest takes 200 s
    assert time_left(paces, 2) == "about 3m 20s left"
    assert time_left(paces, 1) == "about 5m 40s left"


def test_a_kind_that_nobody_has_timed_is_named() -> None:
    paces = [pace("run", 10, 5, 10.0), pace("evaluation", 1, 0, 0.0)]
    assert time_left(paces, 1) == "about 10s left, and the time of: evaluation (none timed yet)"
    assert time_left(paces[1:], 1) == "time left unknown"


def test_rows_of_an_earlier_start_tell_nothing_of_the_rate() -> None:
    resumed = Pace(kind="run", units=100, done=80, seconds=10.0, timed=5)
    assert time_left([resumed], 1) == "about 40s left"
