"""The resume check itself: it kills as often as it is asked to, and tells what is not the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ibrl_jax.errors import UserError
from ibrl_jax.proofs import resume_check
from ibrl_jax.proofs.resume_check import kill_and_compare


class Runs:
    """Commands that are not run: each start is killed or ends as `ends` says, in turn."""

    def __init__(self, ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ends = iter(ends)
        self.delays: list[float] = []
        self.finished: list[Path] = []
        monkeypatch.setattr(resume_check, "_killed", self._start)
        monkeypatch.setattr(resume_check, "_finish", lambda command: self.finished.append(command))

    def _start(self, command: Any, delay: float) -> bool:
        """k: killed; c: killed after it has saved a checkpoint; e: ends by itself."""
        self.delays.append(delay)
        end = next(self._ends)
        if end == "c":
            (command / "name" / "seed0" / "checkpoints" / "3").mkdir(parents=True)
        return end != "e"

    def check(self, work: Path, kills: int, compare: Any = lambda root: []) -> Any:
        def command(root: Path) -> Any:
            return root

        rng = np.random.default_rng(0)
        return kill_and_compare(command, work, kills, 100.0, rng, compare, lambda note: None)


def test_runs_that_end_too_early_are_followed_by_fresh_ones_until_all_kills_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs("kckekkeck", monkeypatch)
    compared: list[Path] = []
    tally, found = runs.check(tmp_path, 7, lambda root: compared.append(root) or [])
    assert (tally.early, tally.late, tally.kills, tally.runs) == (3, 4, 7, 3)
    assert compared == runs.finished
    assert len(set(compared)) == 3
    assert found == []
    assert all(10 <= delay <= 90 for delay in runs.delays)


def test_an_estimate_that_is_far_too_long_comes_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a run from the beginning ends before it is killed."""
    runs = Runs("ek", monkeypatch)
    tally, _ = runs.check(tmp_path, 1)
    assert (tally.kills, tally.runs) == (1, 2)
    assert runs.delays[0] > 10 > 1 > runs.delays[1]


def test_a_difference_ends_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs("kkek", monkeypatch)
    tally, found = runs.check(tmp_path, 50, lambda root: ["metrics.jsonl differs at 3"])
    assert (tally.kills, tally.runs) == (2, 1)
    assert found == ["metrics.jsonl differs at 3"]


def test_a_command_is_killed_unless_it_ends_before() -> None:
    assert resume_check._killed([sys.executable, "-S", "-c", "import time; time.sleep(60)"], 0.1)
    assert not resume_check._killed([sys.executable, "-S", "-c", ""], 60)


def test_what_came_out_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(found: list[str]) -> None:
        tally = resume_check.Tally(early=2, late=3, runs=2)
        monkeypatch.setattr(resume_check, "_finish", lambda command: None)
        monkeypatch.setattr(resume_check, "kill_and_compare", lambda *args: (tally, found))
        resume_check.main([f"--root={tmp_path}", "--kills=5"], Console(quiet=True))

    file = tmp_path / "resume-check" / "summary.json"
    run([])
    summary = json.loads(file.read_text())
    assert (summary["early"], summary["late"], summary["runs"]) == (2, 3, 2)
    assert summary["sentence"] == (
        "after 5 kills (2 before a first checkpoint) each of the runs (2) is bitwise that of an "
        "undisturbed one"
    )
    with pytest.raises(UserError, match="checkpoint. a run is not that of an undisturbed one: x"):
        run(["x differs"])
    assert json.loads(file.read_text())["differences"] == ["x differs"]


def test_a_run_that_fails_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a run that is checked failed: no config file"):
        resume_check._finish([sys.executable, "-S", "-c", "import sys; sys.exit('no config file')"])


def test_a_number_that_is_none_is_a_sentence() -> None:
    with pytest.raises(UserError, match="--kills is 'many'; it must be a whole number"):
        resume_check.main(["--kills=many"], Console(quiet=True))
