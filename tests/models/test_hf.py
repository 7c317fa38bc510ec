"""Parity with the reference implementation by golden files (make_golden.py); tensors' names."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.models.cache import empty_cache
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.hf import from_tensors, layout, to_tensors
from ibrl_jax.models.hf_config import network
from ibrl_jax.models.serving import next_logits, read, serving_params
from tests.models.hf_families import FAMILIES, HOW, golden, golden_gradients, model

QUICK = {"xla_backend_optimization_level": 0}


def forward(config, params, ids, positions, segments):
    model = Decoder(config, None)
    x = model.apply({"params": params}, ids, positions, segments)
    return model.apply({"params": params}, x, method=Decoder.logits)


logits_of = jax.jit(forward, static_argnums=0, compiler_options=QUICK)


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def read_on(config, params, cache, ids, start, count):
    """Logits of the first `count` of tokens [B, T] that follow `start` ones, and the cache."""
    model, params = Decoder(config, None), serving_params(config, params)
    offsets = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    x, cache = read(model, params, ids, start + offsets, offsets < count, cache)
    return next_logits(model, params, x), cache


@pytest.fixture(autouse=True)
def exact_products():
    with jax.default_matmul_precision("highest"):
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_reference(family):
    """In unpadded rows, in rows padded on either side, and in one packed row."""
    about, tensors, ids, want = golden(family)
    config = network(about, **HOW)
    params = from_tensors(config, tensors)
    assert want.std() > 0.8
    rows, t = ids.shape
    at = np.broadcast_to(np.arange(t), ids.shape)
    np.testing.assert_allclose(logits_of(config, params, ids, at, None), want, atol=1e-4)

    around = [(0, 0), (3, 4)]
    padded, segments = np.pad(ids, around, constant_values=5), np.pad(ids * 0 + 1, around)
    got = logits_of(config, params, padded, np.pad(at, around, mode="edge"), segments)
    np.testing.assert_allclose(got[:, 3:-4], want, atol=1e-4)

    packed = [x.reshape(1, rows * t) for x in (ids, at, np.arange(1, rows + 1)[:, None] + 0 * ids)]
    got = logits_of(config, params, *packed)
    np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_in_two_pieces_equals_the_reference_at_every_split(family):
    about, tensors, ids, want = golden(family)
    config = network(about, **HOW)
    params = from_tensors(config, tensors)
    rows, t = ids.shape
    for split in range(1, t):
        cache = empty_cache(config, rows, t)
        first, cache = read_on(config, params, cache, ids, 0, split)
        rest = np.pad(ids[:, split:], [(0, 0), (0, split)])
        second, _ = read_on(config, params, cache, rest, split, t - split)
        got = np.concatenate([first[:, :split], second[:, : t - split]], axis=1)
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_equal_the_reference(family):
    """Of every tensor: its norm, and its product with a fixed direction."""
    about, tensors, ids, _ = golden(family)
    config = network(about, **HOW)
    at = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)

    def loss(params):
        logits: Any = forward(config, params, ids, at, None)
        logp = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.take_along_axis(logp, ids[:, 1:, None], axis=-1).mean()

    gradient = jax.jit(jax.grad(loss), compiler_options=QUICK)
    grads = to_tensors(config, gradient(from_tensors(config, tensors)))
    wanted = golden_gradients(family)
    assert grads.keys() == wanted.keys()
    for name, (norm, along) in wanted.items():
        flat = grads[name].astype(np.float64).ravel()
        within = 1e-4 * max(1.0, norm)
        assert norm > 1e-3, "a tensor without a gradient shows nothing"
        assert np.linalg.norm(flat) == pytest.approx(norm, rel=0, abs=within), name
        direction = np.cos(np.arange(1, flat.size + 1))
        assert flat @ direction == pytest.approx(along, rel=0, abs=within), name


@pytest.mark.parametrize("family", FAMILIES)
def test_tensors_survive_the_way_there_and_back(family):
    config, tensors = model(family)
    back = to_tensors(config, from_tensors(config, tensors))
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(back[name], tensor)


def test_a_box_of_a_piece_is_that_box_of_the_whole_piece():
    config, tensors = model("qwen35")
    rng = np.random.default_rng(0)
    for pieces in layout(config).leaves.values():
        for piece in pieces[:1]:
            source = tensors[piece.tensor]
            whole = piece.read(source, tuple((0, size) for size in piece.shape), np.float32)
            cuts = [sorted(rng.choice(size + 1, 2, replace=False)) for size in piece.shape]
            box = tuple((int(a), int(b)) for a, b in cuts)
            want = whole[tuple(slice(a, b) for a, b in box)]
            np.testing.assert_array_equal(piece.read(source, box, np.float32), want)


def test_blocks_of_any_size_read_the_same(monkeypatch):
    config, tensors = model("qwen35")
    want = from_tensors(config, tensors)
    monkeypatch.setattr("ibrl_jax.models.hf._BLOCK", 3000)
    jax.tree.map(np.testing.assert_array_equal, from_tensors(config, tensors), want)


def test_a_model_that_sees_images_gives_its_text_model():
    config, tensors = model("qwen35")
    inside = {n.replace("model.", "model.language_model.", 1): x for n, x in tensors.items()}
    others = {
        "model.visual.blocks.0.attn.qkv.weight": np.zeros((2, 2)),
        "mtp.layers.0.input_layernorm.weight": np.zeros(2),
        "lm_head.weight": np.zeros(2),  # the embedding once more
    }
    params = from_tensors(config, inside | others)
    jax.tree.map(np.testing.assert_array_equal, params, from_tensors(config, tensors))
    with pytest.raises(UserError, match="has both 'model.language_model.norm.weight' and 'model.n"):
        from_tensors(config, inside | {"model.norm.weight": tensors["model.norm.weight"]})
    with pytest.raises(UserError, match="lacks the tensor 'model.language_model.norm.weight'"):
        from_tensors(config, {n: x for n, x in inside.items() if "model.norm" not in n})


def test_missing_unknown_and_misshapen_tensors_are_named():
    config, tensors = model("qwen3")
    name = "model.layers.1.self_attn.q_norm.weight"
    with pytest.raises(UserError, match=f"lacks the tensor '{name}'"):
        from_tensors(config, {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(UserError, match=f"'{name}' has shape"):
        from_tensors(config, tensors | {name: np.zeros(3)})
    with pytest.raises(UserError, match="'visual.weight', which the model has not"):
        from_tensors(config, tensors | {"visual.weight": np.zeros(3)})
    config, tensors = model("llama")
    with pytest.raises(UserError, match="lacks the tensor 'lm_head.weight'"):
        from_tensors(config, {k: v for k, v in tensors.items() if k != "lm_head.weight"})
