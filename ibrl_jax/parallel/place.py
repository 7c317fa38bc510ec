"""Values onto the mesh and back to the host, in one process or in several."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def put(tree: Any, shardings: Any) -> Any:
    """Arrays with the values of a tree of host arrays, placed by a tree of shardings.

    In several processes each gives the same values and fills its own devices alone. What is placed
    shares no memory with what was given: on a CPU the device would otherwise read the host's array
    in place, and a later change to it would be a change to the parameters.
    """

    def place(x: Any, sharding: jax.sharding.Sharding) -> jax.Array:
        host = np.asarray(x)
        host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
        return jax.make_array_from_callback(
            host.shape, sharding, lambda index: np.array(host[index], copy=True), dtype=host.dtype
        )

    return jax.tree.map(place, tree, shardings)


def gather(x: jax.Array) -> np.ndarray:
    """All of `x` on every host, as an array of its own that no donation can reach.

    When devices of other processes hold parts of it, every process must call this, and in the same
    order: the parts are exchanged.
    """
    if x.is_fully_addressable or x.is_fully_replicated:
        return np.array(x, copy=True)
    return np.array(multihost_utils.process_allgather(x, tiled=True), copy=True)
