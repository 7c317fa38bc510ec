"""Reading with a cache: the same network, layer by layer, from parameters laid out for it.

Training scans over stacked layers. A scan that carried caches would copy each layer's cache, and
slice each layer's parameters, at every decode step; here each layer has arrays of its own, cut out
once when the parameters are handed over. A frozen base under adapters is not copied: all policies
share its stacked arrays, and a program cuts its layers out of them itself.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import struct

from ibrl_jax.models.attention import Context
from ibrl_jax.models.cache import Cache
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Block, Decoder
from ibrl_jax.models.layers import rotation
from ibrl_jax.models.lora import held_type
from ibrl_jax.models.params import Params


@struct.dataclass
class ServingParams:
    """Parameters laid out layer by layer: `outer` is all but the layers."""

    outer: Params
    layers: tuple[Params, ...]
    adapters: tuple[Params, ...] | None  # of the layers, where there are any


@struct.dataclass
class Adapted:
    """A shared base, stacked as in training, and one policy's adapters, layer by layer."""

    base: Params
    adapters: tuple[Params, ...]


def serving_params(config: ModelConfig, params: Params) -> ServingParams:
    """Cut the layers apart and cast to the compute type what the network would cast at each use.

    Every array is new, so the original may be donated afterwards. To be called under `jit`.
    """
    params = _cast(config, params)
    return ServingParams(outer=_outer(params), layers=_cut(config, params), adapters=None)


def serving_adapters(config: ModelConfig, adapters: Params) -> tuple[Params, ...]:
    """The same of adapters alone."""
    return _cut(config, _cast(config, adapters))


def laid_out(config: ModelConfig, params: ServingParams | Adapted) -> ServingParams:
    """Parameters as `read` wants them; inside a program."""
    if isinstance(params, ServingParams):
        return params
    layers = _cut(config, params.base)
    return ServingParams(outer=_outer(params.base), layers=layers, adapters=params.adapters)


def read(
    model: Decoder,
    params: ServingParams,
    ids: jax.Array,
    positions: jax.Array,
    real: jax.Array,
    cache: Cache,
) -> tuple[jax.Array, Cache]:
    """Final hidden states [B, T, D] of tokens that follow a cache's, and the cache with them in it.

    Args:
        ids: [B, T].
        positions: [B, T], consecutive along T; what the cache holds below the first came before.
        real: [B, T] bool; a token that is not real is written nowhere and seen by none, and its
            hidden state means nothing.
        cache: the rows' caches, longer than the last real token's position.
    """
    config = model.config
    outer = {"params": params.outer}
    cos, sin = rotation(positions, config)
    context = Context(
        cos=cos,
        sin=sin,
        mask=jnp.arange(cache.length) <= positions[:, :, None],  # [B, T, S]
        entries=jnp.where(real, positions, cache.length),
        segment_ids=None,
        real=real,
    )
    x: Any = model.apply(outer, ids, method=Decoder.embed_tokens)
    layers = []
    for i, before in enumerate(cache.layers):
        variables = {"params": params.layers[i]}
        if params.adapters is not None:
            variables["lora"] = params.adapters[i]
        block = Block(config, model.lora, config.kind(i))
        x, after = cast(Any, block.apply(variables, x, context, before))
        layers.append(after)
    x = model.apply(outer, x, method=Decoder.final_norm)
    return x, Cache(layers=tuple(layers))


def next_logits(model: Decoder, params: ServingParams, hidden: jax.Array) -> jax.Array:
    """Next-token scores [..., V] in float32 of final hidden states [..., D]."""
    return cast(Any, model.apply({"params": params.outer}, hidden, method=Decoder.logits))


def _cast(config: ModelConfig, params: Params) -> Params:
    """New arrays, in the types that they are held in."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.copy(x.astype(held_type(path[-1].key, config.dtype))), params
    )


def _outer(params: Params) -> Params:
    return {name: x for name, x in params.items() if name != "layers"}


def _cut(config: ModelConfig, params: Params) -> tuple[Params, ...]:
    """Layer i is block i % p of the period, entry i // p of its stack."""
    p, layers = len(config.period), []
    for i in range(config.layers):
        block = params["layers"].get(f"block{i % p}", {})  # adapters may sit on some blocks alone
        layers.append(jax.tree.map(lambda x, i=i: x[i // p], block))
    return tuple(layers)
