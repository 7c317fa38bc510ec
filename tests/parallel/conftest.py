"""Devices that are none, for what only counts them; and eight of them on the CPU, elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Programs that run twice: to optimise them would take longer than they do.
UNHURRIED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


@dataclass(frozen=True, kw_only=True)
class NoDevice:
    """What a mesh asks of a device, and nothing to compute with."""

    id: int
    process_index: int
    platform: str = "none"
    device_kind: str = "none"


def devices(processes: Sequence[int]) -> list[Any]:
    """One for each number in `processes`, which is the process that holds it."""
    return [NoDevice(id=i, process_index=p) for i, p in enumerate(processes)]


@pytest.fixture(scope="session")
def no_devices() -> Callable[[Sequence[int]], list[Any]]:
    return devices


@pytest.fixture(scope="session")
def on_eight() -> Callable[[str], Any]:
    """Run a script beside the tests in a process with 8 virtual devices; what it prints last."""

    def run(script: str) -> Any:
        env = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": "8",
            "PYTHONPATH": str(ROOT),
            "XLA_FLAGS": UNHURRIED,
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", str(Path(__file__).with_name(script))],
            env=env,
            capture_output=True,
            text=True,
            timeout=590,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run
