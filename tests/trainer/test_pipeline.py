"""What runs beside what: it changes when something is done, and nothing that comes of it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console

from ibrl_jax.errors import UserError
from ibrl_jax.proofs.resume_check import differences
from ibrl_jax.rewards.types import Case, Failed, Scored
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.clock import LAPS
from ibrl_jax.trainer.measure import metrics_row
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train
from tests.trainer.conftest import House, quick_compile

ROLES = ("agent0", "agent1")
Make = Callable[..., Algorithm]


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(tree))]


def said(trajectories: Any) -> list[bytes]:
    """Every token of every view, and its log-prob as it was sampled."""
    views = [t.views[role] for t in trajectories for role in ROLES]
    return [x.tobytes() for view in views for x in (view.ids, view.behaviour_logp)]


@pytest.fixture
def make(house: House) -> Iterator[Make]:
    """`make(loss__epochs=2, ...)`: an algorithm at iteration 0; all are closed at the end."""
    made: list[Algorithm] = []

    def build(**overrides: object) -> Algorithm:
        algorithm = Algorithm(house.config(**overrides), house.cast, house.start, {})
        algorithm.learner = house.learner
        made.append(algorithm)
        return algorithm

    yield build
    for algorithm in made:
        algorithm.close()


# ------------------------------------------------------------------------- one role's update early


class Slow:
    """A judge that has its answer when `ready` says so, at most half a minute later."""

    def __init__(self, judge: Any, ready: Callable[[], bool], fails: bool = False) -> None:
        self._judge, self._ready, self._fails = judge, ready, fails

    async def score(self, case: Case) -> Scored | Failed:
        until = time.monotonic() + 30
        while not self._ready():
            assert time.monotonic() < until, "what it waits for did not come"
            await asyncio.sleep(0.001)
        return Failed(reason="nobody answers") if self._fails else await self._judge.score(case)


def judged_last(
    algorithm: Algorithm, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False
) -> list[float]:
    """agent1's rewards come once an update has been made. Gives the times of the updates."""
    updates: list[float] = []
    update = algorithm.learner.update

    def counted(*args: Any) -> Any:
        done = jax.block_until_ready(update(*args))
        updates.append(time.monotonic())
        return done

    monkeypatch.setattr(algorithm.learner, "update", counted)
    hall = algorithm._hall
    slow = Slow(hall.judges["agent1"], lambda: bool(updates), fails)
    algorithm._hall = replace(hall, judges={**hall.judges, "agent1": slow})
    return updates


def test_a_role_whose_rewards_are_in_learns_while_others_are_waited_for_and_learns_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = make()
    for _ in range(2):
        usual.iterate()
    algorithm = make()
    algorithm.iterate()
    updates = judged_last(algorithm, monkeypatch)
    done = algorithm.iterate()
    assert len(updates) == 2
    assert set(done.updates) == set(ROLES)
    assert bits(algorithm.states) == bits(usual.states)


def test_an_iteration_that_is_stopped_leaves_the_role_that_learned_early_as_it_was(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make()
    algorithm.iterate()
    before = bits(algorithm.states)
    updates = judged_last(algorithm, monkeypatch, fails=True)
    with pytest.raises(UserError, match="8 of 16 failed"):
        algorithm.iterate()
    assert len(updates) == 1
    assert bits(algorithm.states) == before
    assert algorithm.iteration == 1


@pytest.mark.parametrize(
    "setting", [{"isolation__reward": "shared"}, {"isolation__advantage": "joint"}]
)
def test_a_role_that_needs_the_others_rewards_waits_for_them(
    make: Make, setting: dict[str, object]
) -> None:
    assert make()._course(0, 8).early == list(ROLES)
    assert make(**setting)._course(0, 8).early == []
    assert make(pipeline__early_updates=False)._course(0, 8).early == []


def test_judges_of_roles_that_update_now_ask_first(make: Make) -> None:
    algorithm = make(roles__agent0__update_every=2)
    both, alone = algorithm._course(0, 8), algorithm._course(1, 8)
    assert [both.rank(role) for role in ROLES] == [1, 2]
    assert [alone.rank(role) for role in ROLES] == [2, 1]


# ------------------------------------------------------------------------- references beside


def test_references_in_the_order_of_ending_are_those_of_the_whole_batch(make: Make) -> None:
    """Also where a micro-batch is not full, and of views without a word of their own."""
    algorithm = make()
    trajectories = algorithm.rollouts()
    credits, _ = algorithm.learn(trajectories)
    rows = algorithm._rows("agent0", trajectories, credits)
    batch = algorithm._batch("agent0", trajectories, credits)
    assert batch is not None
    start = algorithm._start["agent0"]
    whole = algorithm.learner.reference_logp(start.trained, start.frozen, batch, 1.0)
    references = algorithm._references("agent0")
    for index, row in enumerate(rows[::-1]):
        mute = replace(row.view, loss_mask=np.zeros_like(row.view.loss_mask))
        references.add(mute if index < 3 else row.view, row.draw, row.rollout)
        if index == 2:
            references.send()
    found = references.of(rows, algorithm._batching)
    real = batch.segment_ids > 0
    muted = [row.view.ids for row in rows[::-1][:3]]
    theirs = [any(np.array_equal(ids[: len(v)], v) for v in muted) for ids in batch.ids]
    trained = batch.loss_mask & ~np.array(theirs)[:, None]
    np.testing.assert_allclose(found[trained], np.asarray(whole)[trained], atol=1e-5)
    assert np.count_nonzero(found[trained]) > 0.9 * trained.sum()
    assert not found[~real].any()


def test_an_update_uses_the_references_that_are_there(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none is computed again."""
    usual = make()
    algorithm = make()
    calls: list[int] = []
    reference = algorithm.learner.reference_logp

    def counted(*args: Any) -> Any:
        calls.append(len(args[2].ids))
        return reference(*args)

    monkeypatch.setattr(Algorithm, "_beside", property(lambda self: self is algorithm))
    usual.iterate()
    monkeypatch.setattr(algorithm.learner, "reference_logp", counted)
    done = algorithm.iterate()
    assert calls == [algorithm._batching.micro_batch] * len(calls)
    assert len(calls) == 2  # eight rows each, a micro-batch a role
    assert done.within["reference"] > 0
    for one, other in zip(
        jax.tree.leaves(algorithm.states), jax.tree.leaves(usual.states), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-4)


def with_settings(algorithm: Algorithm, changes: dict[str, object]) -> Algorithm:
    """It goes on by a config with these changes, of settings that are read an iteration."""
    algorithm.config = config = algorithm.config.copy_and_resolve_references()
    with config.unlocked():
        config.update_from_flattened_dict(changes)
    return algorithm


WAITS: dict[str, object] = {"roles.agent1.judge": "slow"}


def held_by(*counterparts: str, train: bool = False) -> dict[str, object]:
    return {"roles.agent1.train": train, "roles.agent1.counterpart": counterparts}


@pytest.mark.parametrize(
    ("changes", "beside"),
    [
        ({}, False),
        (WAITS, True),
        (held_by("api:slow"), True),
        (held_by("scripted:fair", "api:slow:x"), True),
        (held_by("frozen:start"), False),
        (held_by("api:slow", train=True), False),
    ],
)
def test_reference_passes_run_beside_dialogues_where_these_wait_for_an_endpoint(
    make: Make, changes: dict[str, object], beside: bool
) -> None:
    """An endpoint that judges, or that holds the seat of a role which does not learn."""
    course = with_settings(make(), changes)._course(0, 8)
    assert set(course.references) == (set(ROLES) if beside else set())


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"hosts": SimpleNamespace(count=2)},
        {"places": dict.fromkeys(ROLES, SimpleNamespace(mesh="of several devices"))},
    ],
)
def test_nothing_runs_beside_anything_on_several_devices_or_hosts(
    make: Make, monkeypatch: pytest.MonkeyPatch, elsewhere: dict[str, Any]
) -> None:
    """Their programs could wait for each other for ever."""
    algorithm = with_settings(make(), WAITS)
    for name, value in elsewhere.items():
        monkeypatch.setattr(algorithm, name, value)
    course = algorithm._course(0, 8)
    assert not course.references
    assert not course.early


# ------------------------------------------------------------------------- one iteration ahead


AHEAD: dict[str, object] = {
    "pipeline__max_staleness": 1,
    "run__checkpoint_every": 4,
    "iterations": 12,
}


def test_without_a_learning_rate_dialogues_ahead_are_those_on_policy(make: Make) -> None:
    still: dict[str, object] = {f"roles__{role}__learning_rate": 0.0 for role in ROLES}
    still |= {"stabilise__pool": False}  # a snapshot is drawn from a later iteration on
    exact, ahead = make(**still), make(**AHEAD, **still)
    on_policy = [exact.iterate() for _ in range(4)]  # one after the other: they share the engines
    for k, one in enumerate(on_policy):
        other = ahead.iterate()
        assert other.staleness == (k > 0)
        if k:
            for metrics in other.updates.values():
                assert metrics["importance"] == pytest.approx(1, abs=1e-4)
                assert metrics["importance_truncated"] == 0
        assert said(other.trajectories) == said(one.trajectories)
    assert ahead.settled  # a checkpoint is due


def test_importance_weights_correct_for_the_update_in_between(make: Make) -> None:
    """Dialogues of iteration 1 are those of the start; their weights differ from 1 and are held."""
    fast: dict[str, object] = {f"roles__{role}__learning_rate": 0.05 for role in ROLES}
    fast |= {f"roles__{role}__warmup_updates": 0 for role in ROLES}
    algorithm = make(**AHEAD, **fast, pipeline__truncate=1.5)
    first, second = algorithm.iterate(), algorithm.iterate()
    assert "importance" not in first.updates["agent0"]
    for metrics in second.updates.values():
        assert metrics["importance"] != pytest.approx(1, abs=1e-3)
        assert 0 < metrics["importance_truncated"] < 1
        assert metrics["importance"] <= 1.5
        assert metrics["ratio_deviation_max"] <= 1e-4  # the ratio is against present parameters
    versions = {v.policy.version for t in second.trajectories for v in t.views.values()}
    assert versions == {0}
    row = metrics_row(algorithm, second, 0)
    assert row["staleness"] == 1
    assert row["roles"]["agent0"]["importance_truncated"] > 0
    assert row["roles"]["agent0"]["sampler_trainer_max"] is None  # what sampled is gone
    assert metrics_row(algorithm, first, 0)["roles"]["agent0"]["sampler_trainer_max"] < 1e-4
    assert row["seconds"]["within"]["saved"] > 0
    json.dumps(row, allow_nan=False)


def test_a_run_ahead_is_no_iteration_of_a_run_that_is_not(make: Make) -> None:
    row = metrics_row(algorithm := make(), algorithm.iterate(), 0)
    assert "staleness" not in row
    assert "importance" not in row["roles"]["agent0"]


def test_ahead_a_run_stopped_at_a_checkpoint_equals_one_that_was_not(
    house: House, quiet: Console
) -> None:
    settings: dict[str, object] = {"pipeline__max_staleness": 1, "run__checkpoint_every": 3}
    with house.at_home():
        whole = train(house.config(name="ahead", iterations=6, **settings), quiet)
        train(house.config(name="again", iterations=3, **settings), quiet)
        again = train(house.config(name="again", iterations=6, **settings), quiet)
    assert differences(whole.path, again.path) == []
    rows = [json.loads(line) for line in whole.metrics.read_text().splitlines()]
    assert [row["staleness"] for row in rows] == [0, 1, 1, 0, 1, 1]


def test_what_is_under_way_can_be_broken_off(make: Make) -> None:
    algorithm = make(**AHEAD)
    algorithm.iterate()
    assert not algorithm.settled
    algorithm.close()
    assert algorithm.settled
    assert not house_is_busy(algorithm)


def house_is_busy(algorithm: Algorithm) -> bool:
    return any(len(e._free) < e.settings.slots for e in algorithm.cast.engines.values())


# ------------------------------------------------------------------------- where the time went


def test_the_seconds_of_every_row_add_up(house: House, quiet: Console) -> None:
    with house.at_home():
        folder: RunFolder = train(house.config(name="seconds", iterations=3), quiet)
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    for row in rows:
        seconds, within = row["seconds"], row["seconds"]["within"]
        assert sum(seconds[lap] for lap in LAPS) == pytest.approx(seconds["total"])
        played = sum(within[part] for part in ("sampling", "talking", "judging"))
        assert played == pytest.approx(seconds["rollout"], rel=0.2, abs=0.05)
        assert set(within) >= {"reference", "update_agent0", "update_agent1"}
        assert min(within.values()) >= 0
    assert rows[0]["seconds"]["write"] == rows[0]["seconds"]["save"] == 0
    assert rows[1]["seconds"]["write"] > 0
    assert rows[1]["seconds"]["save"] > 0
    summary = json.loads((folder.path / "summary.json").read_text())
    assert set(summary["stages"]) >= {*LAPS, "total", "sampling", "update_agent0"}
    assert set(summary["tokens_per_second"]) == {"rollout", "update"}
    assert summary["start_seconds"] > 0
    assert summary["programs"] > 0


# ------------------------------------------------------------------------- started again


@pytest.fixture
def own_cache(tmp_path: Path) -> Iterator[None]:
    """Programs are kept in a folder that nothing has been put in yet."""
    before = os.environ["JAX_COMPILATION_CACHE_DIR"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "cache"))
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()


@pytest.mark.timeout(400)  # it compiles all that a run needs: seconds, but on a busy machine
def test_a_second_start_of_a_config_compiles_nothing(
    house: House, quiet: Console, own_cache: None, tmp_path: Path
) -> None:
    """Its supervised start, dialogues, references and updates."""
    anew = []
    for again in ("first", "second"):
        jax.clear_caches()  # as in a process that begins
        with quick_compile():
            folder = train(house.config(iterations=2, run__root=tmp_path / again), quiet)
        anew.append(json.loads((folder.path / "summary.json").read_text())["compiled_anew"])
    assert anew[0] > 10
    assert anew[1] == 0
