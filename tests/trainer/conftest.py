"""One run of everything, small, shared by the tests of the trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax.config import load
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train

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
