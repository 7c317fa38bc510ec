"""One dense decoder for the Llama, Qwen2.5 and Qwen3 families.

    h <- h + attention(norm(h)),   h <- h + down(silu(gate n) * up n)  with  n = norm(h)

RMSNorm, the rotation of queries and keys (rotate-half, theta from the config), softmax and logits
are computed in float32; matrix products and caches in `config.dtype`. Each parameter is declared
once, in float32, with the logical names of its axes; layers are stacked on a leading axis
("layers") by `nn.scan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen.spmd import with_logical_constraint

from ibrl_jax.models.cache import write
from ibrl_jax.models.config import ModelConfig

_UNSEEN = -2.0e38  # a finite score, so that a row that sees nothing holds no NaN


@struct.dataclass
class Context:
    """What all layers share."""

    cos: jax.Array  # [B, T, 1, N/2]
    sin: jax.Array  # [B, T, 1, N/2]
    mask: jax.Array  # [B, T, T], or [B, T, S] with a cache: what each token sees
    entries: jax.Array  # [B, T] where each token goes in a cache; out of range: nowhere


LayerCache = tuple[jax.Array, jax.Array]
"""Keys [B, K, N, S] and values [B, K, S, N] of one layer."""


class RMSNorm(nn.Module):
    """`x * rsqrt(mean x^2 + eps) * scale` in float32 over the last axis."""

    eps: float
    axis: str

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.param("scale", _named(nn.initializers.ones, self.axis), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.eps)
        return (wide * scale).astype(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention, among the tokens given or over a cache."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        c = self.config
        d, h, k, n = c.hidden, c.heads, c.kv_heads, c.head_dim

        def project(name: str, heads: int, axis: str) -> jax.Array:
            kernel = _kernel(self, name, (d, heads, n), ("embed", axis, "head_dim"))
            y = jnp.einsum("btd,dhn->bthn", x, kernel)
            if c.qkv_bias:
                zeros = _named(nn.initializers.zeros, axis, "head_dim")
                y = y + self.param(f"{name}_bias", zeros, (heads, n)).astype(y.dtype)
            return y

        query = project("q", h, "heads")  # [B, T, H, N]
        key, value = project("k", k, "kv_heads"), project("v", k, "kv_heads")  # [B, T, K, N]
        if c.qk_norm:
            query = RMSNorm(c.norm_eps, "head_dim", name="q_norm")(query)
            key = RMSNorm(c.norm_eps, "head_dim", name="k_norm")(key)
        query, key = _rotate(query, context), _rotate(key, context)
        if cache is None:
            out = causal_attention(query, key, value, context.mask, c.attention_block)
        else:
            rows = jnp.arange(x.shape[0])[:, None]
            cache = write(*cache, key, value, rows, context.entries)
            out = attend(query, *cache, context.mask)
        kernel = _kernel(self, "o", (h, n, d), ("heads", "head_dim", "embed"), inputs=2)
        return jnp.einsum("bthn,hnd->btd", out, kernel), cache


class Mlp(nn.Module):
    """The gated feed-forward layer."""

    config: ModelConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        d, f = self.config.hidden, self.config.mlp
        gate = jnp.einsum("btd,df->btf", x, _kernel(self, "gate", (d, f), ("embed", "mlp")))
        up = jnp.einsum("btd,df->btf", x, _kernel(self, "up", (d, f), ("embed", "mlp")))
        down = _kernel(self, "down", (f, d), ("mlp", "embed"))
        return jnp.einsum("btf,fd->btd", nn.silu(gate) * up, down)


class Block(nn.Module):
    """One layer, as a scan's body: new hidden states, and its cache with the tokens in it."""

    config: ModelConfig

    @nn.compact
    def __call__(
        self, x: jax.Array, context: Context, cache: LayerCache | None
    ) -> tuple[jax.Array, LayerCache | None]:
        eps = self.config.norm_eps
        with jax.named_scope("attention"):
            normed = RMSNorm(eps, "embed", name="attention_norm")(x)
            y, cache = Attention(self.config, name="attention")(normed, context, cache)
            x = x + y
        with jax.named_scope("mlp"):
            x = x + Mlp(self.config, name="mlp")(RMSNorm(eps, "embed", name="mlp_norm")(x))
        return with_logical_constraint(x, ("batch", "time", "embed")), cache


class Decoder(nn.Module):
    """The network.

    Parameters: `embed` [V, D], `layers` stacked [L, ...], `norm` [D], `head` [D, V] unless tied.
    """

    config: ModelConfig

    def setup(self) -> None:
        c = self.config
        embed = nn.initializers.normal(c.hidden**-0.5)
        self.embed = self.param("embed", _named(embed, "vocab", "embed"), (c.vocab_size, c.hidden))
        self.layers = _layers(c)
        self.norm = RMSNorm(c.norm_eps, "embed")
        if not c.tied:
            self.head = self.param(
                "head", _named(_fan_in(1), "embed", "vocab"), (c.hidden, c.vocab_size)
            )

    def __call__(
        self, ids: jax.Array, positions: jax.Array, segment_ids: jax.Array | None
    ) -> jax.Array:
        """Final hidden states [B, T, D] of tokens [B, T], for training and scoring (no cache).

        Args:
            ids: [B, T].
            positions: [B, T]; within a segment they ascend with the index.
            segment_ids: [B, T]; a token sees its own segment alone, and 0 is padding. None: one
                segment a row.
        """
        if segment_ids is None:
            segment_ids = jnp.ones_like(ids)
        cos, sin = rotation(positions, self.config)
        context = Context(cos=cos, sin=sin, mask=_causal(segment_ids), entries=positions)
        x, _ = self.layers(self.embed_tokens(ids), context, None)
        return self.norm(x)

    def embed_tokens(self, ids: jax.Array) -> jax.Array:
        """The first hidden states [B, T, D]."""
        x = self.embed[ids].astype(self.config.dtype)
        return with_logical_constraint(x, ("batch", "time", "embed"))

    def final_norm(self, x: jax.Array) -> jax.Array:
        """Final hidden states [B, T, D] of what the last layer gives."""
        return self.norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token scores [..., V] in float32 of final hidden states [..., D]."""
        kernel = self.embed.T if self.config.tied else self.head
        return jnp.einsum(
            "...d,dv->...v",
            hidden,
            kernel.astype(hidden.dtype),
            preferred_element_type=jnp.float32,
        )


def causal_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, block: int
) -> jax.Array:
    """Attention among the tokens given, `block` queries at a time, which see no key after them.

    ```
    queries 0..2   x x x . . . . . .      three blocks: two thirds of the scores exist at all,
    queries 3..5   x x x x x x . . .      and those of a block fit a CPU's cache
    queries 6..8   x x x x x x x x x
    ```

    Args:
        query: [B, T, H, N].
        key, value: [B, T, K, N].
        mask: [B, T, T], causal.
        block: queries a block; 0 for all at once.

    Returns:
        [B, T, H, N].
    """
    t = query.shape[1]
    pieces = []
    for start in range(0, t, block or t):
        end = min(start + (block or t), t)
        seen = mask[:, None, start:end, :end]
        pieces.append(
            jax.nn.dot_product_attention(
                query[:, start:end], key[:, :end], value[:, :end], mask=seen
            )
        )
    return jnp.concatenate(pieces, axis=1)


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
    scores = jnp.where(mask[:, None, None], scores * n**-0.5, _UNSEEN)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    out = jnp.einsum("bkgts,bksn->bkgtn", weights, v)
    return out.transpose(0, 3, 1, 2, 4).reshape(b, t, h, n)


def _layers(config: ModelConfig) -> Any:
    """All blocks, their parameters stacked; called with (x, context, None)."""
    block = nn.remat(Block, prevent_cse=False) if config.remat else Block
    scanned = nn.scan(
        block,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=cast(Any, nn.broadcast),
        length=config.layers,
        unroll=config.layers if config.unroll is True else max(1, int(config.unroll)),
        metadata_params={nn.PARTITION_NAME: "layers"},
    )
    return scanned(config)


def _named(initialiser: Any, *axes: str) -> Any:
    """The same initialiser, its result boxed with the logical names of its axes."""
    return nn.with_logical_partitioning(initialiser, axes)


def _fan_in(inputs: int) -> Any:
    """Normal with variance 1 / fan-in, for a kernel whose first `inputs` axes are contracted."""

    def initialise(key: jax.Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.normal(key, shape, dtype) * math.prod(shape[:inputs]) ** -0.5

    return initialise


def _kernel(
    module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str, ...], inputs: int = 1
) -> jax.Array:
    """Declare a kernel (float32, fan-in scaled) and hand it out in the module's compute type."""
    kernel = module.param(name, _named(_fan_in(inputs), *axes), shape)
    return kernel.astype(module.config.dtype)


def rotation(positions: jax.Array, config: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """cos and sin [B, T, 1, N/2] of positions [B, T], in float32."""
    exponent = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    angle = positions[:, :, None, None].astype(jnp.float32) * config.rope_theta**-exponent
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(x: jax.Array, context: Context) -> jax.Array:
    """Rotate the pairs (i, i + N/2) of x [B, T, heads, N] by position."""
    a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = context.cos, context.sin
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


def _causal(segment_ids: jax.Array) -> jax.Array:
    """[B, T, T]: which of the tokens given each token sees."""
    t = segment_ids.shape[1]
    same = segment_ids[:, :, None] == segment_ids[:, None, :]
    return same & (segment_ids > 0)[:, None, :] & jnp.tril(jnp.ones((t, t), bool))
