"""Causal grouped-query attention: among the tokens given, for training, or over a cache."""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from ibrl_jax.models.blocked import UNSEEN, blocked_attention
from ibrl_jax.models.cache import KV, write
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.layers import RMSNorm, named, project, rotate
from ibrl_jax.models.lora import LoraSettings

_CUDNN_HEAD_DIM = 128  # the widest head that its kernels take on every GPU that has them


@struct.dataclass
class Context:
    """What all layers share."""

    cos: jax.Array  # [B, T, 1, R/2]
    sin: jax.Array  # [B, T, 1, R/2]
    mask: jax.Array  # [B, T, T], or [B, T, S] with a cache: what each token sees
    entries: jax.Array | None  # [B, T] where each token goes in a cache; out of range: nowhere
    segment_ids: jax.Array | None  # [B, T] without a cache; 0 is padding
    real: jax.Array | None  # [B, T] bool, with a cache


class Attention(nn.Module):
    """Attention, with the norms and the gate that the config asks for."""

    config: ModelConfig
    lora: LoraSettings | None

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context, kv: KV | None, at: jax.Array | None = None
    ) -> tuple[jax.Array, KV | None]:
        """What is mixed into [B, T, D], or into the tokens `at` [B, P] alone; and the cache."""
        c = self.config
        d, h, k, n = c.hidden, c.heads, c.kv_heads, c.head_dim

        def heads(name: str, x: jax.Array, count: int, width: int, axis: str) -> jax.Array:
            y = project(self, name, x, (d, count, width), ("embed", axis, "head_dim"), 1)
            if c.qkv_bias:
                zeros = named(nn.initializers.zeros, axis, "head_dim")
                y = y + self.param(f"{name}_bias", zeros, (count, width)).astype(y.dtype)
            return y

        asking = x if at is None else taken(x, at)
        query = heads("q", asking, h, 2 * n if c.attention_gate else n, "heads")  # [B, T, H, N]
        gate = None
        if c.attention_gate:
            query, gate = query[..., :n], query[..., n:]
        key = heads("k", x, k, n, "kv_heads")  # [B, T, K, N]
        value = heads("v", x, k, n, "kv_heads")
        if c.qk_norm:
            query = RMSNorm(c.norm_eps, "head_dim", c.norm_offset, name="q_norm")(query)
            key = RMSNorm(c.norm_eps, "head_dim", c.norm_offset, name="k_norm")(key)
        key = rotate(key, context.cos, context.sin)
        cos, sin = context.cos, context.sin
        if at is not None:
            cos, sin = taken(cos, at), taken(sin, at)
        query = rotate(query, cos, sin)
        if at is not None:
            assert kv is None
            out = chosen_attention(query, key, value, taken(context.mask, at))
        elif kv is None:
            out = causal_attention(
                query, key, value, context.mask, c.attention_block, kernel(c.attention, c)
            )
        else:
            assert context.entries is not None
            rows = jnp.arange(x.shape[0])[:, None]
            kv = write(kv, key, value, rows, context.entries)
            out = attend(query, kv.k, kv.v, context.mask)
        if gate is not None:
            out = out * jax.nn.sigmoid(gate)
        return project(self, "o", out, (h, n, d), ("heads", "head_dim", "embed"), 2), kv


def kernel(asked: str, config: ModelConfig) -> str:
    """The implementation of `jax.nn.dot_product_attention`: `auto` is cuDNN where it can."""
    if asked != "auto":
        return asked
    fused = config.dtype != "float32" and config.head_dim <= _CUDNN_HEAD_DIM
    return "cudnn" if fused and jax.default_backend() == "gpu" else "xla"


def causal_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array,
    block: int,
    implementation: str,
) -> jax.Array:
    """Attention among the tokens given, `block` queries at a time.

    Args:
        query: [B, T, H, N].
        key, value: [B, T, K, N].
        mask: [B, T, T], causal.
        block: queries a block; 0 for all at once, by `implementation`.
        implementation: `xla` or `cudnn`.

    Returns:
        [B, T, H, N].
    """
    if block:
        return blocked_attention(query, key, value, mask, block)
    how = cast(Any, implementation)
    return jax.nn.dot_product_attention(query, key, value, mask=mask[:, None], implementation=how)


def chosen_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array
) -> jax.Array:
    """Attention of some tokens' queries over all tokens given, scores and softmax in float32.

    Args:
        query: [B, P, H, N].
        key, value: [B, T, K, N].
        mask: [B, P, T].

    Returns:
        [B, P, H, N].
    """
    return attend(query, key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3), mask)


def taken(x: jax.Array, at: jax.Array) -> jax.Array:
    """[B, P, ...] of x [B, T, ...]: the entries `at` [B, P] of each row."""
    return jax.vmap(lambda row, indices: row[indices])(x, at)


def attend(query: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Attention over a cache, with scores and softmax in float32.

    Args:
        query: [B, T, H, N].
        k, v: [B, K, N, S] and [B, K, S, N].
        mask: [B, T, S].

    Returns:
        [B, T, H, N].
    """
    b, t, h, n = query.shape
    kv_heads = k.shape[1]
    # The order of the results' letters keeps the cache on the right of both products: at T = 1
    # on a CPU ten times as fast as the other way round.
    grouped = query.reshape(b, t, kv_heads, h // kv_heads, n).transpose(0, 2, 3, 1, 4)
    scores = jnp.einsum("bkgtn,bkns->bkgts", grouped, k, preferred_element_type=jnp.float32)
    scores = jnp.where(mask[:, None, None], scores * n**-0.5, UNSEEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    out = jnp.einsum("bkgts,bksn->bkgtn", weights, v)
    return out.transpose(0, 3, 1, 2, 4).reshape(b, t, h, n)


def causal(segment_ids: jax.Array) -> jax.Array:
    """[B, T, T]: which of the tokens given each token sees."""
    t = segment_ids.shape[1]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same & (segment_ids > 0)[:, None, :] & jnp.tril(jnp.ones((t, t), bool))
