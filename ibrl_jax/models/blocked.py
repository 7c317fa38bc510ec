"""Causal attention in blocks of queries, with a backward pass of its own: for CPUs.

```
queries 0..2   x x x . . . . . .      three blocks: two thirds of the scores exist at all,
queries 3..5   x x x x x x . . .      and those of a block fit a CPU's cache
queries 6..8   x x x x x x x x x
```

With scores s = q k^T / sqrt(N), forward and backward of a block are

    p = exp(s - lse),  o = p v                                      lse [T] is kept, p [T, S] is not
    dv = p^T do,  ds = p (do v^T - sum(do o)),  dq = ds k,  dk = ds^T q

Small networks spend most of an attention layer in passes over [T, S], and this has the fewest: what
autodiff keeps (weights, masked scores) is computed again from lse while it is in the cache (Dao et
al., "FlashAttention", 2022, section 3.1; without its tiles over keys).
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

UNSEEN = -2.0e38
"""A finite score, so that a row that sees nothing holds no NaN."""

Residuals = tuple[jax.Array, ...]


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def blocked_attention(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, block: int
) -> jax.Array:
    """Attention among the tokens given, `block` queries at a time, which see no key after them.

    Scores, softmax and their gradients are float32.

    Args:
        query: [B, T, H, N].
        key, value: [B, T, K, N].
        mask: [B, T, T] bool, causal; not differentiated.
        block: queries a block, 1 or more.

    Returns:
        [B, T, H, N].
    """
    return _forward(query, key, value, mask, block)[0]


def _forward(
    query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array, block: int
) -> tuple[jax.Array, Residuals]:
    t, n = query.shape[1], query.shape[3]
    k, v = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)  # [B, K, T, N]
    q = _grouped(query * n**-0.5, k.shape[1])  # [B, K, G, T, N]
    outs, lses = [], []
    for start, end in _blocks(t, block):
        scores = _scores(q[:, :, :, start:end], k[:, :, :end])  # [B, K, G, t, S]
        scores = jnp.where(mask[:, None, None, start:end, :end], scores, UNSEEN)
        most = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - most)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        summed = _dot("bkgts,bksn->bkgtn", weights.astype(query.dtype), v[:, :, :end])
        outs.append(summed / total)
        lses.append(most + jnp.log(total))
    out, lse = jnp.concatenate(outs, axis=3), jnp.concatenate(lses, axis=3)  # float32
    return _ungrouped(out).astype(query.dtype), (q, k, v, mask, out, lse)


def _backward(
    block: int, kept: Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None]:
    q, k, v, mask, out, lse = kept
    t, n = q.shape[3:]
    do = _grouped(gradient, k.shape[1])
    shift = jnp.sum(do.astype(jnp.float32) * out, axis=-1, keepdims=True)  # [B, K, G, T, 1]
    dk, dv = jnp.zeros(k.shape, jnp.float32), jnp.zeros(v.shape, jnp.float32)
    dqs = []
    for start, end in _blocks(t, block):
        rows, cols = slice(start, end), slice(end)
        query, given = q[:, :, :, rows], do[:, :, :, rows]
        scores = _scores(query, k[:, :, cols])
        seen = mask[:, None, None, rows, cols]
        weights = jnp.where(seen, jnp.exp(scores - lse[:, :, :, rows]), 0.0)
        dweights = _dot("bkgtn,bksn->bkgts", given, v[:, :, cols])
        dscores = (weights * (dweights - shift[:, :, :, rows])).astype(q.dtype)
        dqs.append(_dot("bkgts,bksn->bkgtn", dscores, k[:, :, cols]))
        dk = dk.at[:, :, cols].add(_dot("bkgts,bkgtn->bksn", dscores, query))
        dv = dv.at[:, :, cols].add(_dot("bkgts,bkgtn->bksn", weights.astype(q.dtype), given))
    dq = _ungrouped(jnp.concatenate(dqs, axis=3)) * n**-0.5
    back = (dq, dk.transpose(0, 2, 1, 3), dv.transpose(0, 2, 1, 3))
    dq, dk, dv = (x.astype(q.dtype) for x in back)
    return dq, dk, dv, None


blocked_attention.defvjp(_forward, _backward)


def _blocks(t: int, block: int) -> list[tuple[int, int]]:
    return [(start, min(start + block, t)) for start in range(0, t, block)]


def _grouped(x: jax.Array, kv_heads: int) -> jax.Array:
    """[B, T, H, N] as [B, K, G, T, N]: the queries of each key's head."""
    b, t, h, n = x.shape
    return x.reshape(b, t, kv_heads, h // kv_heads, n).transpose(0, 2, 3, 1, 4)


def _ungrouped(x: jax.Array) -> jax.Array:
    """[B, K, G, T, N] as [B, T, H, N]."""
    b, k, g, t, n = x.shape
    return x.transpose(0, 3, 1, 2, 4).reshape(b, t, k * g, n)


def _scores(query: jax.Array, key: jax.Array) -> jax.Array:
    return _dot("bkgtn,bksn->bkgts", query, key)


def _dot(axes: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(axes, a, b, preferred_element_type=jnp.float32)
