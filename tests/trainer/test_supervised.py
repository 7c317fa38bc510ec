"""The supervised start: packing changes no loss, and a kill costs a few steps and not a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.models.params import init_params
from ibrl_jax.trainer import halfway
from ibrl_jax.trainer import start as starts
from ibrl_jax.trainer.placing import places
from ibrl_jax.trainer.start import start_key, start_policy
from ibrl_jax.trainer.supervised import stepper
from ibrl_jax.trainer.weights import seed_of
from tests.trainer.conftest import quick_compile

SMOKE = str(Path(__file__).parents[2] / "configs" / "dond" / "smoke.py")


def smoke(root: Path, *options: str) -> ConfigDict:
    named = [f"--config.{option}" for option in (f"run.root={root}", "sft.steps=6", *options)]
    return load(SMOKE, named)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(tree)]


class Killed(Exception):
    pass


def made(config: ConfigDict) -> Any:
    domain, speech = build_domain(config), build_speech(config)
    with quick_compile():
        weights, folder = start_policy(config, domain, speech, lambda note: None)
    assert folder is not None
    assert not list(folder.parent.glob("*.part"))
    return weights.trained


@pytest.mark.parametrize("packed", [False, True])
def test_a_start_that_was_killed_goes_on_and_is_the_same_bit_for_bit(
    packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    option = f"sft.packed={packed}"
    whole = made(smoke(tmp_path / "whole", option))
    monkeypatch.setattr(halfway, "EVERY", 2)
    monkeypatch.setattr(halfway, "SHARE", 0)
    config, keep, kept = smoke(tmp_path / "killed", option), halfway.keep, []

    def killed(folder: Path, now: halfway.Halfway) -> None:
        keep(folder, now)
        kept.append(now.step)
        if now.step == 4:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(halfway, "keep", killed)
        with pytest.raises(Killed):
            made(config)
    assert kept == [2, 4]
    taken: list[int] = []
    build = starts.stepper

    def counting(*args: Any, **more: Any) -> Any:
        step = build(*args, **more)

        class Counted:
            init = staticmethod(step.init)

            def __call__(self, *rows: Any) -> Any:
                taken.append(1)
                return step(*rows)

        return Counted()

    monkeypatch.setattr(starts, "stepper", counting)
    assert bits(made(config)) == bits(whole)
    assert len(taken) == 2


def test_a_state_is_kept_less_often_where_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(halfway.time, "monotonic", lambda: clock[0])
    pace = halfway.Pace()
    assert pace.due()
    pace.timed(lambda: clock.append(clock.pop() + 3.0))
    assert clock == [103.0]
    clock[0] += 59.0
    assert not pace.due()
    clock[0] += 1.0
    assert pace.due()


def test_what_was_kept_and_cannot_be_read_is_taken_anew(tmp_path: Path) -> None:
    like = {"a": jax.numpy.zeros(3)}
    assert halfway.find(tmp_path, like) is None
    (tmp_path / "steps.npz").write_bytes(b"cut sh")
    assert halfway.find(tmp_path, like) is None
    now = halfway.Halfway(trees=like, step=1, draws={"x": 1}, losses=np.ones(1, np.float32))
    halfway.keep(tmp_path, now)
    assert halfway.find(tmp_path, {"a": jax.numpy.zeros(4)}) is None
    again = halfway.find(tmp_path, like)
    assert again is not None
    assert (again.step, again.draws, again.losses.tolist()) == (1, {"x": 1}, [1.0])


def test_a_packed_row_has_the_loss_of_its_examples_apart(tmp_path: Path) -> None:
    config = smoke(tmp_path)
    speech = build_speech(config)
    place = places(config, speech, ("agent0", "agent1"))["agent0"]
    rng = np.random.default_rng(0)
    lengths, size = (5, 9, 4), 24
    ids = [rng.integers(3, 600, n).astype(np.int32) for n in lengths]
    apart = [np.zeros((3, size), dtype) for dtype in (np.int32, np.int32, np.float32)]
    packed = [np.zeros((3, size), dtype) for dtype in (np.int32, np.int32, np.float32)]
    at = 0
    for row, example in enumerate(ids):
        n = len(example)
        apart[0][row, :n], apart[1][row, :n], apart[2][row, :n] = example, 1, row + 1
        here = slice(at, at + n)
        packed[0][0, here], packed[1][0, here], packed[2][0, here] = example, row + 1, row + 1
        at += n
    found = []
    for rows, several in ((apart, False), (packed, True)):
        optimiser = optax.sgd(0.1)
        step = stepper(speech, optimiser, 8, 3, None, place, packed=several)
        params, state = step.init(init_params(speech.model.config, 0))
        with quick_compile():
            params, _, loss = step(params, state, (rows[0], rows[1], rows[2]))
        found.append((float(loss), params))
    (one, first), (other, second) = found
    assert other == pytest.approx(one, rel=1e-5)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_settings_of_another_domain_do_not_make_another_start(tmp_path: Path) -> None:
    def key(*options: str) -> str:
        config = smoke(tmp_path, *options)
        return start_key(config, build_domain(config), build_speech(config), seed_of(config))

    assert key() == key("telesales.train_profiles=7", "rewards.gamma=0.5")
    assert key() != key("sft.packed=True")
    assert key() != key("dond.max_count=3")
