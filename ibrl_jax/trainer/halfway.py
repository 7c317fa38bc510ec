"""A supervised start in the making, kept every so many steps, so that a kill costs no more."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ibrl_jax.whole import replacing

EVERY = 100
"""Steps between two keepings, at least."""
SHARE = 20
"""Times what a keeping took that pass before the next: gigabytes are kept less often."""

_FILE = "steps.npz"


@dataclass(frozen=True, kw_only=True)
class Halfway:
    """All that the next step depends on.

    `trees` are the parameters and the optimiser's state, `step` is how many were taken, `draws` the
    state of the generator that draws batches, `losses` those of all steps so far [step].
    """

    trees: Any
    step: int
    draws: Any
    losses: np.ndarray


class Pace:
    """When a state is kept: not before the last keeping's time has passed `SHARE` times over."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self) -> bool:
        return time.monotonic() >= self._next

    def timed(self, keep: Callable[[], None]) -> None:
        """Keeps, and sets when that may be next."""
        began = time.monotonic()
        keep()
        ended = time.monotonic()
        self._next = ended + SHARE * (ended - began)


def keep(folder: Path, now: Halfway) -> None:
    """Writes a state, whole or not at all, in place of the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    leaves = jax.device_get(jax.tree.leaves(now.trees))
    arrays: dict[str, Any] = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    with replacing(folder / _FILE) as beside, beside.open("wb") as file:
        np.savez(
            file,
            step=now.step,
            draws=json.dumps(now.draws),
            losses=now.losses,
            **arrays,
        )


def find(folder: Path, like: Any) -> Halfway | None:
    """The state of a folder, placed as `like` is.

    None where there is none, or none that can be read and fits: steps are then taken anew.
    """
    leaves, shape = jax.tree.flatten(like)
    try:
        with np.load(folder / _FILE, allow_pickle=False) as found:
            kept = [found[f"leaf{i}"] for i in range(len(leaves))]
            step, draws, losses = (
                int(found["step"]),
                json.loads(str(found["draws"])),
                found["losses"],
            )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(kept, leaves, strict=True)):
        return None
    placed = [jax.device_put(a, b.sharding) for a, b in zip(kept, leaves, strict=True)]
    return Halfway(trees=jax.tree.unflatten(shape, placed), step=step, draws=draws, losses=losses)


def forget(folder: Path) -> None:
    """Removes what was kept."""
    shutil.rmtree(folder, ignore_errors=True)
