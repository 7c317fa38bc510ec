"""The delta rule's mathematics: two forms and a definition agree, and nothing leaks or drifts."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibrl_jax.models import delta
from ibrl_jax.models.delta import segment_numbers, unit_lower_inverse

B, T, HK, HV, DK, DV, W = 2, 13, 2, 4, 5, 6, 4
SLOW = 0.05  # a rate of forgetting at which all that came before still shows

QUICK: Any = {"xla_backend_optimization_level": 0}  # a test's program runs once or twice
scan: Any = jax.jit(delta.delta_scan, compiler_options=QUICK)
chunked: Any = jax.jit(delta.delta_chunked, static_argnums=7, compiler_options=QUICK)
conv: Any = jax.jit(delta.causal_conv, compiler_options=QUICK)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def tokens(seed=0, t=T, rate=SLOW, rows=B):
    """q, k, v, g, beta of random tokens, and a random state."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    q, k = unit(normal(rows, t, HK, DK)) * DK**-0.5, unit(normal(rows, t, HK, DK))
    g = -rate * np.log1p(np.exp(normal(rows, t, HV)))
    beta = 1 / (1 + np.exp(-normal(rows, t, HV)))
    return q, k, normal(rows, t, HV, DV), g, beta, normal(rows, HV, DK, DV)


def by_hand(q, k, v, g, beta, state, number=None):
    """The recurrence as it is written, in float64, a row and a head at a time."""
    q, k, v, g, beta, state = (np.array(x, np.float64) for x in (q, k, v, g, beta, state))
    out = np.zeros_like(v)
    for b, t, h in np.ndindex(*v.shape[:3]):
        key, query = k[b, t, h // (HV // HK)], q[b, t, h // (HV // HK)]
        if number is not None and number[b, t] != (number[b, t - 1] if t else 0):
            state[b, h] = 0
        faded = state[b, h] * np.exp(g[b, t, h])
        d = beta[b, t, h] * (v[b, t, h] - faded.T @ key)
        state[b, h] = faded + np.outer(key, d)
        out[b, t, h] = state[b, h].T @ query
    return out, state


def joined(head, tail, at):
    """q, k, v, g, beta of one up to token `at`, and of the other from there."""
    pairs = zip(head[:5], tail[:5], strict=True)
    return [np.concatenate([a[:, :at], b[:, at:]], axis=1) for a, b in pairs]


def close(got, want, atol=3e-6):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), got, want)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


NUMBERS = np.array([[0] * 4 + [1] * 1 + [2] * 8, [1] * 2 + [2] * 3 + [3] * 4 + [4] * 4], np.int32)


@pytest.mark.parametrize("number", [None, NUMBERS], ids=["one segment", "packed"])
def test_scan_is_the_recurrence(number):
    given = tokens()
    close(scan(*given, number), by_hand(*given, number=number))


@pytest.mark.parametrize("number", [None, NUMBERS], ids=["one segment", "packed"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 6, 8, 13, 64])
def test_chunks_of_any_size_are_the_scan(chunk, number):
    given = tokens()
    close(chunked(*given, number, chunk), scan(*given, number))


@pytest.mark.parametrize("t", [1, 2, 3, 5, 8])
def test_any_number_of_tokens_will_do(t):
    given = tokens(t=t)
    close(chunked(*given, None, 4), by_hand(*given))
    close(scan(*given, None), by_hand(*given))


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 2), min_size=B * T, max_size=B * T),
    st.sampled_from([1, 4, 5, 13]),
    st.integers(0, 9),
)
def test_wherever_the_borders_are_both_forms_reset_there(steps, chunk, seed):
    number = np.cumsum(np.array(steps, np.int32).reshape(B, T) // 2, axis=1, dtype=np.int32)
    given = tokens(seed)
    want = by_hand(*given, number=number)
    close(chunked(*given, number, chunk), want)
    close(scan(*given, number), want)


def test_one_token_of_a_new_segment_starts_from_nothing():
    given, number = tokens(t=1), np.array([[0], [1]], np.int32)
    close(scan(*given, number), by_hand(*given, number=number))


def test_packed_segments_are_the_segments_on_their_own():
    *given, state = tokens(rows=1)
    number = NUMBERS[:1]
    for run in (lambda *a: chunked(*a, 4), scan):
        out, last = run(*given, state, number)
        for n, start, end in ((0, 0, 4), (1, 4, 5), (2, 5, 13)):
            alone, after = by_hand(*(x[:, start:end] for x in given), state=state * (n == 0))
            close(out[:, start:end], alone)
        close(last, after)


@pytest.mark.parametrize("chunk", [3, 4, 13])
def test_nothing_of_a_segment_is_in_the_next(chunk):
    """Bitwise, at a slow decay, with other tokens and another state before the border."""
    given, others = tokens(0), tokens(1)
    border = 5
    number = np.broadcast_to(np.arange(T) >= border, (B, T)).astype(np.int32)
    mixed = joined(others, given, border)
    for run in (lambda *a: chunked(*a, chunk), scan):
        out, state = run(*given, number)
        other_out, other_state = run(*mixed, others[5], number)
        equal(other_out[:, border:], out[:, border:])
        equal(other_state, state)


def test_a_token_sees_none_after_it():
    given, others = tokens(0), tokens(1)
    mixed = joined(given, others, 7)
    equal(chunked(*mixed, given[5], None, 4)[0][:, :7], chunked(*given, None, 4)[0][:, :7])


def test_two_pieces_equal_one_at_every_split():
    *given, state = tokens()
    want, last = by_hand(*given, state=state)
    q, k, v, g, beta = given
    for split in range(T + 1):
        first = (np.arange(T) < split)[:, None]
        head, between = chunked(q, k, v, g * first, beta * first, state, None, 4)
        tail, after = chunked(q, k, v, g * ~first, beta * ~first, between, None, 4)
        close((np.where(first[..., None], head, tail), after), (want, last))


def test_a_piece_and_then_single_tokens_equal_one_at_every_split():
    *given, state = tokens()
    want, last = by_hand(*given, state=state)
    q, k, v, g, beta = given
    for split in range(T + 1):
        first = (np.arange(T) < split)[:, None]
        _, after = chunked(q, k, v, g * first, beta * first, state, None, 4)
        for t in range(split, T):
            out, after = scan(*(x[:, t : t + 1] for x in given), after, None)
            close(out[:, 0], want[:, t])
        close(after, last)


@pytest.mark.parametrize("before", [0, 1, 3, 5, 8])
def test_padding_on_either_side_is_an_identity(before):
    *given, state = tokens(t=5)
    want = by_hand(*given, state=state)
    padded = list(tokens(1, t=13)[:5])  # q, k, v of padding may be anything
    padded[3], padded[4] = np.zeros_like(padded[3]), np.zeros_like(padded[4])
    for x, y in zip(padded, given, strict=True):
        x[:, before : before + 5] = y
    for run in (lambda *a: chunked(*a, 4), scan):
        out, last = run(*padded, state, None)
        close((out[:, before : before + 5], last), want)


def test_a_row_of_padding_leaves_its_state_bitwise():
    q, k, v, g, beta, state = tokens()
    for run in (lambda *a: chunked(*a, 4), scan):
        _, last = run(q, k, v, 0 * g, 0 * beta, state, None)
        equal(last, state)
        _, last = run(*(x[:, :1] for x in (q, k, v, 0 * g, 0 * beta)), state, None)
        equal(last, state)


@pytest.mark.parametrize("alike", [0.3, 0.9, 1.0])
def test_a_chunk_of_repeated_keys_stays_exact(alike):
    """A text that repeats itself: inverting by a power series is off by up to 1e17 here."""
    q, k, v, g, beta, state = tokens(t=64, rows=1)
    k = unit(alike * k[:, :1] + (1 - alike) * k)
    beta = np.full_like(beta, 0.99)
    close(chunked(q, k, v, g, beta, state, None, 64), by_hand(q, k, v, g, beta, state))


def test_slow_and_sudden_decay_in_one_chunk_stay_exact():
    """What fades slowly after a sudden loss is not rounded to the loss's large exponent."""
    q, k, v, g, beta, state = tokens(t=64, rows=1)
    rng = np.random.default_rng(1)
    g = np.where(rng.random(g.shape) < 0.2, -200 * rng.random(g.shape), g).astype(np.float32)
    close(chunked(q, k, v, g, beta, state, None, 64), by_hand(q, k, v, g, beta, state), atol=1e-6)


# ---------------------------------------------------------------------------- gradients


@functools.partial(jax.jit, static_argnums=2, compiler_options=QUICK)
def gradients(given, number, chunk):
    """Of a sum that weighs every output and state differently; chunk 0 is the scan."""

    def loss(*given):
        if chunk:
            out, state = delta.delta_chunked(*given, number=number, chunk=chunk)
        else:
            out, state = delta.delta_scan(*given, number=number)
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)) for x in (out, state))

    return jax.grad(loss, argnums=tuple(range(6)))(*given)


@pytest.mark.parametrize(
    "chunk, number", [(4, None), (5, NUMBERS), (64, NUMBERS)], ids=["4", "5 packed", "64 packed"]
)
def test_gradients_of_both_forms_agree(chunk, number):
    given = tokens()
    close(gradients(given, number, chunk), gradients(given, number, 0), atol=2e-5)


def test_gradients_are_finite_where_all_is_padding_and_where_all_is_forgotten():
    q, k, v, g, beta, state = tokens()
    for inputs in (
        (q, k, v, 0 * g, 0 * beta, state),
        (0 * q, 0 * k, 0 * v, 0 * g, 0 * beta, 0 * state),
        (q, k, v, 0 * g - 300, beta, state),  # e^300 overflows unless masked before exp
    ):
        for chunk in (0, 5):
            for x in gradients(inputs, NUMBERS, chunk):
                assert np.isfinite(x).all()


def test_gradients_do_not_cross_a_border():
    """A later segment's loss has no gradient, not even a small one, in an earlier segment."""
    *given, state = tokens()
    border = 6
    number = jnp.broadcast_to(jnp.arange(T) >= border, (B, T)).astype(jnp.int32)

    def loss(*given):
        return jnp.sum(delta.delta_chunked(*given, number=number, chunk=4)[0][:, border:] ** 2)

    program = jax.jit(jax.grad(loss, argnums=tuple(range(6))), compiler_options=QUICK)
    *by_token, by_state = program(*given, state)
    for x in by_token:
        assert not np.asarray(x[:, :border]).any()
    for x in by_token[:3]:
        assert np.asarray(x[:, border:]).any()
    assert not np.asarray(by_state).any()


def test_chunks_need_a_fraction_of_the_scan_s_memory_for_a_gradient():
    key, value, number = (1, 256, 2, 32), (1, 256, 4, 32), (1, 256, 4)
    shapes = key, key, value, number, number, (1, 4, 32, 32)
    sizes = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    temp = {}
    for chunk in (0, 16):
        memory: Any = gradients.lower(sizes, None, chunk).compile().memory_analysis()
        temp[chunk] = memory.temp_size_in_bytes
    assert temp[16] < temp[0] / 4


@pytest.mark.parametrize("c", [1, 2, 3, 5, 8, 17])
def test_inverse_and_its_gradient(c):
    rng = np.random.default_rng(0)
    lower = np.tril(rng.normal(size=(3, c, c)), -1).astype(np.float32) / 2
    want = np.linalg.inv(np.eye(c) + lower.astype(np.float64))
    direction = rng.normal(size=lower.shape)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def inverted(lower, direction):
        inverse, back = jax.vjp(unit_lower_inverse, lower)
        return inverse, back(direction)[0]

    inverse, got = inverted(lower, direction.astype(np.float32))
    np.testing.assert_allclose(inverse, want, atol=1e-4, rtol=1e-4)
    across = want.swapaxes(-1, -2)
    np.testing.assert_allclose(got, -across @ direction @ across, atol=1e-3, rtol=1e-3)


# ---------------------------------------------------------------------------- convolution


def conv_by_hand(x, weight, past, number=None):
    """silu of the sum over taps, a token at a time; a row's tokens are all real."""
    line = np.concatenate([np.moveaxis(past, -1, 1), x], axis=1)
    out = np.zeros_like(x)
    for b, t, j in np.ndindex(*x.shape[:2], W):
        source = t - (W - 1) + j
        there = 0 if number is None or source < 0 else number[b, source]
        if number is None or there == number[b, t]:
            out[b, t] += weight[..., j] * line[b, t + j]
    return out / (1 + np.exp(-out)), np.moveaxis(line[:, x.shape[1] :], 1, -1)


@pytest.fixture
def channels():
    """x, weight, past."""
    rng = np.random.default_rng(0)
    shapes = (B, T, HK, DK), (HK, DK, W), (B, HK, DK, W - 1)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def test_conv_is_a_sum_over_taps(channels):
    x, weight, past = channels
    close(conv(x, weight, past, None, None), conv_by_hand(x, weight, past))
    close(conv(x, weight, None, None, None), conv_by_hand(x, weight, 0 * past))


def test_conv_sees_its_own_segment_alone(channels):
    x, weight, past = channels
    out, after = conv(x, weight, past, NUMBERS, None)
    want, last = conv_by_hand(x, weight, past, NUMBERS)
    close((out, after), (want, last))  # both rows end in a segment of at least W - 1 tokens
    fresh, after = conv(x, weight, past, np.where(np.arange(T) < T - 1, NUMBERS, 9), None)
    close(fresh[:, -1], conv(x[:, -1:], weight, None, None, None)[0][:, 0])
    equal(after[..., -1], last[..., -1])
    assert not np.asarray(after[..., :-1]).any()


@pytest.mark.parametrize("count", range(6))
@pytest.mark.parametrize("before", [0, 1, 4, 8])
def test_conv_passes_padding_by(channels, before, count):
    """On either side, whatever it holds, and however few tokens are real."""
    x, weight, past = channels
    real = np.broadcast_to((np.arange(T) >= before) & (np.arange(T) < before + count), (B, T))
    out, after = conv(np.where(real[..., None, None], x, np.nan), weight, past, None, real)
    want, last = conv_by_hand(x[:, before : before + count], weight, past)
    close(out[:, before : before + count], want)
    equal(after, last)
    assert np.isfinite(out).all()


def test_conv_rows_are_padded_each_its_own_way(channels):
    x, weight, past = channels
    real = np.zeros((B, T), bool)
    real[0, 2:5], real[1, 11:] = True, True
    out, after = conv(x, weight, past, None, real)
    for b, at in ((0, slice(2, 5)), (1, slice(11, 13))):
        row = slice(b, b + 1)
        want, last = conv_by_hand(x[row, at], weight, past[row])
        close((out[row, at], after[row]), (want, last))


@pytest.mark.parametrize("real", [True, False])
def test_conv_of_one_token(channels, real):
    x, weight, past = channels
    out, after = conv(x[:, :1], weight, past, None, np.full((B, 1), real))
    want, last = conv_by_hand(x[:, :1], weight, past)
    equal(after, last if real else past)
    if real:
        close(out, want)


def test_conv_of_pieces_is_the_conv_of_the_whole(channels):
    x, weight, past = channels
    want, last = conv_by_hand(x, weight, past)
    for split in range(1, T):
        first, between = conv(x[:, :split], weight, past, None, None)
        second, after = conv(x[:, split:], weight, between, None, None)
        close((np.concatenate([first, second], axis=1), after), (want, last))


def test_padding_makes_no_border():
    ids = np.array([[0, 5, 5, 2, 0, 2, 7, 0], [0] * 8, [3] * 8, [0, 0, 0, 0, 0, 0, 0, 4]])
    want = [[0, 0, 0, 1, 1, 1, 2, 2], [0] * 8, [0] * 8, [0] * 8]
    np.testing.assert_array_equal(segment_numbers(jnp.asarray(ids)), want)
