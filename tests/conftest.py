"""What every test stands on: the CPU, programs that compile fast and are kept on disk, how many
processes share the tests, and where shared data lie.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import settings

from ibrl_jax.host import cores

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 4
"""Processes at most."""
WORKER_BYTES = 3 * 2**30
"""Memory that each may take."""

# Before jax is imported for the first time, and inherited by the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# A test's program runs once or twice, so what XLA spends on its speed is lost. With this a small
# network's gradient compiles in .4 s, not 2.8; `XLA_FLAGS= make test` compiles as in use.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)

if sys.dont_write_bytecode:  # each process would compile every module anew: keep them apart
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = str(ROOT / ".cache" / "python")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# A first example compiles, so a deadline would measure XLA. In CI the same examples every time.
settings.register_profile("ibrl", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("ibrl")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many processes run the tests; 0 is this one alone.

    One a core as far as memory goes, where all tests are to run. Single ones would wait longer for
    the others to start than for each other.
    """
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    if named or config.option.keyword or getattr(config.option, "lf", False):
        return 0
    workers = min(cores(), WORKERS, psutil.virtual_memory().total // WORKER_BYTES)
    return workers if workers > 1 else 0


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder with the original data files; the test is skipped where there is none."""
    named = os.environ.get("IBRL_SHARED")
    folder = Path(named) if named else ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip(
            f"IBRL_SHARED names {folder}, which is no folder"
            if named
            else "no folder `shared` beside the repository, and IBRL_SHARED is not set"
        )
    return folder


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`types("a line", ...)`: what a person will have typed."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as lines, os.fdopen(writing, "w") as keys:
        monkeypatch.setattr(sys, "stdin", lines)

        def type_(*said: str) -> None:
            keys.write("".join(f"{line}\n" for line in said))
            keys.flush()

        yield type_
