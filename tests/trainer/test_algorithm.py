"""Algorithm 1: who sits where, who learns from what, and what stops it before harm is done."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from ibrl_jax.contests.contest import contest_of_run
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.endpoints.errors import EndpointError, Kind
from ibrl_jax.errors import UserError
from ibrl_jax.proofs.resume_check import differences
from ibrl_jax.rewards.types import Failed, Scored
from ibrl_jax.rl.batches import RoleBatch
from ibrl_jax.rl.learner import Learner, TrainingError
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.checkpoint import Checkpoints
from ibrl_jax.trainer.draws import draw_scenarios
from ibrl_jax.trainer.measure import metrics_row
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import frozen_counterparts, train
from tests.trainer.conftest import House

ROLES = ("agent0", "agent1")


def bits(tree: Any) -> list[bytes]:
    """Every leaf, to the bit, in memory of its own."""
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(jax.device_get(tree))]


def spoke(trajectory: Trajectory, role: Role) -> bool:
    return bool(trajectory.views[role].loss_mask.any())


Make = Callable[..., Algorithm]


@pytest.fixture(scope="module")
def make(house: House) -> Make:
    """`make(loss__epochs=2, ...)`: an algorithm at iteration 0, in the shared house.

    `alone`: agent0 learns against these counterparts. `endpoints`: what `api:...` finds, by name.
    """

    def build(
        *, alone: Sequence[str] = (), endpoints: dict[str, Any] | None = None, **overrides: object
    ) -> Algorithm:
        if alone:
            overrides |= {"roles__agent1__train": False}
            overrides |= {"roles__agent1__counterpart": tuple(alone)}
        for name in endpoints or {}:
            overrides[f"endpoints__{name}__base_url"] = "http://127.0.0.1:9/v1"
        config = house.config(**overrides)
        cast = replace(house.cast, endpoints=endpoints or {})
        frozen = frozen_counterparts(config, house.start, cast.speech)
        algorithm = Algorithm(config, cast, house.start, frozen)
        algorithm.learner = house.learner
        return algorithm

    return build


@pytest.fixture(scope="module")
def undisturbed(house: House, quiet: Console) -> RunFolder:
    """Four iterations, agent1 updating at every second one."""
    with house.at_home():
        return train(
            house.config(name="undisturbed", iterations=4, roles__agent1__update_every=2), quiet
        )


# ------------------------------------------------------------------------- unilateral training


def test_against_a_frozen_start_one_role_learns(make: Make, house: House) -> None:
    algorithm = make(alone=["frozen:start"])
    assert algorithm.learners == ("agent0",)
    done = algorithm.iterate()
    assert set(done.updates) == set(algorithm.states) == set(algorithm.pools) == {"agent0"}
    assert done.drawn == {"agent0": None}
    assert len(algorithm.pools["agent0"]) == 0  # nobody could sit there
    for t in done.trajectories:
        assert t.matchup == {"agent0"}
        assert t.speakers == {"agent0": "live:agent0@0", "agent1": "frozen:start@0"}
        assert t.views["agent1"].policy.seat == "frozen"
    assert bits(algorithm.params("agent0")) != bits(house.start.trained)


def test_a_frozen_seat_has_no_row_no_mask_and_no_vote(make: Make) -> None:
    algorithm = make(alone=["frozen:start"])
    trajectories = algorithm.rollouts()
    credits, updates = algorithm.learn(trajectories)
    assert {role for role, _, _ in credits.seats} == {"agent0"}
    assert len(credits.seats) == sum(spoke(t, "agent0") for t in trajectories) > 0
    own = sum(int(t.views["agent0"].loss_mask.sum()) for t in trajectories)
    assert updates["agent0"]["tokens"] == own


def test_a_frozen_policy_of_another_run_holds_a_seat_with_its_own_parameters(
    make: Make, undisturbed: RunFolder, house: House
) -> None:
    name = f"frozen:{undisturbed.path}:agent1"
    algorithm = make(alone=[name])
    done = algorithm.iterate()
    seated = {t.speakers["agent1"] for t in done.trajectories}
    assert seated == {f"frozen:{undisturbed.path}:agent1@0"}
    theirs = frozen_counterparts(algorithm.config, house.start, house.cast.speech)[name]
    assert bits(theirs) != bits(house.start.trained)
    again = make(alone=["frozen:start"]).iterate()
    heard = [
        bits([t.views["agent1"].behaviour_logp for t in d.trajectories]) for d in (done, again)
    ]
    assert heard[0] != heard[1]


@pytest.mark.parametrize(
    "name, why",
    [
        ("frozen:nowhere:agent1", "nowhere is not a run folder"),
        ("frozen:other", "must be frozen:start or frozen:<run folder>:<role>"),
        ("scripted:nobody", "no scripted family 'nobody'"),
    ],
)
def test_a_counterpart_that_is_not_there_is_one_sentence(make: Make, name: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        make(alone=[name]).iterate()


def test_against_a_list_one_counterpart_holds_all_rollouts_of_a_draw(make: Make) -> None:
    names = ["scripted:conceder", "scripted:splitter", "scripted:trader"]
    algorithm = make(alone=names, rollout__draws=2)
    done = algorithm.iterate()
    by_draw: dict[str, set[str]] = {}
    for t in done.trajectories:
        by_draw.setdefault(t.draw, set()).add(t.speakers["agent1"])
        assert set(t.views) == {"agent0"}
    assert all(len(seated) == 1 for seated in by_draw.values())
    assert set.union(*by_draw.values()) <= set(names)
    config = algorithm.config.copy_and_resolve_references()
    config.rollout.draws = 300
    drawn = draw_scenarios(config, algorithm.cast.domain, 0)
    counts = Counter(draw.counterparts["agent1"] for draw in drawn)
    assert set(counts) == set(names)
    assert min(counts.values()) > 70
    config.roles.agent1.counterpart = ("scripted:conceder",)
    against_one = draw_scenarios(config, algorithm.cast.domain, 0)
    assert [d.scenario.id for d in drawn] == [d.scenario.id for d in against_one]


def test_returns_by_counterpart_add_up(make: Make) -> None:
    algorithm = make(alone=["scripted:conceder", "scripted:splitter", "frozen:start"])
    for _ in range(2):
        done = algorithm.iterate()
        row = metrics_row(algorithm, done, 0)
        assert set(row["speakers"]) == {"agent1"}
        found = row["speakers"]["agent1"]
        paid: dict[str, list[float]] = {}
        for t in done.trajectories:
            reward = t.rewards["agent0"]
            assert isinstance(reward, Scored)
            paid.setdefault(t.speakers["agent1"], []).append(reward.value)
        assert found == {
            name: {"episodes": len(values), "return": pytest.approx(sum(values))}
            for name, values in paid.items()
        }
        assert sum(entry["episodes"] for entry in found.values()) == 8
        assert row["roles"]["agent1"] == {"rows": 0, "reward": None, "reward_std": None}
        json.dumps(row, allow_nan=False)


# ------------------------------------------------------------------------- flags and switches


@pytest.mark.parametrize("flag, value", [("reward", "shared"), ("advantage", "joint")])
def test_a_flag_of_the_advantages_runs(make: Make, flag: str, value: str) -> None:
    algorithm = make(**{f"isolation__{flag}": value})
    done = algorithm.iterate()
    assert set(done.updates) == set(ROLES)
    groups: dict[object, list[float]] = {}  # what its members were paid
    baselines: dict[object, set[float]] = {}
    for t in done.trajectories:
        own = {r: paid.value for r, paid in t.rewards.items() if isinstance(paid, Scored)}
        for role in ROLES:
            if not spoke(t, role):
                continue
            group = t.draw if flag == "advantage" else (role, t.draw)
            paid = sum(own.values()) / 2 if flag == "reward" else own[role]
            groups.setdefault(group, []).append(paid)
            credit = done.credits.seats[role, t.draw, t.rollout]
            baselines.setdefault(group, set()).add(credit.baseline)
    for group, paid in groups.items():
        assert list(baselines[group]) == pytest.approx([sum(paid) / len(paid)])
    assert sum(map(len, groups.values())) == len(done.credits.seats)


def test_tied_roles_are_one_state_that_learns_from_both(make: Make) -> None:
    algorithm = make(isolation__update="tied")
    assert list(algorithm.states) == ["agent0"]
    assert algorithm.params("agent0") is algorithm.params("agent1")
    trajectories = algorithm.rollouts()
    credits = algorithm._credit(trajectories)
    batch = algorithm._batch("agent0", trajectories, credits)
    assert batch is not None
    spoke = [v for t in trajectories for v in t.views.values() if v.loss_mask.any()]
    assert batch.weight.sum() == len(spoke) == len(credits.seats)
    own = sum(int(v.loss_mask.sum()) for t in trajectories for v in t.views.values())
    assert batch.loss_mask.sum() == own


def test_separate_roles_share_no_buffer(make: Make) -> None:
    algorithm = make()
    one, other = (jax.tree.leaves(algorithm.states[role]) for role in ROLES)
    where = [{x.unsafe_buffer_pointer() for x in leaves} for leaves in (one, other)]
    assert not where[0] & where[1]


def test_without_a_pool_no_past_policy_holds_a_seat(make: Make) -> None:
    algorithm = make(stabilise__pool=False)
    for _ in range(3):
        done = algorithm.iterate()
        assert done.drawn == {"agent0": None, "agent1": None}
        assert all(t.matchup == set(ROLES) for t in done.trajectories)
        assert all(v.policy.seat == "live" for t in done.trajectories for v in t.views.values())
    assert all(len(pool) == 0 for pool in algorithm.pools.values())


def test_without_staggering_every_role_updates_at_every_iteration(make: Make) -> None:
    algorithm = make(stabilise__stagger=False, roles__agent0__update_every=3)
    for count in (1, 2, 3):
        assert set(algorithm.iterate().updates) == set(ROLES)
        assert algorithm.version("agent0") == algorithm.version("agent1") == count


def test_a_role_whose_turn_it_is_not_keeps_every_bit_of_its_state(make: Make) -> None:
    """agent1 updates at every second iteration, and its weights decay."""
    algorithm = make(roles__agent1__update_every=2, roles__agent1__weight_decay=0.1)
    algorithm.iterate()
    before = {role: bits(algorithm.states[role]) for role in ROLES}
    assert set(algorithm.iterate().updates) == {"agent0"}
    assert bits(algorithm.states["agent1"]) == before["agent1"]
    assert bits(algorithm.states["agent0"]) != before["agent0"]


# ------------------------------------------------------------------------- draws and pools


def test_every_seat_opens_equally_often(house: House) -> None:
    """Within an iteration, and for an odd number of draws over two."""
    for draws, iterations in ((6, 1), (3, 2), (1, 4)):
        config = house.config(rollout__draws=draws)
        first = Counter(
            draw.first
            for iteration in range(iterations)
            for draw in draw_scenarios(config, house.cast.domain, iteration)
        )
        assert first["agent0"] == first["agent1"]


def test_a_draw_is_a_group_even_when_its_scenario_was_drawn_before(house: House) -> None:
    config = house.config(rollout__draws=2000)
    drawn = draw_scenarios(config, house.cast.domain, 0)
    assert len({draw.id for draw in drawn}) == 2000
    assert len({draw.scenario.id for draw in drawn}) < 2000
    train_split = {s.id for s in house.cast.domain.scenarios("train")}
    assert {draw.scenario.id for draw in drawn} <= train_split
    assert not {d.id for d in drawn} & {d.id for d in draw_scenarios(config, house.cast.domain, 1)}


def test_a_snapshot_is_what_was_live_and_no_update_reaches_it(make: Make) -> None:
    algorithm = make()
    algorithm.iterate()
    kept: dict[Role, list[bytes]] = {}
    for role in ROLES:
        assert algorithm.pools[role].versions == (1,)
        kept[role] = bits(algorithm.params(role))
        assert bits(algorithm.pools[role].params(1)) == kept[role]
    done = algorithm.iterate()  # donates the buffers of the first
    for role in ROLES:
        assert bits(algorithm.pools[role].params(1)) == kept[role]
        assert bits(algorithm.params(role)) != kept[role]
        assert algorithm.pools[role].versions == (1, 2)
    # at the second iteration version 1 was still live, and nobody is their own past
    assert done.drawn == {"agent0": None, "agent1": None}
    assert algorithm.iterate().drawn == {"agent0": 1, "agent1": 1}


# ------------------------------------------------------------------------- what stops a run


class Broken:
    """An endpoint that fails in so many of its conversations, always in the same ones."""

    def __init__(self, share: float) -> None:
        self.settings = SimpleNamespace(name="broken")
        self._share = share

    async def chat(self, messages: Sequence[Any], *, sample_index: int) -> Any:
        await asyncio.sleep(0)
        if sample_index % 100 < 100 * self._share:
            raise EndpointError(Kind.TIMEOUT, "broken", "no answer in 5 s", 3)
        return SimpleNamespace(text="<disagree>", finish="stop")


def test_too_few_rewards_stop_the_run_and_name_the_failure(make: Make) -> None:
    algorithm = make(endpoints={"broken": Broken(1.0)}, alone=["api:broken"])
    before = bits(algorithm.states)
    with pytest.raises(UserError) as caught:
        algorithm.iterate()
    assert re.search(
        r"only \d+% of iteration 0's rewards .* \(\d+ of 16 failed\)", str(caught.value)
    )
    assert "endpoint 'broken': timeout after 3 attempts: no answer in 5 s" in str(caught.value)
    assert algorithm.iteration == 0
    assert bits(algorithm.states) == before


def test_a_failed_reward_has_no_row_and_counts_against_coverage(make: Make) -> None:
    algorithm = make(
        endpoints={"broken": Broken(0.5)}, alone=["api:broken"], rewards__min_coverage=0.1
    )
    done = algorithm.iterate()
    failed = [t for t in done.trajectories if isinstance(t.rewards["agent0"], Failed)]
    assert 0 < len(failed) < 8
    for t in done.trajectories:
        scored = t not in failed and spoke(t, "agent0")
        assert (("agent0", t.draw, t.rollout) in done.credits.seats) == scored
    row = metrics_row(algorithm, done, 0)
    assert row["coverage"] == pytest.approx(1 - len(failed) / 8)
    assert row["end_reasons"]["aborted"] == len(failed)
    paid = [r.value for t in done.trajectories if isinstance(r := t.rewards["agent0"], Scored)]
    assert row["roles"]["agent0"]["reward"] == pytest.approx(sum(paid) / len(paid))


def test_a_role_without_a_row_does_not_update_and_the_other_does(make: Make) -> None:
    algorithm = make()
    before = bits(algorithm.states["agent1"])
    failed = {"agent1": Failed(reason="nobody answered")}
    played = [replace(t, rewards={**t.rewards, **failed}) for t in algorithm.rollouts()]
    _, updates = algorithm.learn(played)
    assert set(updates) == {"agent0"}
    assert algorithm.version("agent0") == 1
    assert bits(algorithm.states["agent1"]) == before


def poisoned(learner: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reference log-probability is no number: neither is then the loss."""
    reference = learner.reference_logp
    monkeypatch.setattr(
        learner, "reference_logp", lambda *args: np.full_like(reference(*args), np.nan)
    )


def test_a_loss_that_is_no_number_stops_before_parameters_are_touched(
    make: Make, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make()
    algorithm.iterate()
    before = bits(algorithm.states)
    poisoned(house.learner, monkeypatch)
    with pytest.raises(TrainingError, match="after 1 updates the loss is nan"):
        algorithm.iterate()
    assert bits(algorithm.states) == before
    assert algorithm.iteration == 1


def test_a_second_pass_that_is_no_number_stops_the_run_too(
    make: Make, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make(loss__epochs=2)
    update = house.learner.update
    calls = Counter[int]()

    def poison_second(state: Any, frozen: Any, batch: RoleBatch, hyper: Any) -> Any:
        calls[id(batch)] += 1
        if calls[id(batch)] == 2:
            batch = batch.replace(behaviour_logp=np.full_like(batch.behaviour_logp, np.nan))
        return update(state, frozen, batch, hyper)

    monkeypatch.setattr(house.learner, "update", poison_second)
    with pytest.raises(TrainingError, match="this pass was refused"):
        algorithm.iterate()


def test_more_passes_are_more_updates_of_one_batch(make: Make) -> None:
    algorithm = make(loss__epochs=3)
    done = algorithm.iterate()
    assert algorithm.version("agent0") == algorithm.version("agent1") == 3
    for metrics in done.updates.values():
        assert metrics["updates"] == 3
        # shown is the first pass, which is on-policy
        assert metrics["ratio_deviation_max"] <= 1e-4


def test_neither_an_evaluation_nor_a_refused_update_leaves_a_trace(
    house: House, undisturbed: RunFolder, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two iterations, an evaluation, a NaN at the third, then the rest: bitwise as undisturbed."""
    settings: dict[str, Any] = {"name": "poisoned", "roles__agent1__update_every": 2}
    with house.at_home():
        folder = train(house.config(iterations=2, **settings), quiet)
        contest_of_run(folder, house.config(iterations=2, **settings), lambda note: None)
        with monkeypatch.context() as patch:
            poisoned(house.learner, patch)
            with pytest.raises(TrainingError):
                train(house.config(iterations=4, **settings), quiet)
        assert len(folder.metrics.read_text().splitlines()) == 2
        saved = sorted(path.name for path in (folder.path / "checkpoints").iterdir())
        assert saved == ["1", "2"]
        train(house.config(iterations=4, **settings), quiet)
    assert differences(undisturbed.path, folder.path) == []


def test_a_checkpoint_gives_back_everything(make: Make, tmp_path: Any) -> None:
    """Roles at different counts, each with its own pool."""
    algorithm = make(roles__agent1__update_every=2)
    for _ in range(3):
        algorithm.iterate()
    checkpoints = Checkpoints(tmp_path / "checkpoints", 2)
    checkpoints.save(algorithm)
    fresh = make(roles__agent1__update_every=2)
    assert checkpoints.restore(fresh)
    checkpoints.close()
    assert fresh.iteration == 3
    assert (fresh.version("agent0"), fresh.version("agent1")) == (3, 2)
    assert bits(fresh.states) == bits(algorithm.states)
    for role in ROLES:
        assert fresh.pools[role].versions == algorithm.pools[role].versions
        assert bits(fresh.pools[role].state()["params"]) == bits(
            algorithm.pools[role].state()["params"]
        )
    one, other = algorithm.iterate(), fresh.iterate()
    assert [t.turns for t in one.trajectories] == [t.turns for t in other.trajectories]
    assert bits(fresh.states) == bits(algorithm.states)


def test_a_damaged_checkpoint_is_one_sentence(make: Make, tmp_path: Path) -> None:
    algorithm = make()
    with Checkpoints(tmp_path / "checkpoints", 2) as checkpoints:
        checkpoints.save(algorithm)
        newest = checkpoints.folder / "0"
        meta = newest / "meta" / "metadata"
        kept = json.loads(meta.read_text())
        for said in ({**kept, "iteration": 3}, {"pools": {}}, {"iteration": 0}, {}):
            meta.write_text(json.dumps(said))
            with pytest.raises(UserError, match="it may be damaged .* goes on from the start"):
                checkpoints.restore(algorithm)
        meta.write_text(json.dumps(kept))
        largest = max((newest / "state").rglob("d/*"), key=lambda file: file.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 1
        largest.write_bytes(content)
        with pytest.raises(UserError, match="is not as it was saved"):
            checkpoints.restore(algorithm)
