"""What a network keeps of tokens already read: explicit arguments and results, one entry a layer.

A full-attention layer keeps keys and values. Entry s of a row holds the token at position s, and a
query at position p sees the entries up to p. So it needs no record of its length: what lies beyond
the last token read cannot be seen, and to rewind a dialogue is to read on from an earlier position.

```
position        0    1    2    3    4    5
written        k0   k1   k2   k3    ?    ?
query at 3     x    x    x    x    .    .       also when 4 and 5 hold what was read before a rewind
```

A delta layer keeps a state of fixed size after the last token read; it cannot be rewound.

Time is the last axis of the keys and the last but one of the values: both products of a decode step
then run along contiguous memory (on a CPU core this halves the time of a step's attention).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from ibrl_jax.models.config import ModelConfig


@struct.dataclass
class KV:
    """Keys and values of B rows, S entries each, of one full-attention layer."""

    k: jax.Array  # [B, K, N, S]
    v: jax.Array  # [B, K, S, N]


@struct.dataclass
class DeltaState:
    """What B rows of one delta layer have come to; W taps of the convolution."""

    q: jax.Array  # [B, Hk, dk, W-1] the last inputs of the convolution
    k: jax.Array  # [B, Hk, dk, W-1]
    v: jax.Array  # [B, Hv, dv, W-1]
    state: jax.Array  # [B, Hv, dk, dv] float32


LayerCache = KV | DeltaState


@struct.dataclass
class Cache:
    """The caches of B rows, one entry a layer."""

    layers: tuple[LayerCache, ...]

    @property
    def length(self) -> int:
        """Entries S of a row."""
        return next(x.k.shape[-1] for x in self.layers if isinstance(x, KV))


def empty_cache(config: ModelConfig, rows: int, length: int) -> Cache:
    """A cache of `length` entries a row, in which nothing has been read."""
    return Cache(layers=tuple(_empty(config, i, rows, length) for i in range(config.layers)))


def cache_axes(config: ModelConfig) -> Cache:
    """The same tree with a `PartitionSpec` of logical axis names at each leaf; rows are slots."""
    spec: Any = jax.sharding.PartitionSpec
    kv = KV(
        k=spec("slots", "kv_heads", "head_dim", None), v=spec("slots", "kv_heads", None, "head_dim")
    )
    key, value = ("slots", "key_heads", None, None), ("slots", "value_heads", None, None)
    delta = DeltaState(q=spec(*key), k=spec(*key), v=spec(*value), state=spec(*value))
    kinds = [config.kind(i) for i in range(config.layers)]
    return Cache(layers=tuple(kv if kind == "full" else delta for kind in kinds))


def write(kv: KV, key: jax.Array, value: jax.Array, rows: jax.Array, entries: jax.Array) -> KV:
    """Put keys and values in their places.

    Rows and entries out of range are dropped, never clamped onto another's place.

    Args:
        kv: of R rows.
        key, value: [B, T, K, N].
        rows: [B, T] or [B, 1], the row of each.
        entries: [B, T], the entry of each.
    """
    return KV(
        k=kv.k.at[rows, :, :, entries].set(key, mode="drop"),
        v=kv.v.at[rows, :, entries].set(value, mode="drop"),
    )


def read(kv: KV, rows: jax.Array, entries: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The inverse of `write`: keys and values [B, T, K, N]; an index out of range is clamped."""
    return (
        kv.k.at[rows, :, :, entries].get(mode="clip"),
        kv.v.at[rows, :, entries].get(mode="clip"),
    )


def _empty(config: ModelConfig, layer: int, rows: int, length: int) -> LayerCache:
    if config.kind(layer) == "full":
        return KV(
            k=jnp.zeros((rows, config.kv_heads, config.head_dim, length), config.dtype),
            v=jnp.zeros((rows, config.kv_heads, length, config.head_dim), config.dtype),
        )
    d = config.delta
    assert d is not None
    key = (rows, d.key_heads, d.key_dim, d.conv_kernel - 1)
    return DeltaState(
        q=jnp.zeros(key, config.dtype),
        k=jnp.zeros(key, config.dtype),
        v=jnp.zeros((rows, d.value_heads, d.value_dim, d.conv_kernel - 1), config.dtype),
        state=jnp.zeros((rows, d.value_heads, d.key_dim, d.value_dim), jnp.float32),
    )
