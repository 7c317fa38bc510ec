"""Log-probabilities of tokens that are already there, as training and checks need them.

    logp[b, t] = log softmax(logits[b, t-1] / temperature)[ids[b, t]]
    entropy[b, t] = -sum_v p log p  of the same distribution, the one that token t was drawn from

The logits of `chunk` positions a row exist at a time: forward they are reduced at once, backward
they are computed again (`jax.checkpoint`), so that no array of [B, T, V] ever exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ibrl_jax.models.attention import taken
from ibrl_jax.models.decoder import Decoder, hidden_at
from ibrl_jax.models.lora import variables
from ibrl_jax.models.params import Params


def score(
    model: Decoder,
    trained: Params,
    frozen: Params | None,
    ids: jax.Array,
    positions: jax.Array,
    segment_ids: jax.Array | None,
    temperature: jax.Array | float,
    chunk: int,
    at: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy [B, T] of each token given those before it in its segment.

    Both are float32, and 0 where nothing was predicted: a segment's first token, padding, and what
    is not `at`.

    Args:
        trained, frozen: see `ibrl_jax.models.lora`.
        ids, positions: [B, T].
        segment_ids: [B, T], 0 is padding; None: one segment a row.
        temperature: a scalar above 0; may be traced.
        chunk: positions a row whose logits exist at once; static.
        at: [B, P] indices of the tokens that are wanted, each once in its row; T stands for none.
            None: all are.
    """
    values = variables(trained, frozen)
    t = ids.shape[1]
    if at is None:
        hidden: Any = model.apply(values, ids, positions, segment_ids)
        given, targets = hidden[:, :-1], ids[:, 1:]  # [B, T-1, D], [B, T-1]
    else:
        before, token = jnp.clip(at - 1, 0, t - 1), jnp.minimum(at, t - 1)
        given = hidden_at(model, values, ids, positions, segment_ids, before)  # [B, P, D]
        targets = taken(ids, token)  # [B, P]

    @jax.checkpoint
    def piece(hidden: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits: Any = model.apply(values, hidden, method=Decoder.logits)
        logits = logits / temperature
        return logp_and_entropy(logits, targets)

    logp, entropy = _in_chunks(piece, given, targets, chunk)
    if at is not None:
        logp, entropy = _put_back(logp, at, t)[:, 1:], _put_back(entropy, at, t)[:, 1:]
    if segment_ids is not None:
        inside = (segment_ids[:, 1:] == segment_ids[:, :-1]) & (segment_ids[:, 1:] > 0)
        logp, entropy = jnp.where(inside, logp, 0.0), jnp.where(inside, entropy, 0.0)
    first = ((0, 0), (1, 0))
    return jnp.pad(logp, first), jnp.pad(entropy, first)


def _put_back(values: jax.Array, at: jax.Array, t: int) -> jax.Array:
    """[B, T], 0 but for `values` [B, P] at their indices."""
    rows = jnp.arange(at.shape[0])[:, None]
    return jnp.zeros((at.shape[0], t), values.dtype).at[rows, at].set(values, mode="drop")


def logp_and_entropy(logits: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log softmax(logits [..., V])[tokens [...]] and the entropy [...] of softmax(logits), in nats.

    With z = logits - max:

        logp = z[token] - log sum e^z,   entropy = log sum e^z - sum z e^z / sum e^z
    """
    z = logits - jax.lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))
    weights = jnp.exp(z)
    total = jnp.sum(weights, axis=-1)
    log_total = jnp.log(total)
    picked = jnp.take_along_axis(z, tokens[..., None], axis=-1)[..., 0]
    return picked - log_total, log_total - jnp.sum(weights * z, axis=-1) / total


def _in_chunks(
    piece: Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]],
    hidden: jax.Array,
    targets: jax.Array,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    """`piece` over slices of the time axis, in order; the last is padded and cut again."""
    b, t, d = hidden.shape
    chunks = -(-t // chunk) if t else 0
    chunk = -(-t // max(chunks, 1))  # as many, of one size: hardly any padding
    spare = chunks * chunk - t
    hidden = jnp.pad(hidden, ((0, 0), (0, spare), (0, 0))).reshape(b, chunks, chunk, d)
    targets = jnp.pad(targets, ((0, 0), (0, spare))).reshape(b, chunks, chunk)
    out = jax.lax.map(lambda xs: piece(*xs), (hidden.swapaxes(0, 1), targets.swapaxes(0, 1)))
    logp, entropy = (x.swapaxes(0, 1).reshape(b, chunks * chunk)[:, :t] for x in out)
    return logp, entropy
