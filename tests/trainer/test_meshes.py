"""A run spread over eight devices is that of one, in two processes with eight virtual ones each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_meshes
from ibrl_jax.errors import UserError

ROLES = ("agent0", "agent1")


def on_eight(what: str, folder: Path) -> Any:
    """What `eight_devices_run.py` finds."""
    script = Path(__file__).with_name("eight_devices_run.py")
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "8",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    env.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script), what, str(folder)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["dense", "lora", "hybrid"])
def test_two_iterations_on_a_mesh_are_those_of_one_device(kind: str, tmp_path: Path) -> None:
    """The same tokens, and parameters that are apart by rounding alone."""
    found = on_eight(kind, tmp_path)
    for name, devices in (("shared", 8), ("split", 4)):
        one = found[name]
        assert one["same words"], name
        assert one["apart"] <= 1e-2 * one["moved"], name
        assert one["moved"] > 1e-5
        assert one["devices"] == [devices, devices]
        assert one["in common"] == (8 if name == "shared" else 0)
        assert one["cut"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_checkpoint_of_one_mesh_is_read_on_another_to_the_bit(tmp_path: Path) -> None:
    assert on_eight("checkpoints", tmp_path) == {"(2, 2, 2)": True, "one device": True}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_supervised_start_of_a_mesh_is_that_of_one_device(tmp_path: Path) -> None:
    losses = on_eight("supervised", tmp_path)
    assert losses["mesh"] == pytest.approx(losses["one"], rel=1e-4)


# ------------------------------------------------------------------------- what is refused


def test_without_a_mesh_everything_lies_on_the_default_device(
    smoke_config: Callable[..., ConfigDict],
) -> None:
    assert build_meshes(smoke_config(), ROLES) == dict.fromkeys(ROLES)


@pytest.mark.parametrize(
    "settings, why",
    [
        ({"mesh__fsdp": 3}, "mesh is 1 x 3 x 1 .* 3 devices, and there (is|are) "),
        ({"mesh__fsdp": -1, "mesh__data": -1}, "-1 may stand for one of them alone"),
    ],
)
def test_a_mesh_that_does_not_fit_is_one_sentence(
    smoke_config: Callable[..., ConfigDict], settings: dict[str, Any], why: str
) -> None:
    assert len(jax.local_devices()) < 3
    with pytest.raises(UserError, match=why) as caught:
        build_meshes(smoke_config(**settings), ROLES)
    assert "\n" not in str(caught.value)
