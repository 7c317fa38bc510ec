"""Past selves of one role, to be met again (paper, section 4.2).

A pool is a ring of snapshots, the newest N, optionally with the very first kept for good. A
snapshot is a copy: an update donates the buffers of the state it starts from, and a pool that
merely referred to them would be left with deleted arrays, or with someone else's numbers.

One snapshot an iteration serves all of a role's past seats; it is drawn uniformly, as a function of
(seed, iteration, role) alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """`size`: snapshots held at most.

    `store`: where snapshots lie. `host` costs a transfer when one is played, `device` costs memory.
    """

    size: int
    store: Literal["host", "device"]

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"pool.size is {self.size}: it must be at least 1.")
        if self.store not in ("host", "device"):
            raise UserError(f"pool.store is `{self.store}`: it must be `host` or `device`.")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The parameters of a role's policy as they were at a version (its count of updates)."""

    version: int
    params: Any


class OpponentPool:
    """The past snapshots of one role, oldest first."""

    def __init__(self, role: str, settings: PoolSettings) -> None:
        self.role = role
        self._settings = settings
        self._snapshots: list[Snapshot] = []

    def __len__(self) -> int:
        return len(self._snapshots)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(s.version for s in self._snapshots)

    def add(self, version: int, params: Any) -> bool:
        """Copy `params` in as `version`; False, and nothing done, if that is the newest one.

        A role that has not updated since its last snapshot is the same opponent, and would
        otherwise be met twice as often. Raises ValueError for a version older than the newest.
        """
        if self._snapshots:
            newest = self._snapshots[-1].version
            if version == newest:
                return False
            if version < newest:
                raise ValueError(
                    f"{self.role}: version {version} comes after version {newest} in the pool"
                )
        self._snapshots.append(Snapshot(version=version, params=self._copy(params)))
        if len(self._snapshots) > self._settings.size:
            del self._snapshots[0]
        return True

    def sample(self, seed: int, iteration: int, *, below: int | None = None) -> int | None:
        """The version that fills this role's past seats at an iteration; None if there is none.

        With `below`, only versions older than it: the live policy is then never its own past.
        """
        versions = [v for v in self.versions if below is None or v < below]
        if not versions:
            return None
        return versions[int(generator(seed, "pool", self.role, iteration).integers(len(versions)))]

    def params(self, version: int) -> Any:
        """The parameters of a held version; raises KeyError for one that is not held."""
        for snapshot in self._snapshots:
            if snapshot.version == version:
                return snapshot.params
        raise KeyError(f"{self.role}: version {version} is not in the pool {self.versions}")

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: `role`, `versions` (oldest first), and the `params` of each."""
        return {
            "role": self.role,
            "versions": list(self.versions),
            "params": [s.params for s in self._snapshots],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the snapshots of a checkpoint. Raises ValueError for one that does not fit."""
        versions, params = [int(v) for v in state["versions"]], state["params"]
        if state["role"] != self.role:
            raise ValueError(f"a pool of {state['role']} cannot be restored as that of {self.role}")
        if len(versions) != len(params) or versions != sorted(set(versions)):
            raise ValueError(f"{self.role}: {len(params)} snapshots with versions {versions}")
        if len(versions) > self._settings.size:
            raise ValueError(
                f"{self.role}: {len(versions)} snapshots in a pool of {self._settings.size}"
            )
        self._snapshots = [
            Snapshot(version=v, params=self._copy(p)) for v, p in zip(versions, params, strict=True)
        ]

    def _copy(self, params: Any) -> Any:
        if self._settings.store == "host":
            return jax.tree.map(_on_host, params)
        return jax.tree.map(lambda x: jnp.array(x, copy=True), params)


def _on_host(x: Any) -> Any:
    """A copy in the host's memory; of an array that several processes hold, each its own part."""
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.block_until_ready(jax.device_put(x, on_host(x.sharding)))
    return np.array(x, copy=True)


def on_host(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """The same places in the memory of their hosts."""
    return sharding.with_memory_kind("pinned_host")
