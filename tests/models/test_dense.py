"""The decoder: what a token sees; caches, padding, packing and compilation change nothing."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.models.cache import KVCache, empty_cache, read, write
from ibrl_jax.models.dense import Decoder, causal_attention
from ibrl_jax.models.presets import preset
from ibrl_jax.models.serving import next_logits, serving_params
from ibrl_jax.models.serving import read as read_on

CONFIG = preset("qwen3_micro", vocab_size=64)
B, T, S = 2, 10, 16


QUICK = {"xla_backend_optimization_level": 0}  # a test's program runs once or twice


@pytest.fixture(scope="module")
def params(random_params):
    return random_params(CONFIG)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, 64, (B, T)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def hidden(config, params, ids, positions, segments):
    return Decoder(config).apply({"params": params}, ids, positions, segments)


def positions_of(ids):
    return np.broadcast_to(np.arange(ids.shape[1]), ids.shape).astype(np.int32)


def full(params, ids, config=CONFIG):
    return hidden(config, params, ids, positions_of(ids), None)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def advance(config, params, ids, starts, counts, cache):
    """Read right-padded pieces [B, T] that begin at `starts`."""
    offsets = jnp.arange(ids.shape[1])
    real = offsets < counts[:, None]
    served = serving_params(config, params)
    return read_on(Decoder(config), served, ids, starts[:, None] + offsets, real, cache)


def left(ids, start):
    """The tokens from `start` on, moved to the left edge; junk after them."""
    out = np.full_like(ids, 63)
    out[:, : ids.shape[1] - start] = ids[:, start:]
    return out


def test_two_pieces_with_a_cache_equal_one_pass_at_every_split(params, ids):
    want = full(params, ids)
    for split in range(1, T):
        cache = empty_cache(CONFIG, B, S)
        at, n = np.full(B, split), np.full(B, T - split)
        first, cache = advance(CONFIG, params, ids, np.zeros(B, int), at, cache)
        second, _ = advance(CONFIG, params, left(ids, split), at, n, cache)
        got = np.concatenate([first[:, :split], second[:, : T - split]], axis=1)
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_rows_may_stand_at_different_positions(params, ids):
    want = full(params, ids)
    cache = empty_cache(CONFIG, B, S)
    splits = np.array([3, 7])
    _, cache = advance(CONFIG, params, ids, np.zeros(B, int), splits, cache)
    rest = np.stack([left(ids[b : b + 1], s)[0] for b, s in enumerate(splits)])
    got, _ = advance(CONFIG, params, rest, splits, T - splits, cache)
    for b, s in enumerate(splits):
        np.testing.assert_allclose(got[b, : T - s], want[b, s:], atol=2e-5)


def test_a_rewound_cache_reads_on_as_if_the_rest_had_never_been(params, ids):
    other = ids.copy()
    other[:, 4:] = (ids[:, 4:] + 7) % 64
    _, cache = advance(
        CONFIG, params, other, np.zeros(B, int), np.full(B, T), empty_cache(CONFIG, B, S)
    )
    got, _ = advance(CONFIG, params, left(ids, 4), np.full(B, 4), np.full(B, T - 4), cache)
    np.testing.assert_allclose(got[:, : T - 4], full(params, ids)[:, 4:], atol=2e-5)


def test_padding_and_overflow_write_nothing_into_a_cache(params, ids):
    blank = KVCache(
        k=tuple(x + 5 for x in empty_cache(CONFIG, B, 6).k),
        v=tuple(x + 5 for x in empty_cache(CONFIG, B, 6).v),
    )
    _, cache = advance(CONFIG, params, ids, np.array([1, 4]), np.array([2, T]), blank)
    for k, v in zip(cache.k, cache.v, strict=True):
        changed = np.any(np.asarray(v) != 5, axis=(1, 3))  # [B, S]
        np.testing.assert_array_equal(changed[0], [0, 1, 1, 0, 0, 0])
        np.testing.assert_array_equal(changed[1], [0, 0, 0, 0, 1, 1])
        np.testing.assert_array_equal(np.any(np.asarray(k) != 5, axis=(1, 2)), changed)


def test_cache_read_is_the_inverse_of_write():
    rng = np.random.default_rng(0)
    k, v = empty_cache(CONFIG, 3, 8).k[0], empty_cache(CONFIG, 3, 8).v[0]
    new_k, new_v = rng.normal(size=(2, 2, 4, 2, 16)).astype(np.float32)
    rows, entries = jnp.array([[2], [0]]), jnp.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    k, v = write(k, v, new_k, new_v, rows, entries)
    got_k, got_v = read(k, v, rows, entries)
    np.testing.assert_array_equal(got_k, new_k)
    np.testing.assert_array_equal(got_v, new_v)


@pytest.mark.parametrize("junk", [0, 63])
def test_padding_changes_nothing_whatever_it_holds(params, ids, junk):
    want = full(params, ids[:, :7])
    padded = ids.copy()
    padded[:, 7:] = junk
    segments = (positions_of(ids) < 7).astype(np.int32)
    got = hidden(CONFIG, params, padded, positions_of(ids), segments)
    np.testing.assert_allclose(got[:, :7], want, atol=1e-5)
    left_padded = np.concatenate([padded[:, 7:], padded[:, :7]], axis=1)
    positions = np.maximum(positions_of(ids) - 3, 0)
    got = hidden(CONFIG, params, left_padded, positions, segments[:, ::-1])
    np.testing.assert_allclose(got[:, 3:], want, atol=1e-5)


def test_packed_sequences_do_not_see_each_other(params, ids):
    want = full(params, ids[:, :5])
    packed = np.concatenate([ids[0, :5], ids[1, :5]])[None]
    positions = np.tile(np.arange(5), 2)[None]
    segments = np.repeat([1, 2], 5)[None]
    got = hidden(CONFIG, params, packed, positions, segments)
    np.testing.assert_allclose(got.reshape(B, 5, -1), want, atol=1e-5)


def test_a_token_sees_all_before_it_and_none_after(params, ids):
    want = full(params, ids)
    for t in (0, 4, 9):
        other = ids.copy()
        other[:, t] = (other[:, t] + 1) % 64
        moved = np.abs(full(params, other) - want).max(axis=(0, 2)) > 1e-4
        np.testing.assert_array_equal(moved, np.arange(T) >= t)


def test_only_distances_between_positions_matter(params, ids):
    far = hidden(CONFIG, params, ids, positions_of(ids) + 100, None)
    np.testing.assert_allclose(far, full(params, ids), atol=1e-4)
    stretched = hidden(CONFIG, params, ids, positions_of(ids) * 2, None)
    assert np.abs(stretched - full(params, ids)).max() > 1e-2


def test_a_row_of_padding_has_finite_gradients(params, ids):
    segments = np.ones_like(ids)
    segments[1] = 0

    def loss(params):
        x: Any = Decoder(CONFIG).apply({"params": params}, ids, positions_of(ids), segments)
        return jnp.sum(x**2)

    grads = jax.jit(jax.grad(loss), compiler_options=QUICK)(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("flags", [dict(unroll=1), dict(unroll=1, remat=True)])
def test_scan_and_remat_change_neither_values_nor_gradients(params, ids, flags):
    def value_and_grad(config):
        model = Decoder(config)

        def loss(p):
            x: Any = model.apply({"params": p}, ids, positions_of(ids), None)
            return jnp.sum(x[..., 0] ** 2)

        return jax.jit(jax.value_and_grad(loss), compiler_options=QUICK)(params)

    want, got = value_and_grad(CONFIG), value_and_grad(replace(CONFIG, **flags))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


def test_bfloat16_gives_nearly_the_same_distribution(params, ids):
    config = replace(CONFIG, dtype="bfloat16")

    def probs(config):
        cache = empty_cache(config, B, S)
        x, _ = advance(config, params, ids, np.zeros(B, int), np.full(B, T), cache)
        logits = next_logits(Decoder(config), serving_params(config, params), x)
        assert logits.dtype == jnp.float32
        return jax.nn.softmax(logits)

    assert 0.5 * np.abs(probs(config) - probs(CONFIG)).sum(-1).max() < 0.05


@pytest.mark.parametrize("block", [1, 3, 4, 64])
def test_attention_in_blocks_is_attention_at_once(block):
    rng = np.random.default_rng(0)
    query = jnp.asarray(rng.normal(size=(2, 10, 4, 8)), jnp.float32)
    key, value = (jnp.asarray(rng.normal(size=(2, 10, 2, 8)), jnp.float32) for _ in range(2))
    segments = np.array([[1] * 10, [1] * 6 + [2] * 3 + [0]])
    mask = (segments[:, :, None] == segments[:, None, :]) & np.tril(np.ones((10, 10), bool))
    whole = causal_attention(query, key, value, jnp.asarray(mask), 0)
    pieces = causal_attention(query, key, value, jnp.asarray(mask), block)
    np.testing.assert_allclose(pieces, whole, atol=1e-6)
