"""The Gated DeltaNet layer: its equations, its parameters and state; padding changes nothing."""

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from ibrl_jax.models.cache import DeltaState
from ibrl_jax.models.config import DeltaConfig
from ibrl_jax.models.delta import GatedDelta
from ibrl_jax.models.lora import LoraSettings
from ibrl_jax.models.presets import preset

SIZES = DeltaConfig(key_heads=2, value_heads=4, key_dim=5, value_dim=6, conv_kernel=4, chunk=4)
CONFIG = replace(preset("qwen3_5_micro", vocab_size=64), hidden=16, delta=SIZES)
B, T = 2, 10
SEGMENTS = np.array([[3] * 4 + [1] * 1 + [2] * 5, [0] * 1 + [5] * 6 + [0] * 1 + [4] * 2], np.int32)

QUICK: Any = {"xla_backend_optimization_level": 0}  # a test's program runs once or twice


def init(config=CONFIG, lora=None) -> Any:
    """Fresh variables, boxed with the names of their axes; a pure function."""
    layer = GatedDelta(config, lora, name="delta")
    return layer.init(jax.random.key(0), jnp.zeros((1, 1, config.hidden)), None, None, None)


def fresh(config=CONFIG, lora=None) -> Any:
    return nn.meta.unbox(jax.jit(lambda: init(config, lora), compiler_options=QUICK)())


@pytest.fixture(scope="module")
def params():
    """Away from fresh values, and forgetting slowly, so that a leak would show."""
    rng = np.random.default_rng(0)

    def leaf(path, x):
        noise = rng.normal(size=x.shape).astype(np.float32)
        match path[-1].key:
            case "scale":
                return 1 + 0.2 * noise
            case "A_log":
                return np.log(0.05) + 0.3 * noise
        return 0.4 * noise

    return jax.tree_util.tree_map_with_path(leaf, nn.meta.unbox(jax.eval_shape(init)["params"]))


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(1).normal(size=(B, T, CONFIG.hidden)).astype(np.float32)


@functools.partial(jax.jit, static_argnames="config", compiler_options=QUICK)
def run(params, x, segment_ids=None, real=None, state=None, config=CONFIG) -> Any:
    return GatedDelta(config, None).apply({"params": params}, x, segment_ids, real, state)


def nothing_read(rows=B):
    z = SIZES
    past = jnp.zeros((rows, z.key_heads, z.key_dim, z.conv_kernel - 1))
    v = jnp.zeros((rows, z.value_heads, z.value_dim, z.conv_kernel - 1))
    state = jnp.zeros((rows, z.value_heads, z.key_dim, z.value_dim))
    return DeltaState(q=past, k=past, v=v, state=state)


def close(got, want, atol=1e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), got, want)


def by_hand(p, x):
    """The layer's equations for one row [T, D], in float64, a token at a time; output and S."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), p)
    share = SIZES.value_heads // SIZES.key_heads

    def sigmoid(y):
        return 1 / (1 + np.exp(-y))

    def convolved(name):
        raw = np.einsum("td,dhn->thn", x, p[name])
        raw = np.concatenate([np.zeros((3, *raw.shape[1:])), raw])
        y = np.stack(
            [np.einsum("whn,hnw->hn", raw[t : t + 4], p[f"conv_{name}"]) for t in range(T)]
        )
        return y * sigmoid(y)

    q, k, v = convolved("q"), convolved("k"), convolved("v")
    q = q / np.sqrt((q**2).sum(-1, keepdims=True) + 1e-6) * SIZES.key_dim**-0.5
    k = k / np.sqrt((k**2).sum(-1, keepdims=True) + 1e-6)
    fade = np.exp(-np.exp(p["A_log"]) * np.log1p(np.exp(x @ p["a"] + p["dt_bias"])))
    beta = sigmoid(x @ p["b"])
    z = np.einsum("td,dhn->thn", x, p["z"])
    out = np.zeros_like(v)
    memory = np.zeros((SIZES.value_heads, SIZES.key_dim, SIZES.value_dim))
    for t, h in np.ndindex(*v.shape[:2]):
        faded = fade[t, h] * memory[h]
        d = beta[t, h] * (v[t, h] - faded.T @ k[t, h // share])
        memory[h] = faded + np.outer(k[t, h // share], d)
        out[t, h] = memory[h].T @ q[t, h // share]
    out = out / np.sqrt((out**2).mean(-1, keepdims=True) + CONFIG.norm_eps) * p["norm"]["scale"]
    return np.einsum("thn,hnd->td", out * z * sigmoid(z), p["o"]), memory


def test_layer_is_its_equations(params, x):
    y, after = run(params, x, state=nothing_read())
    for b in range(B):
        want, memory = by_hand(params, x[b])
        close((y[b], after.state[b]), (want, memory))


def test_without_a_state_it_starts_from_nothing_and_returns_none(params, x):
    y, after = run(params, x)
    assert after is None
    close(y, run(params, x, state=nothing_read())[0])


@pytest.mark.parametrize("chunk", [1, 3, 64])
def test_chunk_size_changes_nothing(params, x, chunk):
    config = replace(CONFIG, delta=replace(SIZES, chunk=chunk))
    close(run(params, x, config=config)[0], run(params, x)[0])


def test_prefill_and_decode_equal_one_pass_at_every_split(params, x):
    want, last = run(params, x, state=nothing_read())
    real = np.arange(T)
    for split in range(T + 1):
        first = np.broadcast_to(real < split, (B, T))
        y, state = run(params, x, real=first, state=nothing_read())
        close(y[:, :split], want[:, :split])
        for t in range(split, T):
            y, state = run(params, x[:, t : t + 1], real=np.ones((B, 1), bool), state=state)
            close(y[:, 0], want[:, t])
        close(state, last)


def test_a_turn_appended_with_padding_on_either_side_equals_one_pass(params, x):
    want, last = run(params, x, state=nothing_read())
    for split, before in ((1, 0), (4, 4), (4, 2), (8, 3), (9, 9)):
        n = T - split
        _, state = run(params, x, real=np.arange(T) < np.full((B, 1), split), state=nothing_read())
        padded = np.full((B, 2 * T, CONFIG.hidden), np.nan, np.float32)
        padded[:, before : before + n] = x[:, split:]
        at = np.arange(2 * T)
        real = np.broadcast_to((at >= before) & (at < before + n), (B, 2 * T))
        y, after = run(params, padded, real=real, state=state)
        close((y[:, before : before + n], after), (want[:, split:], last))


@pytest.mark.parametrize("t", [1, T])
def test_a_row_without_tokens_keeps_its_state_bitwise(params, x, t):
    """While the other row, beside it, reads on."""
    _, state = run(params, x, state=nothing_read())
    real = np.zeros((B, t), bool)
    real[1] = True
    _, after = run(params, -x[:, :t], real=real, state=state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(new[0], old[0])
        assert (np.asarray(new[1]) != old[1]).any()


def test_packed_segments_equal_the_segments_alone(params, x):
    y, _ = run(params, x, segment_ids=SEGMENTS)
    for b in range(B):
        for segment in set(SEGMENTS[b]) - {0}:
            at = np.flatnonzero(SEGMENTS[b] == segment)
            alone = np.zeros_like(x)
            alone[:, : len(at)] = x[b, at]
            z, _ = run(params, alone)
            close(y[b, at], z[0, : len(at)])


def test_nothing_of_padding_or_another_segment_reaches_a_token(params, x):
    """Bitwise, whatever stands there."""
    y, _ = run(params, x, segment_ids=SEGMENTS)
    own = SEGMENTS[:, -1:] == SEGMENTS
    other = np.where(own[..., None], x, 7 - 3 * x)
    other = np.where((SEGMENTS == 0)[..., None], np.nan, other)
    changed, _ = run(params, other, segment_ids=SEGMENTS)
    np.testing.assert_array_equal(changed[own], y[own])
    assert (
        np.asarray(changed)[~own & (SEGMENTS > 0)] != np.asarray(y)[~own & (SEGMENTS > 0)]
    ).any()


@pytest.mark.parametrize("segments", [SEGMENTS, 0 * SEGMENTS], ids=["packed", "all padding"])
def test_gradients_are_finite_and_padding_has_none(params, x, segments):
    @functools.partial(jax.jit, compiler_options=QUICK)
    def gradient(params, x):
        def loss(params, x):
            y: Any = GatedDelta(CONFIG, None).apply({"params": params}, x, segments, None, None)
            return jnp.sum(jnp.where((segments > 0)[..., None], y[0], 0.0) ** 2)

        return jax.grad(loss, argnums=(0, 1))(params, x)

    by_params, by_x = gradient(params, np.where((segments == 0)[..., None], np.nan, x))
    for leaf in jax.tree.leaves(by_params):
        assert np.isfinite(leaf).all()
        assert np.asarray(leaf).any() == segments.any()
    assert not np.asarray(by_x)[segments == 0].any()
    assert np.isfinite(by_x).all()


def test_parameters_their_shapes_and_axes():
    z, d = SIZES, CONFIG.hidden
    key, value = (z.key_heads, z.key_dim), (z.value_heads, z.value_dim)
    keys, values = ("key_heads", "head_dim"), ("value_heads", "head_dim")
    want = {
        "q": ((d, *key), ("embed", *keys)),
        "k": ((d, *key), ("embed", *keys)),
        "v": ((d, *value), ("embed", *values)),
        "z": ((d, *value), ("embed", *values)),
        "a": ((d, z.value_heads), ("embed", "value_heads")),
        "b": ((d, z.value_heads), ("embed", "value_heads")),
        "conv_q": ((*key, z.conv_kernel), (*keys, "conv")),
        "conv_k": ((*key, z.conv_kernel), (*keys, "conv")),
        "conv_v": ((*value, z.conv_kernel), (*values, "conv")),
        "A_log": ((z.value_heads,), ("value_heads",)),
        "dt_bias": ((z.value_heads,), ("value_heads",)),
        "norm/scale": ((z.value_dim,), ("head_dim",)),
        "o": ((*value, d), (*values, "embed")),
    }
    boxes = jax.tree_util.tree_leaves_with_path(
        jax.eval_shape(init)["params"], is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata)
    )
    got = {"/".join(k.key for k in path): (box.value.shape, box.names) for path, box in boxes}
    assert got == want


def test_fresh_rates_of_forgetting_are_within_0_and_16():
    many = replace(CONFIG, delta=replace(SIZES, value_heads=2000))
    params = fresh(many)["params"]
    rates = np.exp(params["A_log"])
    assert 0 < rates.min() < 0.5
    assert 15.5 < rates.max() <= 16
    assert abs(rates.mean() - 8) < 0.5
    np.testing.assert_array_equal(params["dt_bias"], 1)
    np.testing.assert_array_equal(params["norm"]["scale"], 1)


def test_adapters_sit_on_the_projections_that_are_named(x):
    lora = LoraSettings(rank=2, alpha=4.0, targets=("q", "delta/o"))
    both = fresh(lora=lora)
    assert jax.tree.map(jnp.shape, both["lora"]) == {
        "q_a": (16, 2),
        "q_b": (2, 2, 5),
        "o_a": (4, 6, 2),
        "o_b": (2, 16),
    }
    program = jax.jit(GatedDelta(CONFIG, lora, name="delta").apply, compiler_options=QUICK)
    for up, same in (("q_b", False), ("o_b", False), (None, True)):
        adapters = {k: v + 1 if k == up else v for k, v in both["lora"].items()}
        variables = {"params": both["params"], "lora": adapters}
        y: Any = program(variables, x, None, None, None)
        assert (np.asarray(y[0]) == run(both["params"], x)[0]).all() == same


def test_bfloat16_keeps_the_memory_in_float32(params, x):
    config = replace(CONFIG, dtype="bfloat16")
    state = jax.tree.map(lambda s: s.astype(jnp.bfloat16), nothing_read())
    state = state.replace(state=state.state.astype(jnp.float32))
    y, after = run(params, x.astype(jnp.bfloat16), state=state, config=config)
    assert (y.dtype, after.q.dtype, after.v.dtype) == (jnp.bfloat16,) * 3
    assert after.state.dtype == jnp.float32
    want, _ = run(params, x)
    assert np.abs(np.asarray(y, np.float32) - want).mean() < 0.05 * np.std(want)
