"""Laps that add up, and programs that are counted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

from ibrl_jax.trainer.clock import LAPS, Clock, compiled


def test_laps_are_all_of_the_time() -> None:
    began = time.perf_counter()
    clock = Clock()
    for stage in ("rollout", "update", "rollout"):
        time.sleep(0.002)
        clock.lap(stage)
    time.sleep(0.002)
    taken = clock.take()
    assert set(taken) == set(LAPS)
    assert taken["rollout"] >= 0.004
    assert taken["other"] >= 0.002
    assert sum(taken.values()) == pytest.approx(time.perf_counter() - began, abs=0.05)
    assert clock.take()["rollout"] == 0


def test_a_program_is_compiled_anew_once_and_then_read_from_the_cache(tmp_path: Path) -> None:
    before = os.environ["JAX_COMPILATION_CACHE_DIR"]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    compilation_cache.reset_cache()
    try:
        counts = []
        for _ in range(2):
            compiled.start()
            jax.jit(lambda x: x * 3.25 + 1.75).lower(1.0).compile()
            counts.append((compiled.anew, compiled.cached))
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
    assert counts == [(1, 0), (0, 1)]
