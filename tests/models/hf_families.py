"""Small networks of every family as `config.json` says them, with their golden tensors."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.hf_config import network

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ("llama", "qwen25", "qwen3", "qwen35")
HOW: dict[str, Any] = dict(
    dtype="float32", remat=False, attention="xla", attention_block=4, unroll=1, chunk=4
)
_SIZES = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    hidden_act="silu",
)
_FLAGS = {
    "llama": dict(model_type="llama", head_dim=16, rms_norm_eps=1e-5, tie_word_embeddings=False),
    "qwen25": dict(model_type="qwen2", rms_norm_eps=1e-6, tie_word_embeddings=True),
    "qwen3": dict(model_type="qwen3", head_dim=16, rms_norm_eps=1e-6, tie_word_embeddings=True),
}


@functools.cache
def golden(family: str) -> tuple[dict[str, Any], dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """What config.json says, all tensors in float32, ids [3, T], logits [3, T, V]."""
    data = dict(np.load(GOLDEN / f"{family}.npz"))
    ids, logits = data.pop("ids"), data.pop("logits")
    del data["gradients"]
    if family == "qwen35":
        about, values = json.loads(str(data["config"])), data["values"] / np.float32(64)
        shapes = json.loads(str(data["shapes"]))
        ends = np.cumsum([np.prod(shape) for shape in shapes.values()])
        parts = zip(shapes.items(), np.split(values, ends[:-1]), strict=True)
        data = {name: flat.reshape(shape) for (name, shape), flat in parts}
    else:
        about = _SIZES | _FLAGS[family] | dict(rope_theta=float(data.pop("theta")))
    return about, {name: x.astype(np.float32) for name, x in data.items()}, ids, logits


def golden_gradients(family: str) -> dict[str, list[float]]:
    """By tensor: the norm of the loss's gradient and its product with cos(1), cos(2), ..."""
    return json.loads(str(np.load(GOLDEN / f"{family}.npz")["gradients"]))


def model(family: str) -> tuple[ModelConfig, dict[str, np.ndarray]]:
    """The network and its tensors."""
    about, tensors, _, _ = golden(family)
    return network(about, **HOW), tensors
