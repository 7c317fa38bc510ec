"""The decoder: what a token sees; caches, padding, packing and compilation change nothing."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.models.attention import causal_attention
from ibrl_jax.models.cache import DeltaState, empty_cache, read, write
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.presets import preset
from ibrl_jax.models.serving import next_logits, serving_params
from ibrl_jax.models.serving import read as read_on

DENSE = preset("qwen3_micro", vocab_size=64)
HYBRID = preset("qwen3_5_micro", vocab_size=64, period=("delta", "full"))  # twice
B, T, S = 2, 10, 16


QUICK = {"xla_backend_optimization_level": 0}  # a test's program runs once or twice


@pytest.fixture(scope="module", params=[DENSE, HYBRID], ids=["dense", "hybrid"])
def config(request):
    return request.param


@pytest.fixture(scope="module")
def params(config, random_params):
    return random_params(config)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, 64, (B, T)).astype(np.int32)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def hidden(config, params, ids, positions, segments):
    return Decoder(config, None).apply({"params": params}, ids, positions, segments)


def positions_of(ids):
    return np.broadcast_to(np.arange(ids.shape[1]), ids.shape).astype(np.int32)


def full(config, params, ids):
    return hidden(config, params, ids, positions_of(ids), None)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def advance(config, params, ids, starts, counts, cache):
    """Read right-padded pieces [B, T] that begin at `starts`."""
    offsets = jnp.arange(ids.shape[1])
    real = offsets < counts[:, None]
    served = serving_params(config, params)
    return read_on(Decoder(config, None), served, ids, starts[:, None] + offsets, real, cache)


def left(ids, start):
    """The tokens from `start` on, moved to the left edge; junk after them."""
    out = np.full_like(ids, 63)
    out[:, : ids.shape[1] - start] = ids[:, start:]
    return out


def test_two_pieces_with_a_cache_equal_one_pass_at_every_split(config, params, ids):
    want = full(config, params, ids)
    for split in range(1, T):
        cache = empty_cache(config, B, S)
        at, n = np.full(B, split), np.full(B, T - split)
        first, cache = advance(config, params, ids, np.zeros(B, int), at, cache)
        second, _ = advance(config, params, left(ids, split), at, n, cache)
        got = np.concatenate([first[:, :split], second[:, : T - split]], axis=1)
        np.testing.assert_allclose(got, want, atol=2e-5)


def test_rows_may_stand_at_different_positions(config, params, ids):
    want = full(config, params, ids)
    cache = empty_cache(config, B, S)
    splits = np.array([3, 7])
    _, cache = advance(config, params, ids, np.zeros(B, int), splits, cache)
    rest = np.stack([left(ids[b : b + 1], s)[0] for b, s in enumerate(splits)])
    got, _ = advance(config, params, rest, splits, T - splits, cache)
    for b, s in enumerate(splits):
        np.testing.assert_allclose(got[b, : T - s], want[b, s:], atol=2e-5)


def test_a_rewound_cache_reads_on_as_if_the_rest_had_never_been(random_params, ids):
    config, params = DENSE, random_params(DENSE)
    other = ids.copy()
    other[:, 4:] = (ids[:, 4:] + 7) % 64
    _, cache = advance(
        config, params, other, np.zeros(B, int), np.full(B, T), empty_cache(config, B, S)
    )
    got, _ = advance(config, params, left(ids, 4), np.full(B, 4), np.full(B, T - 4), cache)
    np.testing.assert_allclose(got[:, : T - 4], full(config, params, ids)[:, 4:], atol=2e-5)


def test_padding_and_overflow_write_nothing_into_a_cache(random_params, ids):
    config, params = DENSE, random_params(DENSE)
    blank = jax.tree.map(lambda x: x + 5, empty_cache(config, B, 6))
    _, cache = advance(config, params, ids, np.array([1, 4]), np.array([2, T]), blank)
    for kv in cache.layers:
        changed = np.any(np.asarray(kv.v) != 5, axis=(1, 3))  # [B, S]
        np.testing.assert_array_equal(changed[0], [0, 1, 1, 0, 0, 0])
        np.testing.assert_array_equal(changed[1], [0, 0, 0, 0, 1, 1])
        np.testing.assert_array_equal(np.any(np.asarray(kv.k) != 5, axis=(1, 2)), changed)


def test_reading_nothing_leaves_a_delta_state_bitwise_as_it_was(random_params, ids):
    params = random_params(HYBRID)
    none = np.zeros(B, int)
    _, cache = advance(HYBRID, params, ids, none, np.full(B, T), empty_cache(HYBRID, B, S))
    counts = np.array([0, 3])
    _, after = advance(HYBRID, params, ids, np.full(B, T), counts, cache)
    for old, new in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(old[0], new[0])
    moved = [x for x in after.layers if isinstance(x, DeltaState)]
    assert len(moved) == 2
    for old, new in zip((x for x in cache.layers if isinstance(x, DeltaState)), moved, strict=True):
        assert np.abs(old.state[1] - new.state[1]).max() > 1e-3


def test_cache_read_is_the_inverse_of_write():
    rng = np.random.default_rng(0)
    kv: Any = empty_cache(DENSE, 3, 8).layers[0]
    new_k, new_v = rng.normal(size=(2, 2, 4, 2, 16)).astype(np.float32)
    rows, entries = jnp.array([[2], [0]]), jnp.array([[0, 1, 2, 3], [4, 5, 6, 7]])
    got_k, got_v = read(write(kv, new_k, new_v, rows, entries), rows, entries)
    np.testing.assert_array_equal(got_k, new_k)
    np.testing.assert_array_equal(got_v, new_v)


@pytest.mark.parametrize("junk", [0, 63])
def test_padding_changes_nothing_whatever_it_holds(config, params, ids, junk):
    want = full(config, params, ids[:, :7])
    padded = ids.copy()
    padded[:, 7:] = junk
    segments = (positions_of(ids) < 7).astype(np.int32)
    got = hidden(config, params, padded, positions_of(ids), segments)
    np.testing.assert_allclose(got[:, :7], want, atol=1e-5)
    left_padded = np.concatenate([padded[:, 7:], padded[:, :7]], axis=1)
    positions = np.maximum(positions_of(ids) - 3, 0)
    got = hidden(config, params, left_padded, positions, segments[:, ::-1])
    np.testing.assert_allclose(got[:, 3:], want, atol=1e-5)


def test_packed_sequences_do_not_see_each_other(config, params, ids):
    want = full(config, params, ids[:, :5])
    packed = np.concatenate([ids[0, :5], ids[1, :5]])[None]
    positions = np.tile(np.arange(5), 2)[None]
    segments = np.repeat([1, 2], 5)[None]
    got = hidden(config, params, packed, positions, segments)
    np.testing.assert_allclose(got.reshape(B, 5, -1), want, atol=1e-5)


def test_a_token_sees_all_before_it_and_none_after(config, params, ids):
    want = full(config, params, ids)
    for t in (0, 4, 9):
        other = ids.copy()
        other[:, t] = (other[:, t] + 1) % 64
        moved = np.abs(full(config, params, other) - want).max(axis=(0, 2)) > 1e-4
        np.testing.assert_array_equal(moved, np.arange(T) >= t)


def test_only_distances_between_positions_matter(config, params, ids):
    far = hidden(config, params, ids, positions_of(ids) + 100, None)
    np.testing.assert_allclose(far, full(config, params, ids), atol=1e-4)
    stretched = hidden(config, params, ids, positions_of(ids) * 2, None)
    assert np.abs(stretched - full(config, params, ids)).max() > 1e-2


def test_a_row_of_padding_has_finite_gradients(config, params, ids):
    segments = np.ones_like(ids)
    segments[1] = 0

    def loss(params):
        x: Any = Decoder(config, None).apply({"params": params}, ids, positions_of(ids), segments)
        return jnp.sum(x**2)

    grads = jax.jit(jax.grad(loss), compiler_options=QUICK)(params)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def value_and_grad(config, params, ids):
    def loss(params):
        x: Any = Decoder(config, None).apply({"params": params}, ids, positions_of(ids), None)
        return jnp.sum(x[..., 0] ** 2)

    return jax.value_and_grad(loss)(params)


@pytest.mark.parametrize("flags", [dict(unroll=1), dict(unroll=1, remat=True)])
def test_scan_and_remat_change_neither_values_nor_gradients(config, params, ids, flags):
    want = value_and_grad(config, params, ids)
    got = value_and_grad(replace(config, **flags), params, ids)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5 * (1 + np.abs(b).max()))


def test_bfloat16_gives_nearly_the_same_distribution(config, params, ids):
    @functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
    def probs(config, x):
        logits = next_logits(Decoder(config, None), serving_params(config, params), x)
        assert logits.dtype == jnp.float32
        return jax.nn.softmax(logits)

    found = []
    for each in (config, replace(config, dtype="bfloat16")):
        cache = empty_cache(each, B, S)
        x, _ = advance(each, params, ids, np.zeros(B, int), np.full(B, T), cache)
        found.append(np.asarray(probs(each, x)))
    assert 0.5 * np.abs(found[1] - found[0]).sum(-1).max() < 0.05


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def attended(block, mask, *given):
    """What attention gives for query, key and value, and how those move what its square sums to."""

    def pull(q, k, v):
        out = causal_attention(q, k, v, mask, block, "xla")
        # The last row of the second is padding, which sees nothing and has no say.
        return (out[:, :9] ** 2).sum(), out

    grads, out = jax.grad(pull, argnums=(0, 1, 2), has_aux=True)(*given)
    return out, grads


@pytest.mark.parametrize("block", [1, 3, 4, 64])
def test_attention_in_blocks_is_attention_at_once(block):
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(2, 10, heads, 8)).astype(np.float32) for heads in (4, 2, 2)]
    segments = np.array([[1] * 10, [1] * 6 + [2] * 3 + [0]])
    mask = (segments[:, :, None] == segments[:, None, :]) & np.tril(np.ones((10, 10), bool))
    pieces, got = attended(block, mask, *given)
    whole, wanted = attended(0, mask, *given)
    np.testing.assert_allclose(pieces, whole, atol=1e-6)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
