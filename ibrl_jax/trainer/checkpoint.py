"""Checkpoints of everything that a run must remember, in Orbax.

`state` holds the learner state of each owner and every snapshot of every pool: of what trains
alone, since a base under adapters is a function of the config. `meta` holds the next iteration,
the pools' versions, and sums by which a bit that turned is found, since Orbax has none. Nothing
else needs to be kept: draws, matchups, sampling keys and schedules are functions of the seed and
the iteration. A checkpoint appears whole or not at all; the newest one counts. It can be written on
one mesh and read on another. Several processes write and read it together, each its own part.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from ibrl_jax.errors import UserError
from ibrl_jax.parallel.hosts import ALONE, Hosts
from ibrl_jax.rl.pool import on_host
from ibrl_jax.trainer.algorithm import Algorithm


class Checkpoints:
    """The checkpoints of one run folder, which all processes see. Use it as a context."""

    def __init__(self, folder: Path, keep: int, hosts: Hosts = ALONE) -> None:
        logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax tells its every step
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hosts = hosts
        hosts.barrier("the folder of checkpoints")
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep, enable_async_checkpointing=False
            ),
        )

    def save(self, algorithm: Algorithm) -> None:
        """Save the state after the last finished iteration; nothing if that is already there."""
        if algorithm.iteration in self._steps():
            return
        state = _state(algorithm)
        meta = {
            "iteration": algorithm.iteration,
            "pools": {role: list(pool.versions) for role, pool in algorithm.pools.items()},
            "sums": _sums(state),
        }
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) + (1 << 20)
        full = shutil.disk_usage(self.folder).free < needed
        if any(self._hosts.exchange("room", full)):  # Orbax's threads would print tracebacks
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder))
        self._manager.save(
            algorithm.iteration,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)
            ),
        )
        self._manager.wait_until_finished()
        self._hosts.barrier(f"checkpoint {algorithm.iteration}")

    def restore(self, algorithm: Algorithm) -> bool:
        """Put the newest checkpoint in; False if there is none.

        Raises:
            UserError: it cannot be read.
        """
        steps = self._steps()
        if not steps:
            return False
        step = max(steps)
        try:
            with _told_once():
                pools, state = self._read(step, algorithm)
        except Exception as error:
            first = (str(error).splitlines() or [type(error).__name__])[0][:200]
            older = [s for s in steps if s < step]
            then = f"from iteration {max(older)}" if older else "from the start"
            raise UserError(
                f"the checkpoint {self.folder / str(step)} cannot be read, it may be damaged "
                f"({first}); delete that folder and the run goes on {then}"
            ) from error
        algorithm.iteration = step
        algorithm.states = state["learners"]
        for role, versions in pools.items():
            params = [state["pools"][role][_name(v)] for v in versions]
            algorithm.pools[role].restore({"role": role, "versions": versions, "params": params})
        return True

    def _read(self, step: int, algorithm: Algorithm) -> tuple[dict[str, list[int]], Any]:
        """The versions of each pool, and the state, of a checkpoint."""
        found = self._manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore()))
        meta: dict[str, Any] = found["meta"]
        if (said := int(meta["iteration"])) != step:
            raise ValueError(f"it says that it is of iteration {said}")
        pools = dict(meta["pools"])
        kept = _abstract if algorithm.config.pool.store == "device" else _host
        like = {
            "learners": jax.tree.map(_abstract, algorithm.states),
            "pools": {
                role: {_name(v): jax.tree.map(kept, algorithm.params(role)) for v in versions}
                for role, versions in pools.items()
            },
        }
        args = ocp.args.Composite(state=ocp.args.StandardRestore(like))
        state = self._manager.restore(step, args=args)["state"]
        then, now = meta.get("sums", {}), _sums(state)
        if others := sorted(path for path in then.keys() & now.keys() if then[path] != now[path]):
            raise ValueError(f"{others[0]} is not as it was saved")
        return pools, state

    def close(self) -> None:
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, trace
        if error is None or self._hosts.count == 1:  # else the others do not close with this one
            self.close()

    def _steps(self) -> list[int]:
        """The iterations that have a checkpoint, as the first process sees them."""
        return self._hosts.exchange("checkpoints", list(self._manager.all_steps()))[0]


@contextmanager
def _told_once() -> Iterator[None]:
    """What a read that fails raises is all that is told of it.

    Reads of other arrays fail with it, and say so later: asyncio when their tasks are collected,
    tensorstore's threads when they find the loop of Orbax closed. So if the block raises, these are
    silent until the process ends.
    """
    hook, log = sys.unraisablehook, logging.getLogger("asyncio")
    level = log.level

    def tell(found: Any) -> None:
        if "loop is closed" not in str(found.exc_value):
            hook(found)

    sys.unraisablehook = tell
    log.setLevel(logging.CRITICAL)
    yield
    sys.unraisablehook = hook
    log.setLevel(level)


def _sums(state: Any) -> dict[str, int]:
    """A sum over the words of each array, by its path: a bit that turns changes it.

    It is the same on every mesh. Arrays that lie in part with other processes have none.
    """
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        parts = [leaf]
        if isinstance(leaf, jax.Array):
            if not leaf.is_fully_addressable:
                continue
            parts = [shard.data for shard in leaf.addressable_shards if shard.replica_id == 0]
        whole = sum(_sum(np.ascontiguousarray(part)) for part in parts)
        found[jax.tree_util.keystr(path)] = whole % 2 ** (8 * leaf.dtype.itemsize)
    return found


def _sum(array: np.ndarray) -> int:
    """Of an array's words, modulo their size, which is several times as fast as a wider sum."""
    words = array.reshape(-1).view(f"u{array.itemsize}")
    return int(words.sum(dtype=words.dtype))


def _state(algorithm: Algorithm) -> dict[str, Any]:
    return {
        "learners": algorithm.states,
        "pools": {
            role: {_name(v): pool.params(v) for v in pool.versions}
            for role, pool in algorithm.pools.items()
        },
    }


def _name(version: int) -> str:
    return f"version_{version:08d}"


def _abstract(x: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _host(x: jax.Array) -> Any:
    """An array of the host, as a pool holds it."""
    if x.is_fully_addressable:
        return np.empty(x.shape, x.dtype)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on_host(x.sharding))
