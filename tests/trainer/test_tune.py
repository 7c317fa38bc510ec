"""How an update is cut up is measured once, and a run keeps to what it began with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_speech
from ibrl_jax.errors import UserError
from ibrl_jax.parallel.hosts import Hosts
from ibrl_jax.trainer import session, tune
from ibrl_jax.trainer.build import batch_settings, build_learner
from ibrl_jax.trainer.placing import Place
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.tune import Tuned
from ibrl_jax.trainer.weights import Weights

Ask = Callable[..., Tuned]


class Machine:
    """Seconds a token that a machine takes, for whoever asks `tune` to measure.

    `speeds`: by (rows, lanes); `cut`: how much of its time half a row takes.
    """

    def __init__(self, speeds: dict[tuple[int, int], float], cut: float = 0.5) -> None:
        self.speeds, self.cut = speeds, cut
        self.asked: list[tuple[int, int]] = []

    def seconds(self, trial: Any, micro: int, length: int) -> dict[int, float] | None:
        self.asked.append((micro, length))
        share = 1.0 if length == trial.length else self.cut * trial.length / length
        found = {n: s * share for (rows, n), s in self.speeds.items() if rows == micro}
        return {n: s for n, s in found.items() if n in trial.lanes()} or None


@pytest.fixture
def config(smoke_config: Callable[..., ConfigDict]) -> ConfigDict:
    return smoke_config(
        policy__preset="qwen3_micro",
        optimiser__micro_batch=0,
        optimiser__lanes=0,
        optimiser__lengths=(),
        rollout__draws=16,
        rollout__group=4,
        roles__agent0__update_every=2,
        roles__agent1__update_every=2,
        roles__agent1__update_offset=1,
    )


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """`ask(config, machine)`: what is chosen on a machine with two cores."""
    monkeypatch.setattr(tune.host, "cores", lambda: 2)

    def choose(config: ConfigDict, machine: Machine | None, kept: str = "", **more: Any) -> Tuned:
        if machine is not None:
            monkeypatch.setattr(tune._Trial, "seconds", lambda *args: machine.seconds(*args))
        speech = build_speech(config)
        return tune.choose(
            config,
            speech,
            Place(speech.model, None),
            more.pop("start", Weights(trained=None, frozen=None)),
            more.pop("note", lambda text: None),
            kept=tmp_path / kept if kept else None,
            cache=tmp_path / "tuned.json",
            **more,
        )

    return choose


def test_the_fastest_a_token_is_taken_and_the_climb_ends_where_it_gets_worse(config, ask):
    machine = Machine({(4, 1): 7, (8, 1): 5, (16, 1): 6, (32, 1): 1}, cut=0.95)
    whole = config.rollout.max_view_tokens
    assert ask(config, machine) == Tuned(micro_batch=8, lengths=(whole,), lanes=1)
    assert machine.asked[:3] == [(4, whole), (8, whole), (16, whole)]


def test_more_lanes_and_a_cut_are_taken_where_they_pay(config, ask):
    speeds = {(4, 1): 7.0, (4, 2): 4.0, (8, 1): 5.0, (8, 2): 4.8}
    whole = config.rollout.max_view_tokens
    half = -(-whole // 16) * 8
    assert ask(config, Machine(speeds)) == Tuned(micro_batch=4, lengths=(half, whole), lanes=2)
    config.optimiser.trained_share = 1.0
    assert ask(config, Machine(speeds)) == Tuned(micro_batch=4, lengths=(half,), lanes=2)


def test_lanes_that_save_little_are_left(config, ask):
    assert ask(config, Machine({(4, 1): 5.0, (4, 2): 4.8})).lanes == 1


def test_roles_that_update_side_by_side_leave_no_core_for_lanes(smoke_config, ask):
    both = {
        f"roles__{r}__update_{k}": v
        for r in ("agent0", "agent1")
        for k, v in (("every", 1), ("offset", 0))
    }
    busy = smoke_config(optimiser__micro_batch=0, optimiser__lanes=0, **both)
    assert ask(busy, Machine({(4, 1): 5.0, (4, 2): 1.0})).lanes == 1


def test_what_the_config_says_is_kept_and_nothing_is_measured(config, ask):
    config.optimiser.update(micro_batch=4, lanes=1, lengths=(24,))
    machine = Machine({})
    assert ask(config, machine) == Tuned(micro_batch=4, lengths=(24,), lanes=1)
    assert not machine.asked


def test_only_what_is_left_open_is_measured(config, ask):
    config.optimiser.update(micro_batch=4, lengths=())
    machine = Machine({(4, 1): 5.0, (4, 2): 2.0})
    assert ask(config, machine) == Tuned(micro_batch=4, lengths=(), lanes=2)
    assert machine.asked == [(4, config.rollout.max_view_tokens)]


def test_a_second_run_measures_nothing_and_another_network_does(config, ask):
    first = ask(config, Machine({(4, 1): 5.0}))
    again = Machine({(8, 1): 1.0})
    assert ask(config, again) == first
    assert not again.asked
    config.policy.preset = "qwen3_tiny"
    ask(config, other := Machine({(4, 1): 5.0}))
    assert other.asked


def test_a_run_that_goes_on_is_cut_up_as_it_began(config, ask, tmp_path):
    first = ask(config, Machine({(4, 1): 5.0}), kept="run.json")
    (tmp_path / "tuned.json").unlink()  # and the machine is another by now
    assert ask(config, Machine({(8, 1): 5.0}), kept="run.json") == first
    assert json.loads((tmp_path / "run.json").read_text())["micro_batch"] == 4


def test_a_damaged_file_of_a_run_is_told_and_a_damaged_cache_measured_anew(config, ask, tmp_path):
    (tmp_path / "tuned.json").write_text("{")
    assert ask(config, Machine({(4, 1): 5.0})).micro_batch == 4
    (tmp_path / "run.json").write_text("[]")
    with pytest.raises(UserError, match=r"run\.json is damaged; give config\.optimiser"):
        ask(config, None, kept="run.json")


def test_nothing_fits_is_one_sentence(config, ask):
    config.optimiser.memory_gb = 1e-9
    with pytest.raises(UserError, match="not even 4 rows of .* fit into 0.0 GB"):
        ask(config, Machine({}))


def test_no_measurement_takes_more_memory_than_there_is(config, monkeypatch):
    monkeypatch.setattr(tune, "_memory", lambda: 4e9)
    speech = build_speech(config)
    for asked, given in ((0.0, 4e9), (3.0, 3e9), (1e6, 8e9)):
        config.optimiser.memory_gb = asked
        trial = tune._Trial(config, speech, Place(speech.model, None), None, lambda: 0.0)  # type: ignore[arg-type]
        assert trial.budget == given


def test_the_choice_shapes_the_batch_and_the_learner(config):
    settled = Tuned(micro_batch=4, lengths=(24,), lanes=2).into(config)
    assert config.optimiser.micro_batch == 0
    assert batch_settings(settled, 1).micro_batch == 4
    assert batch_settings(settled, 1).rows % 8 == 0
    assert build_learner(settled, build_speech(config))._settings.lanes == 2


def test_a_measurement_times_real_passes_and_asks_their_memory(config, ask):
    """With a clock that counts its readings, all candidates are alike: the first is taken."""
    config.optimiser.update(micro_batch=2, lanes=0)
    config.rollout.max_view_tokens = 16
    speech = build_speech(config)
    start = Weights(trained=Place(speech.model, None).fresh(0, base=False), frozen=None)
    ticks = iter(range(1000))
    said: list[str] = []
    chosen = ask(config, None, start=start, clock=lambda: float(next(ticks)), note=said.append)
    assert chosen == Tuned(micro_batch=2, lengths=(), lanes=1)
    assert next(ticks) == 2 * 2 * (1 + tune.REPEATS)  # two readings a run, two numbers of lanes
    assert said[-1] == "measured: 2 rows a pass, 1 at a time, of 16 tokens: 64 tokens/s in updates"
    config.optimiser.memory_gb = 1e-6
    with pytest.raises(UserError, match="not even 2 rows"):
        ask(config, None, start=start)
    assert np.isfinite(a_parameter(start))


def a_parameter(start: Weights) -> float:
    """A parameter, which a measurement must have left alone."""
    return float(np.asarray(start.trained["embed"])[0, 0])


@pytest.mark.parametrize("begun", [True, False])
def test_a_measurement_counts_for_a_run_that_has_begun_alone(
    config: ConfigDict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """What another config of the same name measured, before it ever iterated, is not ours."""
    folder = RunFolder(tmp_path)
    (tmp_path / "tuned.json").write_text("{}")
    if begun:
        folder.metrics.write_text("")
    there: list[bool] = []

    def choose(*given: Any, kept: Path) -> Tuned:
        there.append(kept.is_file())
        return Tuned(micro_batch=4, lengths=(8,), lanes=1)

    monkeypatch.setattr(tune, "choose", choose)
    speech, nothing = build_speech(config), Weights(trained=None, frozen=None)
    roles = ("agent0", "agent1")
    session._tuned(
        config, speech, roles, nothing, lambda text: None, folder, Hosts(0, 1, None, None)
    )
    assert there == [begun]
