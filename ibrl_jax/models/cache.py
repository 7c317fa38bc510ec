"""Keys and values of tokens already read: explicit arguments and results, a pair of arrays a layer.

Entry s of a row holds the token at position s, and a query at position p sees the entries up to p.
So a cache needs no record of its length: what lies beyond the last token read cannot be seen, and
to rewind a dialogue is to read on from an earlier position.

```
position        0    1    2    3    4    5
written        k0   k1   k2   k3    ?    ?
query at 3     x    x    x    x    .    .       also when 4 and 5 hold what was read before a rewind
```

Time is the last axis of the keys and the last but one of the values: both products of a decode step
then run along contiguous memory (on a CPU core this halves the time of a step's attention).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ibrl_jax.models.config import ModelConfig


@struct.dataclass
class KVCache:
    """The caches of B rows, S entries each; a tuple has one array a layer."""

    k: tuple[jax.Array, ...]  # [B, K, N, S]
    v: tuple[jax.Array, ...]  # [B, K, S, N]

    @property
    def rows(self) -> int:
        return self.k[0].shape[0]

    @property
    def length(self) -> int:
        return self.k[0].shape[3]


def empty_cache(config: ModelConfig, rows: int, length: int) -> KVCache:
    """A cache of `length` entries a row, in which nothing has been written."""
    k = (rows, config.kv_heads, config.head_dim, length)
    v = (rows, config.kv_heads, length, config.head_dim)
    return KVCache(
        k=tuple(jnp.zeros(k, config.dtype) for _ in range(config.layers)),
        v=tuple(jnp.zeros(v, config.dtype) for _ in range(config.layers)),
    )


def write(
    k: jax.Array,
    v: jax.Array,
    new_k: jax.Array,
    new_v: jax.Array,
    rows: jax.Array,
    entries: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Put keys and values of one layer in their places.

    Rows and entries out of range are dropped, never clamped onto another's place.

    Args:
        k, v: [R, K, N, S] and [R, K, S, N].
        new_k, new_v: [B, T, K, N].
        rows: [B, T] or [B, 1], the row of each.
        entries: [B, T], the entry of each.
    """
    return (
        k.at[rows, :, :, entries].set(new_k, mode="drop"),
        v.at[rows, :, entries].set(new_v, mode="drop"),
    )


def read(
    k: jax.Array, v: jax.Array, rows: jax.Array, entries: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The inverse of `write`: keys and values [B, T, K, N]; an index out of range is clamped."""
    return (
        k.at[rows, :, :, entries].get(mode="clip"),
        v.at[rows, :, entries].get(mode="clip"),
    )
