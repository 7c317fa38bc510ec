"""How a token is drawn from logits, and the log-probability that is recorded for it.

A strategy restricts the scaled logits `z = logits / T` to the tokens that may be drawn. The draw
inverts the cumulative distribution: with one uniform number u a token,

    token = min { v : sum_{w <= v} p_w > u },   p = softmax(z),   logp = log p[token],

so the recorded log-probability is always that of the distribution that was sampled from. The number
of a token at absolute position p of a view has the key `fold_in(key, p)`, and so depends on nothing
else in the batch. One number a token, and not one a token of the vocabulary as in a Gumbel draw,
leaves the noise out of the cost of a large vocabulary.

Temperature 0 is greedy: the argmax, with its log-probability at T = 1. It is for evaluation; that
number is not a behaviour log-probability.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from ibrl_jax.errors import UserError

_PIECE = 128
"""Tokens of a piece of the vocabulary, when a draw is looked up."""


class Strategy(Protocol):
    """Which tokens may be drawn. Hashable, since each strategy is a compiled program of its own."""

    def restrict(self, logits: jax.Array) -> jax.Array:
        """Scaled `logits` [R, V], with -inf where a token may not be drawn."""
        ...


@dataclass(frozen=True)
class Temperature:
    """The whole vocabulary: the only strategy whose tokens may be trained on as they are."""

    def restrict(self, logits: jax.Array) -> jax.Array:
        return logits


@dataclass(frozen=True)
class TopK:
    """The k most probable tokens (and those that tie with the last of them)."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"top_k is {self.k}; it must be at least 1.")

    def restrict(self, logits: jax.Array) -> jax.Array:
        kept = jax.lax.top_k(logits, min(self.k, logits.shape[-1]))[0]
        return jnp.where(logits >= kept[:, -1:], logits, -jnp.inf)


@dataclass(frozen=True)
class TopP:
    """The fewest most probable tokens whose mass reaches p (and those that tie with the last)."""

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise UserError(f"top_p is {self.p}; it must be above 0 and at most 1.")

    def restrict(self, logits: jax.Array) -> jax.Array:
        ordered = jnp.sort(logits, axis=-1, descending=True)
        probs = jax.nn.softmax(ordered, axis=-1)
        before = jnp.cumsum(probs, axis=-1) - probs  # mass of the tokens ranked higher
        count = jnp.sum(before < self.p, axis=-1, keepdims=True)
        least = jnp.take_along_axis(ordered, jnp.maximum(count - 1, 0), axis=-1)
        return jnp.where(logits >= least, logits, -jnp.inf)


def draw(
    strategy: Strategy,
    logits: jax.Array,
    keys: jax.Array,
    positions: jax.Array,
    temperatures: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """One token and its log-probability a row.

    Args:
        strategy: which tokens may be drawn.
        logits: [R, V] float32.
        keys: [R, 2] uint32, the key data of each row.
        positions: [R], the absolute position of the token to be drawn.
        temperatures: [R], 0 for greedy.

    Returns:
        ids [R] int32 and log-probabilities [R] float32.
    """
    warm = temperatures > 0
    scaled = strategy.restrict(logits / jnp.where(warm, temperatures, 1.0)[:, None])
    top = jnp.max(scaled, axis=-1)
    weights = jnp.exp(scaled - top[:, None])  # [R, V], the largest is 1
    drawn, total = _invert(weights, jax.vmap(_uniform)(keys, positions))
    ids = jnp.where(warm, drawn, _argmax(scaled)).astype(jnp.int32)
    picked = jnp.take_along_axis(scaled, ids[:, None], axis=-1)[:, 0]
    return ids, picked - top - jnp.log(total)


def _invert(weights: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The index [R] at which the cumulative sum of weights [R, V] passes u x total; the totals [R].

    In two looks: which piece of the vocabulary, then which token of it.

    ```
    pieces     . . . . | . . . . | . . x . | . .        sums are taken of pieces, and in one piece
    ```
    """
    size = weights.shape[-1]
    width = min(_PIECE, size)
    padded = jnp.pad(weights, ((0, 0), (0, -size % width)))
    pieces = padded.reshape(weights.shape[0], -1, width)  # [R, C, width]
    sums = jnp.sum(pieces, axis=-1)
    upto = jnp.cumsum(sums, axis=-1)  # [R, C]
    total = upto[:, -1]
    goal = u * total
    piece = _first_above(upto, goal, sums)
    before = jnp.take_along_axis(upto - sums, piece[:, None], axis=-1)[:, 0]
    inside = jnp.take_along_axis(pieces, piece[:, None, None], axis=1)[:, 0]  # [R, width]
    place = _first_above(jnp.cumsum(inside, axis=-1), goal - before, inside)
    return jnp.minimum(piece * width + place, size - 1), total


def _first_above(upto: jax.Array, goal: jax.Array, weights: jax.Array) -> jax.Array:
    """The first index [R] of positive weight where `upto` [R, C] is above `goal` [R].

    Where rounding leaves none, that of the largest weight: never one of weight 0.
    """
    found = (upto > goal[:, None]) & (weights > 0)
    count = upto.shape[-1]
    first = jnp.min(jnp.where(found, jnp.arange(count), count), axis=-1)
    return jnp.where(first < count, first, _argmax(weights))


def _uniform(key: jax.Array, position: jax.Array) -> jax.Array:
    key = jax.random.wrap_key_data(key, impl="threefry2x32")
    return jax.random.uniform(jax.random.fold_in(key, position))


def _argmax(x: jax.Array) -> jax.Array:
    """The index [R] int32 of the first largest entry of x [R, V].

    As two plain reductions it is vectorised on a CPU: a seventh of `jnp.argmax`'s time at V = 512.
    """
    largest = jnp.max(x, axis=-1, keepdims=True)
    last = x.shape[-1] - 1
    return jnp.min(jnp.where(x == largest, jnp.arange(last + 1), last), axis=-1).astype(jnp.int32)
