"""A run of several processes is that of one, and ends or fails as one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax.dialogue.build import at_once, build_endpoints
from ibrl_jax.dialogue.loop import Match
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.errors import UserError
from ibrl_jax.parallel import hosts as hosts_module
from ibrl_jax.parallel.hosts import Hosts
from ibrl_jax.proofs import multihost
from ibrl_jax.proofs.multihost import MOST_APART, MOST_SECONDS, SMALL, Findings, Runs
from ibrl_jax.trainer import dialogues
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.run import RunFolder, as_json, write_json
from ibrl_jax.trainer.session import check_alike
from tests.trainer.conftest import SMOKE, House


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_of_two_processes_that_was_killed_ends_as_that_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tokens, and parameters that are apart by rounding alone."""
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # compiles in half the time
    runs = Runs(SMOKE, SMALL, 2, tmp_path)
    sentence, code, seconds = runs.kill_one("two")
    assert (code, seconds <= MOST_SECONDS) == (2, True)
    assert sentence.startswith("process 1 of 2 (")
    assert sentence.endswith("goes on from the last checkpoint")

    two, one = runs.make("two", 2), runs.make("one", 1)
    assert len(multihost.tokens(two)) == 24
    assert multihost.tokens(two) == multihost.tokens(one)
    apart = multihost.apart(multihost.policies(two), multihost.policies(one))
    assert apart <= MOST_APART < multihost.moved(two)
    rows = [json.loads(line) for line in (two / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [0, 1, 2]
    assert {row["compilations"] for row in rows} == {0}
    assert any("agent0+agent1" not in row["matchups"] or len(row["matchups"]) > 1 for row in rows)
    assert multihost.same(multihost.state(two), multihost.state(two))
    assert not multihost.same(multihost.state(two), multihost.state(one)["state"])


# ------------------------------------------------------------------------- who plays what


class Others(Hosts):
    """One of several processes; what the others exchange is told beforehand, or nothing."""

    def __init__(self, index: int, count: int, theirs: dict[str, list[Any]] | None = None) -> None:
        super().__init__(index, count, None, None)
        self.theirs = theirs or {}
        self.said: dict[str, Any] = {}

    def exchange(self, what: str, value: Any) -> list[Any]:
        self.said[what] = value
        found = list(self.theirs.get(what, [value] * self.count))
        found[self.index] = value
        return found


def told(trajectories: list[Trajectory]) -> list[tuple[Any, ...]]:
    return [(t.draw, t.rollout, [turn.text for turn in t.turns]) for t in trajectories]


def test_shares_played_apart_are_in_turn_the_dialogues_of_one_process(house: House) -> None:
    """Of three processes and two draws one has nothing to play."""
    config = house.config()
    alone = Algorithm(config, house.cast, house.start, {}).rollouts()
    what, shares = "trajectories 0", []
    for index in range(3):
        hosts = Others(index, 3, {what: [([], "")] * 3})
        mine = Algorithm(config, house.cast, house.start, {}, hosts).rollouts()
        assert hosts.said[what] == (mine, "")
        shares.append(mine)
    assert sorted(len(share) for share in shares) == [0, 4, 4]
    assert told([t for share in shares for t in share]) == told(alone)
    hosts = Others(0, 3, {what: [(share, "") for share in shares]})
    whole = Algorithm(config, house.cast, house.start, {}, hosts).rollouts()
    assert told(whole) == told(alone)


def test_a_share_that_cannot_be_played_stops_every_process_with_its_reason(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each then saves what was finished, which all must do together."""

    def refused(hall: Any, matches: list[Match], watch: Any) -> list[Trajectory]:
        raise UserError("the key is refused")

    what = "trajectories 0"
    config = house.config()
    there = Others(0, 2, {what: [None, ([], "the key is refused")]})
    with pytest.raises(UserError, match="^the key is refused$"):
        Algorithm(config, house.cast, house.start, {}, there).iterate()
    monkeypatch.setattr(dialogues, "play", refused)
    here = Others(0, 2, {what: [None, ([], "")]})
    with pytest.raises(UserError, match="^the key is refused$"):
        Algorithm(config, house.cast, house.start, {}, here).iterate()
    assert here.said[what] == ([], "the key is refused")


def test_a_process_has_room_for_its_share_of_the_dialogues(
    smoke_config: Callable[..., ConfigDict],
) -> None:
    config = smoke_config(rollout__draws=5, rollout__group=4)
    assert [at_once(config, n) for n in (1, 2, 5, 8)] == [20, 12, 4, 4]


def test_processes_share_what_an_endpoint_may_cost_and_keep_ledgers_apart(
    smoke_config: Callable[..., ConfigDict], tmp_path: Path
) -> None:
    config = smoke_config(
        endpoints__friend__base_url="http://127.0.0.1:9/v1",
        endpoints__friend__model="none",
        endpoints__friend__max_calls=9,
        endpoints__friend__max_cost=3.0,
        endpoints__friend__price_in=1.0,
        endpoints__friend__price_out=1.0,
        endpoints__friend__concurrency=1,
    )
    (first,), (second,) = (
        build_endpoints(config, tmp_path, Hosts(index, 2, None, None)).values() for index in (0, 1)
    )
    for one in (first, second):
        assert one.settings.budget.max_calls == 4
        assert one.settings.budget.max_cost == 1.5
        assert one.settings.budget.max_tokens is None
        assert one.settings.concurrency == 1
        one.ledger.answered(outcome="ok", cached=True)
        one.ledger.close()
    files = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*.jsonl")}
    assert files == {"friend.jsonl", "process1/friend.jsonl"}


# ------------------------------------------------------------------------- what is refused


def test_processes_that_were_started_on_other_settings_are_told_which(
    smoke_config: Callable[..., ConfigDict],
) -> None:
    first, second = smoke_config(hosts__index=0), smoke_config(hosts__index=1)
    check_alike(first, Others(0, 2, {"config": [None, as_json(second)]}))
    other = as_json(smoke_config(hosts__index=1, loss__epochs=2))
    with pytest.raises(UserError) as caught:
        check_alike(first, Others(0, 2, {"config": [None, other]}))
    assert str(caught.value) == (
        "process 0 was started with config.loss.epochs = 1 and process 1 with 2; "
        "start the same command on every host"
    )


def test_a_run_goes_on_elsewhere_but_not_with_another_seed(
    smoke_config: Callable[..., ConfigDict], tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.metrics.write_text("{}\n")
    write_json(tmp_path / "config.json", as_json(smoke_config()))
    folder.check(smoke_config(mesh__fsdp=8, placement="split", hosts__count=2))
    with pytest.raises(UserError, match=r"config\.seed = 0, not 1"):
        folder.check(smoke_config(seed=1))


class Ended(Exception):
    """In place of the end of the process."""


def test_a_full_disk_ends_all_processes_as_it_ends_one(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def end(sentence: str, code: int) -> None:
        said.append((sentence, code))
        raise Ended

    class Line:
        def fail(self, sentence: str) -> None:
            said.append(sentence)

    monkeypatch.setattr(hosts_module, "_exit", end)
    with pytest.raises(Ended), Hosts(0, 2, Line(), None):  # type: ignore[arg-type]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    full = "cannot write: No space left on device; what was saved before is whole"
    assert said == [full, (full, 2)]


# ------------------------------------------------------------------------- the job's own judgement

GOOD = Findings(
    dialogues=24,
    equal=24,
    apart=1e-7,
    moved=1e-2,
    sentence="process 1 of 2 (here) is gone",
    code=2,
    seconds=1.0,
    resumed=0.0,
    bitwise=True,
)


@pytest.mark.parametrize(
    "wrong",
    [
        {"equal": 23},
        {"dialogues": 0, "equal": 0},
        {"apart": 1e-3},
        {"moved": 0.0},
        {"code": 1},
        {"sentence": ""},
        {"seconds": 61.0},
        {"bitwise": False, "resumed": 1e-3},
    ],
)
def test_the_job_fails_by_each_thing_that_does_not_hold(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert GOOD.hold == (True,) * 4
    assert sum(replace(GOOD, **wrong).hold) == 3
    for found, code in ((GOOD, 0), (replace(GOOD, **wrong), 1)):
        monkeypatch.setattr(multihost, "check", lambda *args, found=found: found)
        try:
            multihost.main([f"--root={tmp_path}"], Console(quiet=True))
            ended = 0
        except SystemExit as end:
            ended = end.code
        assert ended == code
        written = json.loads((tmp_path / "multihost" / "summary.json").read_text())
        assert written["holds"] == (code == 0)


def test_parameters_of_other_names_or_shapes_are_infinitely_apart() -> None:
    one = {"a/w": np.zeros(2)}
    assert multihost.apart(one, {"a/w": np.full(2, 0.5)}) == 0.5
    assert multihost.apart(one, {"a/w": np.zeros(3)}) == float("inf")
    assert multihost.apart(one, {"b/w": np.zeros(2)}) == float("inf")
    assert multihost.apart({}, {}) == float("inf")


def test_a_run_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    runs = Runs(str(tmp_path / "none.py"), (), 2, tmp_path)
    with pytest.raises(UserError, match="process 0 of 1 .* exit code 2: there is no config file"):
        runs.make("one", 1)
