"""Log-probabilities and entropies: aligned, exact, and without the large array."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings
from ibrl_jax.models.params import init_adapters, init_params
from ibrl_jax.models.presets import preset
from ibrl_jax.models.score import score
from tests.models.jaxprs import shapes_in

V, B, T = 61, 2, 11
MODEL = Decoder(preset("qwen3_micro", vocab_size=V, layers=1), None)
QUICK = {"xla_backend_optimization_level": 0}  # a test's program runs once or twice
POSITIONS = jnp.broadcast_to(jnp.arange(T), (B, T))


@pytest.fixture(scope="module")
def params(random_params):
    return random_params(MODEL.config)


@pytest.fixture(scope="module")
def ids():
    return np.random.default_rng(0).integers(0, V, (B, T)).astype(np.int32)


chunked = jax.jit(functools.partial(score, MODEL), static_argnames="chunk", compiler_options=QUICK)


def dense(params, ids, temperature):
    """The definition, with all logits at once."""
    hidden = MODEL.apply({"params": params}, ids, POSITIONS, None)
    logits = MODEL.apply({"params": params}, hidden, method=Decoder.logits) / temperature
    logp = jax.nn.log_softmax(logits)[:, :-1]
    picked = jnp.take_along_axis(logp, ids[:, 1:, None], 2)[..., 0]
    zero = jnp.zeros((B, 1))
    entropy = -jnp.sum(jnp.exp(logp) * logp, -1)
    return jnp.concatenate([zero, picked], 1), jnp.concatenate([zero, entropy], 1)


@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_score_equals_the_dense_form_for_every_chunk(params, ids, chunk):
    got = chunked(params, None, ids, POSITIONS, None, 0.6, chunk=chunk)
    want = jax.jit(dense, compiler_options=QUICK)(params, ids, 0.6)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_gradients_equal_those_of_the_dense_form(params, ids):
    weights = np.random.default_rng(1).normal(size=(2, B, T)).astype(np.float32)

    def loss(of, params):
        logp, entropy = of(params)
        return jnp.sum(weights[0] * logp + weights[1] * entropy)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def both(params):
        pieces = jax.grad(
            lambda p: loss(lambda p: score(MODEL, p, None, ids, POSITIONS, None, 0.7, 4), p)
        )
        whole = jax.grad(lambda p: loss(lambda p: dense(p, ids, 0.7), p))
        return pieces(params), whole(params)

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *both(params))


def test_a_score_depends_on_its_own_token_and_those_before(params, ids):
    base = np.asarray(chunked(params, None, ids, POSITIONS, None, 1.0, chunk=4))
    other = ids.copy()
    other[:, 5] = (other[:, 5] + 1) % V
    moved = np.abs(np.asarray(chunked(params, None, other, POSITIONS, None, 1.0, chunk=4)) - base)
    np.testing.assert_array_equal(moved[0].max(0) > 1e-6, np.arange(T) >= 5)
    np.testing.assert_array_equal(moved[1].max(0) > 1e-6, np.arange(T) >= 6)  # entropy


def test_first_tokens_and_padding_score_zero_and_packing_changes_nothing(params, ids):
    segments = np.array([[1] * 4 + [2] * 5 + [0] * 2] * B, np.int32)
    positions = np.array([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 0]] * B, np.int32)
    logp, entropy = chunked(params, None, ids, positions, segments, 1.0, chunk=4)
    zero = np.isin(np.arange(T), [0, 4, 9, 10])
    np.testing.assert_array_equal((logp == 0).all(0), zero)
    np.testing.assert_array_equal((entropy == 0).all(0), zero)
    alone, _ = chunked(params, None, ids[:, 4:9], POSITIONS[:, :5], None, 1.0, chunk=4)
    np.testing.assert_allclose(logp[:, 4:9], alone, atol=1e-5)


def test_a_single_token_scores_zero(params, ids):
    logp, entropy = chunked(params, None, ids[:, :1], POSITIONS[:, :1], None, 1.0, chunk=4)
    np.testing.assert_array_equal([logp, entropy], np.zeros((2, B, 1)))


def test_temperatures_share_a_program(params, ids):
    traces = []

    @functools.partial(jax.jit, compiler_options=QUICK)
    def counted(temperature):
        traces.append(1)
        return score(MODEL, params, None, ids, POSITIONS, None, temperature, 4)

    hot, cold = counted(2.0)[1], counted(0.5)[1]
    assert len(traces) == 1
    assert (np.asarray(hot)[:, 1:] > np.asarray(cold)[:, 1:]).all()


def test_no_array_of_all_logits_exists_forward_or_backward(params, ids):
    def largest(of):
        def loss(params):
            logp, entropy = of(params)
            return jnp.sum(logp + entropy)

        jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(params)
        return max(
            (np.prod(s) for s in shapes_in(jaxpr.jaxpr) if V in s and MODEL.config.hidden not in s),
            default=0,
        )

    chunk = 2
    assert largest(lambda p: dense(p, ids, 1.0)) >= B * (T - 1) * V  # the measure sees the array
    assert (
        largest(lambda p: score(MODEL, p, None, ids, POSITIONS, None, 1.0, chunk)) == B * chunk * V
    )


AT = np.array([[3, 4, 8, T, T], [1, 2, 6, 7, 10]])  # T: no token


@pytest.mark.parametrize(
    "changes",
    [
        dict(layers=3),
        dict(layers=2, unroll=1),
        dict(layers=2, remat=True, attention_block=4),
        dict(name="qwen3_5_micro"),
        dict(layers=2, lora=LoraSettings(rank=2, alpha=2.0, targets=("q", "down"))),
    ],
    ids=["unrolled", "scanned", "remat", "hybrid", "lora"],
)
def test_some_tokens_alone_have_the_scores_and_gradients_that_they_have_among_all(changes):
    rest = {k: v for k, v in changes.items() if k not in ("name", "lora")}
    lora = changes.get("lora")
    config = preset(changes.get("name", "qwen3_micro"), vocab_size=V, **rest)
    model = Decoder(config, lora)
    params, frozen = init_params(config, 0), None
    if lora is not None:
        params, frozen = init_adapters(config, lora, 1), params
        params = jax.tree.map(lambda x: x + 0.1, params)  # fresh ones change nothing
    rng = np.random.default_rng(2)
    ids = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
    segments = jnp.asarray([[1] * 6 + [2] * 4 + [0], [1] * T])
    wanted = np.zeros((B, T + 1))
    wanted[np.arange(B)[:, None], AT] = 1
    weights = rng.normal(size=(2, B, T)) * wanted[:, :T]

    @functools.partial(jax.jit, compiler_options=QUICK)
    def both(params):
        def loss(params, at):
            found = score(model, params, frozen, ids, POSITIONS, segments, 0.7, 4, at)
            return sum(jnp.sum(w * x) for w, x in zip(weights, found, strict=True)), found

        return [jax.grad(loss, has_aux=True)(params, at) for at in (None, jnp.asarray(AT))]

    (whole, scores), (some, picked) = both(params)
    for a, b in zip(picked, scores, strict=True):
        np.testing.assert_allclose(a, b * wanted[:, :T], atol=1e-5)
    assert np.abs(picked[0]).sum() > 1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 5e-5, 2e-5), some, whole)
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(whole)) > 0.1
