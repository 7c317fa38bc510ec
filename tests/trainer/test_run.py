"""A whole run: what it leaves, that it resumes bitwise, and what it refuses."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from ibrl_jax.errors import UserError
from ibrl_jax.proofs.resume_check import differences
from ibrl_jax.trainer import session
from ibrl_jax.trainer.checkpoint import _told_once
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import Stopped, train
from tests.trainer.conftest import SMOKE, House


def rows(folder: RunFolder) -> list[dict]:
    return [json.loads(line) for line in folder.metrics.read_text().splitlines()]


@pytest.fixture(scope="module")
def home_run(house: House, quiet: Console) -> RunFolder:
    """Four iterations of IB-RL, undisturbed, for those that are stopped at home."""
    with house.at_home():
        return train(house.config(name="home", iterations=4), quiet)


def test_every_iteration_leaves_a_row_and_its_dialogues(smoke_run: RunFolder) -> None:
    found = rows(smoke_run)
    assert [row["iteration"] for row in found] == [0, 1, 2, 3]
    for row in found:
        lines = smoke_run.dialogues(row["iteration"]).read_text().splitlines()
        assert len(lines) == row["dialogues"]["count"] == 8
        assert sum(row["end_reasons"].values()) == 8
        assert row["coverage"] == 1.0


def test_nothing_compiles_after_the_warm_up(smoke_run: RunFolder) -> None:
    assert {row["compilations"] for row in rows(smoke_run)} == {0}


def test_sampler_and_trainer_agree_on_log_probs(smoke_run: RunFolder) -> None:
    """On-policy, at the first epoch: the sampler's log-probs are those of the trained network."""
    for row in rows(smoke_run):
        for figures in row["roles"].values():
            if figures["updated"]:
                assert figures["sampler_trainer_max"] <= 1e-5
                assert figures["ratio_deviation_max"] <= 1e-4


def test_a_role_at_half_the_frequency_updates_half_as_often(smoke_run: RunFolder) -> None:
    found = rows(smoke_run)
    assert [row["roles"]["agent1"]["updated"] for row in found] == [True, False, True, False]
    assert found[-1]["roles"]["agent0"]["updates"] == 4
    assert found[-1]["roles"]["agent1"]["updates"] == 2


def test_past_policies_hold_seats_once_a_pool_has_any(smoke_run: RunFolder) -> None:
    found = rows(smoke_run)
    assert found[0]["matchups"] == {"agent0+agent1": 8}
    assert any(len(row["matchups"]) > 1 for row in found[1:])


def test_past_seats_have_no_advantage_and_live_ones_do(smoke_run: RunFolder) -> None:
    for file in sorted((smoke_run.path / "dialogues").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            for role in ("agent0", "agent1"):
                live, view = role in record["matchup"], record["views"][role]
                learned = live and any(view["loss_mask"])  # who never spoke has no vote
                assert (record["advantages"][role] is not None) == learned
                assert view["policy"]["seat"] == ("live" if live else "past")


def test_a_view_holds_nothing_of_the_other_sides_values(smoke_run: RunFolder) -> None:
    """Every view's opening prompt is its own role's, to the last number."""
    record = json.loads(smoke_run.dialogues(0).read_text().splitlines()[0])
    for role, view in record["views"].items():
        text = "".join(
            p for p, turn in zip(view["pieces"], view["turn_index"], strict=True) if turn == -1
        )
        own, other = (
            record["scenario"]["private"][r]["values"]
            for r in (role, "agent1" if role == "agent0" else "agent0")
        )
        numbers = [int(c) for c in text.split("\n")[-2] if c.isdigit()][2::3]
        assert numbers == own
        assert own != other


def test_a_run_stopped_and_resumed_equals_one_that_was_not(
    house: House, home_run: RunFolder, quiet: Console
) -> None:
    """Also where rows lie beyond the checkpoint, as after a kill: metrics and dialogues that no
    checkpoint covers, and half a line. They are made again.
    """
    with house.at_home():
        folder = train(house.config(name="torn", iterations=2), quiet)
        with folder.metrics.open("a") as file:
            file.write(json.dumps({"iteration": 2, "roles": {}}) + '\n{"iteration": 3, "ro')
        folder.dialogues(2).write_text("{}\n")
        again = train(house.config(name="torn", iterations=4), quiet)
    assert differences(home_run.path, again.path) == []


def test_a_killed_process_resumes_bitwise(smoke_root: Path, smoke_run: RunFolder) -> None:
    """SIGKILL in the middle; `make resume-check` does it ten times."""
    options = [f"--config.run.root={smoke_root}", "--config.name=killed", "--config.iterations=4"]
    command = [sys.executable, "-m", "ibrl_jax.train", f"--config={SMOKE}", *options]
    folder = RunFolder(smoke_root / "killed" / "seed0")
    env = os.environ | {"JAX_NUM_CPU_DEVICES": "1"}  # as here, so that the programs are on disk
    ended = 0
    for _ in range(5):  # one that was at its end before anybody looked says nothing
        shutil.rmtree(folder.path, ignore_errors=True)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
        try:
            while process.poll() is None:
                if folder.metrics.is_file() and len(folder.metrics.read_text().splitlines()) >= 2:
                    process.send_signal(signal.SIGKILL)
                    break
                time.sleep(0.01)
        finally:
            ended = process.wait()
        if ended:
            break
    assert ended == -signal.SIGKILL
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
    assert differences(smoke_run.path, folder.path) == []


def test_ctrl_c_finishes_the_iteration_and_says_how_to_go_on(
    house: House, home_run: RunFolder, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ibrl_jax.trainer.algorithm import Algorithm

    iterate = Algorithm.iterate

    def interrupted(self):
        if self.iteration == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return iterate(self)

    monkeypatch.setattr(Algorithm, "iterate", interrupted)
    with house.at_home():
        with pytest.raises(Stopped, match="stopped after iteration 2 of 4"):
            train(house.config(name="stopped", iterations=4), quiet)
        monkeypatch.undo()
        folder = train(house.config(name="stopped", iterations=4), quiet)
    assert differences(home_run.path, folder.path) == []


def test_another_seed_is_another_run(house: House, home_run: RunFolder, quiet: Console) -> None:
    with house.at_home():
        other = train(house.config(name="home", seed=1, sft__seed=0, iterations=1), quiet)
    assert other.path != home_run.path
    assert rows(other)[0]["roles"] != rows(home_run)[0]["roles"]


def test_a_folder_of_another_config_is_refused(smoke_config, smoke_run: RunFolder, quiet) -> None:
    before = smoke_run.metrics.read_text()
    with pytest.raises(UserError, match=r"config\.isolation\.reward = 'own', not 'shared'"):
        train(smoke_config(iterations=4, isolation__reward="shared"), quiet)
    assert smoke_run.metrics.read_text() == before


def test_a_checkpoint_cut_short_is_one_sentence(smoke_config, smoke_run: RunFolder, quiet) -> None:
    folder = RunFolder(smoke_run.path.parent.parent / "cut" / "seed0")
    shutil.copytree(smoke_run.path, folder.path)
    shutil.rmtree(folder.path / "policies")
    config = json.loads((folder.path / "config.json").read_text()) | {"name": "cut"}
    (folder.path / "config.json").write_text(json.dumps(config))
    newest = folder.path / "checkpoints" / "4" / "state"
    for file in newest.rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(UserError, match="cannot be read.*delete that folder.*iteration 3"):
        train(smoke_config(name="cut", iterations=5), quiet)


def test_a_read_that_fails_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    log = logging.getLogger("asyncio")
    monkeypatch.setattr(log, "level", logging.WARNING)
    closed, other = (
        SimpleNamespace(exc_value=RuntimeError(text)) for text in ("Event loop is closed", "else")
    )

    def tell() -> tuple[list[Any], bool]:
        told.clear()
        sys.unraisablehook(closed)  # type: ignore[arg-type]
        sys.unraisablehook(other)  # type: ignore[arg-type]
        return [*told], log.level > logging.ERROR

    with _told_once():
        assert tell() == ([other], True)
    assert tell() == ([closed, other], False)
    with pytest.raises(ValueError, match="cut"), _told_once():
        raise ValueError("cut")
    assert tell() == ([other], True)


def test_the_ledgers_of_a_run_are_closed_with_it(
    house: House, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    ledger = SimpleNamespace(
        summary=lambda: done.append("summed") or {}, close=lambda: done.append("closed")
    )
    endpoints: Any = {"friend": SimpleNamespace(ledger=ledger)}
    cast = replace(house.cast, endpoints=endpoints)
    with house.at_home():
        monkeypatch.setattr(session, "build_cast", lambda *args, **kw: cast)
        train(house.config(name="asked", iterations=1), quiet)
    assert done == ["summed", "closed"]
