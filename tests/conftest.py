"""What every test stands on: the CPU, a compilation cache on disk, and where shared data lie."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# Before jax is imported for the first time, and inherited by the processes that tests start.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# A first example compiles, so a deadline would measure XLA. In CI the same examples every time.
settings.register_profile("ibrl", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("ibrl")


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
