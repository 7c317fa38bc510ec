"""Reading with a cache: the same network, layer by layer, from parameters laid out for it.

Training scans over stacked layers. A scan that carried caches would copy each layer's cache, and
slice each layer's parameters, at every decode step; here each layer has arrays of its own, cut out
once when the parameters are handed over.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import struct

from ibrl_jax.models.cache import KVCache
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.dense import Block, Context, Decoder, rotation
from ibrl_jax.models.params import Params


@struct.dataclass
class ServingParams:
    """A copy of a model's parameters: `outer` is all but the layers, which are one tree each."""

    outer: Params
    layers: tuple[Params, ...]


def serving_params(config: ModelConfig, params: Params) -> ServingParams:
    """Cut the layers apart and cast to the compute type what the network would cast at each use.

    Every array is new, so the original may be donated afterwards. To be called under `jit`.
    """

    def served(path: tuple, x: jax.Array) -> jax.Array:
        keep = path[-1].key == "scale"  # norms work in float32
        return jnp.copy(x if keep else x.astype(config.dtype))

    params = jax.tree_util.tree_map_with_path(served, params)
    layers = tuple(
        jax.tree.map(lambda x, i=i: x[i], params["layers"]) for i in range(config.layers)
    )
    return ServingParams(
        outer={name: x for name, x in params.items() if name != "layers"}, layers=layers
    )


def read(
    model: Decoder,
    params: ServingParams,
    ids: jax.Array,
    positions: jax.Array,
    real: jax.Array,
    cache: KVCache,
) -> tuple[jax.Array, KVCache]:
    """Final hidden states [B, T, D] of tokens that follow a cache's, and the cache with them in it.

    Args:
        ids: [B, T].
        positions: [B, T], consecutive along T; what the cache holds below the first came before.
        real: [B, T] bool; a token that is not real is written nowhere and seen by none, and its
            hidden state means nothing.
        cache: the rows' caches, longer than the last real token's position.
    """
    outer = {"params": params.outer}
    cos, sin = rotation(positions, model.config)
    mask = jnp.arange(cache.length) <= positions[:, :, None]  # [B, T, S]
    entries = jnp.where(real, positions, cache.length)
    context = Context(cos=cos, sin=sin, mask=mask, entries=entries)
    block = Block(model.config)
    x: Any = model.apply(outer, ids, method=Decoder.embed_tokens)
    layers = []
    for variables, k, v in zip(params.layers, cache.k, cache.v, strict=True):
        x, layer = cast(Any, block.apply({"params": variables}, x, context, (k, v)))
        layers.append(layer)
    keys, values = zip(*layers, strict=True)
    x = model.apply(outer, x, method=Decoder.final_norm)
    return x, KVCache(k=keys, v=values)


def next_logits(model: Decoder, params: ServingParams, hidden: jax.Array) -> jax.Array:
    """Next-token scores [..., V] in float32 of final hidden states [..., D]."""
    return cast(Any, model.apply({"params": params.outer}, hidden, method=Decoder.logits))
