"""The Gated DeltaNet mixer of Qwen3.5: a causal convolution, then a memory of fixed size.

Each value head keeps a matrix S [dk, dv] that maps keys to values. A token lets it fade, replaces
what the memory holds under its key by its own value, and reads with its query:

    S <- e^g S,   d = beta (v - S^T k),   S <- S + k d^T,   o = S^T q

`delta_scan` does just that, token by token. `delta_chunked` takes C tokens at once by matrix
products. With G the running sum of g in the chunk and S the memory before it,

    D_ij = e^(G_i - G_j) for i >= j, else 0        how much of token j is left at token i
    L    = strictly lower part of (beta K K^T * D)
    N    = (I + L)^-1 beta (V - e^G K S)           the d of all its tokens
    O    = e^G Q S + (Q K^T * D) N
    S   <- e^(G_C) S + K^T (e^(G_C - G) N)

```
segments   0 0 0 0 | 0 1 1 1 | 1 1 1 1      three chunks, one border, in the second
reads S    x x x x   x . . .   x x x x      tokens before the chunk's first border
D          within a chunk, between tokens of one segment
feeds S    x x x x   . x x x   x x x x      tokens after the chunk's last border
```

Here and below: Hk key heads, Hv value heads, of which consecutive ones share a key head; dk, dv
their sizes; W the convolution's taps. Everything of the memory is float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ibrl_jax.models.cache import DeltaState
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.layers import named, project
from ibrl_jax.models.lora import LoraSettings

_UNIT_EPS = 1e-6  # of the normalisation of queries and keys; no model sets it


class GatedDelta(nn.Module):
    """The mixer as a layer: four projections, convolution, memory, gated norm, projection."""

    config: ModelConfig
    lora: LoraSettings | None

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        segment_ids: jax.Array | None,
        real: jax.Array | None,
        state: DeltaState | None,
    ) -> tuple[jax.Array, DeltaState | None]:
        """What the layer adds to hidden states [B, T, D], and the state after them.

        Padding may hold anything; what is returned for it means nothing.

        Args:
            x: [B, T, D].
            segment_ids: [B, T], 0 is padding; a new segment starts from nothing. None: one
                segment a row.
            real: [B, T] bool, without holes in a row; the others are padding. None: all are real.
            state: of the tokens before; None: there are none, and none is returned.
        """
        c, d = self.config, self.config.delta
        assert d is not None, "a delta layer in a network without sizes for it"
        if segment_ids is not None:
            inside = segment_ids > 0
            real = inside if real is None else real & inside
        number = None if segment_ids is None else segment_numbers(segment_ids)
        if real is not None:
            x = jnp.where(real[..., None], x, 0)
        keys, values = (d.key_heads, d.key_dim), (d.value_heads, d.value_dim)

        def convolved(name: str, sizes: tuple[int, int], heads: str, past: jax.Array | None):
            y = project(self, name, x, (c.hidden, *sizes), ("embed", heads, "head_dim"), 1)
            fresh = nn.initializers.normal(d.conv_kernel**-0.5)
            axes = heads, "head_dim", "conv"
            taps = self.param(f"conv_{name}", named(fresh, *axes), (*sizes, d.conv_kernel))
            with jax.named_scope("conv"):
                return causal_conv(y, taps.astype(y.dtype), past, number, real)

        past = (None, None, None) if state is None else (state.q, state.k, state.v)
        q, past_q = convolved("q", keys, "key_heads", past[0])  # [B, T, Hk, dk]
        k, past_k = convolved("k", keys, "key_heads", past[1])  # [B, T, Hk, dk]
        v, past_v = convolved("v", values, "value_heads", past[2])  # [B, T, Hv, dv]
        a, b, z = (
            project(self, name, x, (c.hidden, *out), ("embed", "value_heads", *rest), 1)
            for name, out, rest in (
                ("a", values[:1], ()),
                ("b", values[:1], ()),
                ("z", values, ("head_dim",)),
            )
        )
        log_rate = self.param("A_log", named(_log_uniform, "value_heads"), values[:1])
        bias = self.param("dt_bias", named(nn.initializers.ones, "value_heads"), values[:1])
        g = -jnp.exp(log_rate) * nn.softplus(a.astype(jnp.float32) + bias)  # [B, T, Hv]
        beta = nn.sigmoid(b.astype(jnp.float32))
        if real is not None:  # then a step changes nothing: e^0 S + k 0
            g, beta = (jnp.where(real[..., None], y, 0.0) for y in (g, beta))

        if state is None:
            memory = jnp.zeros((x.shape[0], d.value_heads, d.key_dim, d.value_dim), jnp.float32)
        else:
            memory = state.state
        q, k, v = _unit(q) * d.key_dim**-0.5, _unit(k), v.astype(jnp.float32)
        with jax.named_scope("memory"):
            if x.shape[1] == 1:
                out, memory = delta_scan(q, k, v, g, beta, memory, number)
            else:
                out, memory = delta_chunked(q, k, v, g, beta, memory, number, d.chunk)
        out = GatedNorm(c.norm_eps, name="norm")(out.astype(x.dtype), z)
        axes = "value_heads", "head_dim", "embed"
        y = project(self, "o", out, (*values, c.hidden), axes, 2)
        if state is None:
            return y, None
        return y, DeltaState(q=past_q, k=past_k, v=past_v, state=memory)


class GatedNorm(nn.Module):
    """`x * rsqrt(mean x^2 + eps) * scale * silu(z)` over the last axis: the norm, then the gate."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array, z: jax.Array) -> jax.Array:
        scale = self.param("scale", named(nn.initializers.ones, "head_dim"), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.eps)
        normed = wide.astype(x.dtype) * scale
        return (normed * nn.silu(z.astype(jnp.float32))).astype(x.dtype)


def segment_numbers(segment_ids: jax.Array) -> jax.Array:
    """How many borders between segments [B, T] each token has behind it, as int32 [B, T].

    Padding (0) belongs to the segment before it, and before the first to that one: it makes no
    border, and number 0 goes on from whatever the row's state holds.

    ```
    segment_ids   0 5 5 2 0 2 7 0
    numbers       0 0 0 1 1 1 2 2
    ```
    """
    real = segment_ids > 0
    at = jnp.where(real, jnp.arange(segment_ids.shape[1]), -1)
    last = jax.lax.cummax(at, axis=1)  # the latest real token at or before each
    last = jnp.where(last < 0, jnp.argmax(real, axis=1, keepdims=True), last)
    filled = jnp.take_along_axis(segment_ids, last, axis=1)
    borders = jnp.pad(filled[:, 1:] != filled[:, :-1], ((0, 0), (1, 0)))
    return jnp.cumsum(borders, axis=1, dtype=jnp.int32)


def causal_conv(
    x: jax.Array,
    weight: jax.Array,
    past: jax.Array | None,
    number: jax.Array | None,
    real: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """silu of each channel's causal convolution, and the inputs that the next tokens will see.

        y_t = silu(sum_j weight_j x_(t - W + 1 + j))        over taps in the segment of t

    Args:
        x: [B, T, H, d].
        weight: [H, d, W]; the last tap is the token's own.
        past: [B, H, d, W-1], the inputs before, latest last; None: zeros.
        number: [B, T] as `segment_numbers` gives it; `past` belongs to number 0. None: all 0.
        real: [B, T] bool; a row's real tokens stand side by side (given no `past`, its segments
            may lie apart), with padding on either side that is seen by none. None: all are real.

    Returns:
        [B, T, H, d] in the type of x, and the next `past`: the last W-1 inputs that are real,
        zero where they are not of the last segment.
    """
    b, t, h, d = x.shape
    taps = weight.shape[-1]
    carried = taps - 1
    if real is not None:
        x = jnp.where(real[..., None, None], x, 0)
    before = jnp.zeros((b, carried, h, d), x.dtype)
    offsets = jnp.arange(carried)
    start = end = jnp.zeros((b, 1), jnp.int32)  # real: start .. end - 1
    if real is None:
        end = end + t
    elif t == 1:
        end = real.astype(jnp.int32)
    else:
        start = jnp.argmax(real, axis=1, keepdims=True)
        end = jnp.max(jnp.where(real, jnp.arange(1, t + 1), 0), axis=1, keepdims=True)
    given = before if past is None else past.transpose(0, 3, 1, 2).astype(x.dtype)
    # Entry i + W - 1 of `line` is token i. The past goes right before a row's first real token.
    if past is None or real is None or t == 1:
        line = jnp.concatenate([given, x], axis=1)
    else:
        line = jnp.concatenate([before, x], axis=1)
        line = line.at[jnp.arange(b)[:, None], start + offsets].set(given)
    latest = jnp.take_along_axis(line, (end + offsets)[:, :, None, None], axis=1)
    numbers = None if number is None else jnp.pad(number, ((0, 0), (carried, 0)))
    total = jnp.zeros(x.shape, jnp.float32)
    for j in range(taps):
        tap = line[:, j : j + t].astype(jnp.float32)
        if number is not None and numbers is not None:
            tap = jnp.where((numbers[:, j : j + t] == number)[..., None, None], tap, 0.0)
        total = total + tap * weight[..., j].astype(jnp.float32)
    if number is not None and numbers is not None:
        same = jnp.take_along_axis(numbers, end + offsets, axis=1) == number[:, -1:]
        latest = jnp.where(same[..., None, None], latest, 0)
    return nn.silu(total).astype(x.dtype), latest.transpose(0, 2, 3, 1)


def delta_step(
    q: jax.Array, k: jax.Array, v: jax.Array, g: jax.Array, beta: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One token of each row. The memory is read once for key and query, then written:

        d = beta (v - e^g S^T k),   o = e^g S^T q + (q . k) d,   S <- e^g S + k d^T

    Args:
        q, k: [B, Hk, dk].
        v: [B, Hv, dv].
        g, beta: [B, Hv].
        state: [B, Hv, dk, dv].

    Returns:
        o [B, Hv, dv] and the state after.
    """
    share = v.shape[1] // k.shape[1]
    both = jnp.repeat(jnp.stack([q, k], axis=2), share, axis=1)  # [B, Hv, 2, dk]
    fade = jnp.exp(g)[..., None]
    held = fade[..., None] * _einsum("bhmd,bhdv->bhmv", both, state)
    new = beta[..., None] * (v - held[:, :, 1])
    match = jnp.repeat(jnp.sum(q * k, axis=-1), share, axis=1)
    out = held[:, :, 0] + match[..., None] * new
    return out, fade[..., None] * state + both[:, :, 1, :, None] * new[:, :, None]


def delta_scan(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    number: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """The recurrence token by token. What `delta_chunked` is held to; for one token, the way to go.

    Args:
        q, k: [B, T, Hk, dk].
        v: [B, T, Hv, dv].
        g, beta: [B, T, Hv], both 0 for padding.
        state: [B, Hv, dk, dv], of number 0.
        number: [B, T] as `segment_numbers` gives it; None: all 0.

    Returns:
        [B, T, Hv, dv], and the state after the last token.
    """
    if number is None:
        fresh = jnp.zeros(g.shape[:2], bool)
    else:
        fresh = number != jnp.pad(number, ((0, 0), (1, 0)))[:, :-1]
    if v.shape[1] == 1:
        if number is not None:
            state = jnp.where(fresh[..., None, None], 0.0, state)
        out, state = delta_step(q[:, 0], k[:, 0], v[:, 0], g[:, 0], beta[:, 0], state)
        return out[:, None], state

    def step(state: jax.Array, token: tuple) -> tuple[jax.Array, jax.Array]:
        fresh, q, k, v, g, beta = token
        state = jnp.where(fresh[:, None, None, None], 0.0, state)
        out, state = delta_step(q, k, v, g, beta, state)
        return state, out

    by_time = tuple(x.swapaxes(0, 1) for x in (fresh, q, k, v, g, beta))
    state, out = jax.lax.scan(step, state, by_time)
    return out.swapaxes(0, 1), state


def delta_chunked(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    g: jax.Array,
    beta: jax.Array,
    state: jax.Array,
    number: jax.Array | None,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """What `delta_scan` computes, at most `chunk` tokens at a time; the same arguments.

    What needs no memory is computed for all chunks at once. The loop over chunks keeps for the
    backward pass the memory before each, and computes the rest of its body again.
    """
    b, t, key_heads, dk = k.shape
    share, dv = v.shape[2] // key_heads, v.shape[3]
    chunks = -(-t // chunk)
    c = -(-t // chunks)  # as many, of one size: hardly any padding

    def cut(x: jax.Array, *shape: int, mode: Any = "constant") -> jax.Array:
        """[B, T, ...] as [n, B, C, *shape]."""
        x = jnp.pad(x, [(0, 0), (0, chunks * c - t)] + [(0, 0)] * (x.ndim - 2), mode=mode)
        return x.reshape(b, chunks, c, *shape).swapaxes(0, 1)

    q, k = (cut(x, key_heads, dk).swapaxes(2, 3) for x in (q, k))  # [n, B, Hk, C, dk]
    v = cut(v, key_heads, share, dv).transpose(0, 1, 3, 4, 2, 5)  # [n, B, Hk, R, C, dv]
    g, beta = (jnp.moveaxis(cut(x, key_heads, share), 2, -1) for x in (g, beta))  # [.., R, C]

    total = jnp.cumsum(g, axis=-1)
    seen, below = jnp.tri(c, dtype=bool), jnp.tri(c, k=-1, dtype=bool)
    carried = jnp.ones((), bool)
    if number is not None:
        number = cut(number, mode="edge")  # [n, B, C]
        seen = seen & (number[..., :, None] == number[..., None, :])[:, :, None, None]
        ends = jnp.pad(number[:-1, :, -1], ((1, 0), (0, 0)))  # whose memory each chunk is given
        carried = (number == ends[..., None])[:, :, None, None]
    # G_i - G_j as a sum of what lies between: the difference of two large sums would be rounded.
    between = jnp.where(below, g[..., :, None], 0.0)
    left = jnp.cumsum(between, axis=-2)
    decay = jnp.exp(jnp.where(seen, left, -jnp.inf))  # D, [n, B, Hk, R, C, C]
    into = jnp.where(carried, jnp.exp(total), 0.0)  # what a token finds of S, [n, B, Hk, R, C]
    alike = _einsum("nbkid,nbkjd->nbkij", k, k)[:, :, :, None]
    lower = jnp.where(below, beta[..., None] * alike * decay, 0.0)
    solve = unit_lower_inverse(lower)
    scores = _einsum("nbkid,nbkjd->nbkij", q, k)[:, :, :, None] * decay

    def body(state: jax.Array, piece: tuple) -> tuple[jax.Array, jax.Array]:
        q, k, v, beta, solve, scores, into, onto = piece
        held = into[..., None] * _einsum("bkcd,bkdrv->bkrcv", k, state)
        new = _einsum("bkrij,bkrjv->bkriv", solve, beta[..., None] * (v - held))
        out = into[..., None] * _einsum("bkcd,bkdrv->bkrcv", q, state)
        out = out + _einsum("bkrij,bkrjv->bkriv", scores, new)
        kept = into[:, :, None, :, -1:] * state
        return kept + _einsum("bkcd,bkrcv->bkdrv", k, onto[..., None] * new), out

    # Key heads' value heads beside each other: [B, Hk, dk, R, dv], one product for all of them.
    state = state.reshape(b, key_heads, share, dk, dv).swapaxes(2, 3)
    pieces = q, k, v, beta, solve, scores, into, decay[..., -1, :]
    state, out = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), state, pieces)
    out = out.transpose(1, 0, 4, 2, 3, 5).reshape(b, chunks * c, key_heads * share, dv)
    return out[:, :t], state.swapaxes(2, 3).reshape(b, key_heads * share, dk, dv)


@jax.custom_vjp
def unit_lower_inverse(lower: jax.Array) -> jax.Array:
    """X = (I + L)^-1 for strictly lower L [..., C, C], in 2 log2 C products.

    X starts as the inverse of the blocks of size 1 on the diagonal, and each round doubles them:

        [A 0]^-1  =  [    A^-1        0  ]        so  X <- X - X M X,  with M the blocks B of L
        [B D]        [-D^-1 B A^-1  D^-1 ]

    What it holds at any time are blocks of the result, so nothing grows and cancels; the shorter
    series (I - L)(I + L^2)(I + L^4)... does where keys repeat: its terms are binomials.

    Its gradient is -X^T dX X^T, so that the rounds are neither kept nor computed again.
    """
    c = lower.shape[-1]
    at = jnp.arange(c)
    inverse = jnp.eye(c, dtype=lower.dtype)
    size = 1
    while size < c:
        block = at // size
        lies = (block[:, None] % 2 == 1) & (block[None, :] == block[:, None] - 1)
        off = jnp.where(lies, lower, 0.0)
        inverse = inverse - (off if size == 1 else _matmul(_matmul(inverse, off), inverse))
        size *= 2
    return jnp.broadcast_to(inverse, lower.shape)


def _inverse_forward(lower: jax.Array) -> tuple[jax.Array, jax.Array]:
    inverse = unit_lower_inverse(lower)
    return inverse, inverse


def _inverse_backward(inverse: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    across = inverse.swapaxes(-1, -2)
    return (-_matmul(_matmul(across, cotangent), across),)


unit_lower_inverse.defvjp(_inverse_forward, _inverse_backward)


def _unit(x: jax.Array) -> jax.Array:
    """x [..., d] of length 1, in float32."""
    x = x.astype(jnp.float32)
    return x * jax.lax.rsqrt(jnp.sum(x**2, axis=-1, keepdims=True) + _UNIT_EPS)


def _log_uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    """log of numbers uniform in (0, 16)."""
    return jnp.log(jax.random.uniform(key, shape, dtype, minval=1e-4, maxval=16.0))


def _einsum(equation: str, *operands: jax.Array) -> jax.Array:
    return jnp.einsum(equation, *operands, precision=jax.lax.Precision.HIGHEST)


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)
