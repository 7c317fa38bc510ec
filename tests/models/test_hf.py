"""Parity with the reference implementation by golden files (make_golden.py); tensors' names."""

import functools

import jax
import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.hf import from_tensors, layout, to_tensors
from ibrl_jax.models.hf_config import network
from tests.models.hf_families import FAMILIES, HOW, golden, model


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_the_reference(family):
    about, tensors, ids, want = golden(family)
    config = network(about, **HOW)
    params, decoder = from_tensors(config, tensors), Decoder(config, None)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def logits(params):
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        x = decoder.apply({"params": params}, ids, positions, None)
        return decoder.apply({"params": params}, x, method=Decoder.logits)

    assert want.std() > 0.8
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(logits(params), want, atol=1e-4)


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
