"""One run of everything, small, shared by the tests of the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax.config import load
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.rl.learner import Learner
from ibrl_jax.trainer import build, seating, session
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import set_up, train
from ibrl_jax.trainer.weights import Weights

SMOKE = str(Path(__file__).parents[2] / "configs" / "dond" / "smoke.py")


@pytest.fixture(scope="session")
def quiet() -> Console:
    return Console(quiet=True)


@pytest.fixture(scope="session")
def smoke_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs of the tests, so that they share one start."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="session")
def smoke_config(smoke_root: Path) -> Callable[..., ConfigDict]:
    """The smoke config, with overrides such as `name="other"` or `isolation__reward="shared"`."""

    def make(**overrides: object) -> ConfigDict:
        options = [f"--config.{k.replace('__', '.')}={v}" for k, v in overrides.items()]
        return load(SMOKE, [f"--config.run.root={smoke_root}", *options])

    return make


@pytest.fixture(scope="session")
def smoke_run(smoke_config: Callable[..., ConfigDict], quiet: Console) -> RunFolder:
    """Four iterations of IB-RL, undisturbed."""
    return train(smoke_config(iterations=4), quiet)


@contextmanager
def quick_compile() -> Iterator[None]:
    """Compile in half the time, within; roundings may be others."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@dataclass(frozen=True, kw_only=True)
class House:
    """Engines and a learner that are compiled once, for the many algorithms of the tests.

    `config(**overrides)`: the smoke config with one bucket of each kind, and both roles updating at
    every iteration unless told otherwise. `at_home`: within, training, contests, mismatches and
    exploits compile nothing.
    """

    config: Callable[..., ConfigDict]
    cast: Cast
    learner: Learner
    start: Weights

    @contextmanager
    def at_home(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module in (session, seating):
                patch.setattr(module, "build_cast", lambda *args, **kw: self.cast)
            patch.setattr(build, "build_learner", lambda *args: self.learner)
            yield


def house_of(smoke_config: Callable[..., ConfigDict], **settings: object) -> House:
    """A house for the smoke config with these settings."""
    fixed: dict[str, object] = {
        "engine__rows": (8,),
        "engine__new_tokens": (48,),
        "engine__lengths": (),
        "optimiser__lengths": (),
    }
    for role in ("agent0", "agent1"):
        fixed |= {f"roles__{role}__update_every": 1, f"roles__{role}__update_offset": 0}

    def config(**overrides: object) -> ConfigDict:
        return smoke_config(**fixed | settings | overrides)

    stage = set_up(config(), lambda note: None)
    with quick_compile():
        stage.algorithm.warm()
    algorithm = stage.algorithm
    return House(config=config, cast=algorithm.cast, learner=algorithm.learner, start=stage.start)


@pytest.fixture(scope="session")
def house(smoke_config: Callable[..., ConfigDict]) -> House:
    """All parameters train."""
    return house_of(smoke_config)


@pytest.fixture(scope="session")
def lora_house(smoke_config: Callable[..., ConfigDict]) -> House:
    """Adapters train, from a random base."""
    return house_of(smoke_config, lora__rank=2, policy__start="random")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A run of both roles with snapshots, and one of agent0 alone against a family."""

    house: House
    both: RunFolder
    alone: RunFolder

    def config(self, *policies: str, **changes: Any) -> ConfigDict:
        config = self.house.config(name="contest")
        config.evaluation.scenarios = 2
        config.evaluation.policies = policies
        config.statistics.resamples = 100
        for key, value in changes.items():
            config.evaluation[key] = value
        return config

    def name(self, which: str) -> str:
        return f"frozen:{self.both.path}:{which}"


@pytest.fixture(scope="session")
def scene(house: House, quiet: Console) -> Scene:
    lone: dict[str, Any] = {
        "roles__agent1__train": False,
        "roles__agent1__counterpart": "scripted:greedy,frozen:start",
    }
    with house.at_home():
        both = train(house.config(name="both", iterations=3, run__snapshots_every=2), quiet)
        alone = train(house.config(name="alone", iterations=1, **lone), quiet)
    return Scene(house=house, both=both, alone=alone)
