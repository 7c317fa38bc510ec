"""Parity with the reference implementation by golden files (make_golden.py); tensors' names."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.dense import Decoder
from ibrl_jax.models.hf import from_hf_tensors, to_hf_tensors

GOLDEN = Path(__file__).parent / "golden"
SIZES: dict[str, Any] = dict(
    vocab_size=64,
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    mlp=48,
    remat=False,
    unroll=1,
    attention_block=4,
)
FLAGS: dict[str, dict[str, Any]] = {
    "llama": dict(head_dim=16, norm_eps=1e-5, tied=False, qkv_bias=False, qk_norm=False),
    "qwen25": dict(head_dim=8, norm_eps=1e-6, tied=True, qkv_bias=True, qk_norm=False),
    "qwen3": dict(head_dim=16, norm_eps=1e-6, tied=True, qkv_bias=False, qk_norm=True),
}


def golden(family):
    data = dict(np.load(GOLDEN / f"{family}.npz"))
    ids, logits, theta = (data.pop(name) for name in ("ids", "logits", "theta"))
    config = ModelConfig(**SIZES, **FLAGS[family], rope_theta=float(theta), dtype="float32")
    return config, data, ids, logits


@pytest.mark.parametrize("family", FLAGS)
def test_logits_equal_the_reference(family):
    config, tensors, ids, want = golden(family)
    params, model = from_hf_tensors(config, tensors), Decoder(config)

    @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def logits(params):
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
        x = model.apply({"params": params}, ids, positions, None)
        return model.apply({"params": params}, x, method=Decoder.logits)

    assert want.std() > 1
    with jax.default_matmul_precision("highest"):
        np.testing.assert_allclose(logits(params), want, atol=1e-4)


@pytest.mark.parametrize("family", FLAGS)
def test_tensors_survive_the_way_there_and_back(family):
    config, tensors, _, _ = golden(family)
    back = to_hf_tensors(config, from_hf_tensors(config, tensors))
    assert back.keys() == tensors.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(back[name], tensor)


def test_missing_unknown_and_misshapen_tensors_are_named():
    config, tensors, _, _ = golden("qwen3")
    name = "model.layers.1.self_attn.q_norm.weight"
    with pytest.raises(UserError, match=f"lacks the tensor '{name}'"):
        from_hf_tensors(config, {k: v for k, v in tensors.items() if k != name})
    with pytest.raises(UserError, match=f"'{name}' has shape"):
        from_hf_tensors(config, tensors | {name: np.zeros(3)})
    with pytest.raises(UserError, match="'visual.weight', which the model has not"):
        from_hf_tensors(config, tensors | {"visual.weight": np.zeros(3)})
