"""Parameters from and to the names and layouts of Hugging Face checkpoints (Llama, Qwen2, Qwen3).

Their kernels are [out, in] with heads flattened; ours are [in, ..., out] with heads apart and
layers stacked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ibrl_jax.errors import UserError
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.params import Params, abstract_params

_LAYER = {
    "attention_norm/scale": "input_layernorm.weight",
    "attention/q": "self_attn.q_proj.weight",
    "attention/k": "self_attn.k_proj.weight",
    "attention/v": "self_attn.v_proj.weight",
    "attention/o": "self_attn.o_proj.weight",
    "attention/q_bias": "self_attn.q_proj.bias",
    "attention/k_bias": "self_attn.k_proj.bias",
    "attention/v_bias": "self_attn.v_proj.bias",
    "attention/q_norm/scale": "self_attn.q_norm.weight",
    "attention/k_norm/scale": "self_attn.k_norm.weight",
    "mlp_norm/scale": "post_attention_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
}
_REST = {
    "embed": "model.embed_tokens.weight",
    "norm/scale": "model.norm.weight",
    "head": "lm_head.weight",
}


@dataclass(frozen=True)
class _Leaf:
    """One of our leaves, the tensors that it is made of, and the way from one to the other."""

    names: list[str]
    shape: tuple[int, ...]  # ours, of one layer
    theirs: tuple[int, ...]
    stacked: bool
    transposed: bool

    def ours(self, tensor: np.ndarray) -> np.ndarray:
        tensor = np.asarray(tensor, np.float32)
        return np.ascontiguousarray((tensor.T if self.transposed else tensor).reshape(self.shape))

    def back(self, leaf: np.ndarray) -> np.ndarray:
        if not self.transposed:
            return np.ascontiguousarray(leaf.reshape(self.theirs))
        return np.ascontiguousarray(leaf.reshape(self.theirs[::-1]).T)


def from_hf_tensors(config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> Params:
    """Our parameters (numpy, float32) from a checkpoint's tensors by name.

    Raises:
        UserError: naming the first tensor that is missing, of a wrong shape, or unknown.
    """
    tree, leaves, used = _leaves(config)
    out = []
    for leaf in leaves:
        for name in leaf.names:
            if name not in tensors:
                raise UserError(f"The checkpoint lacks the tensor '{name}', which the model needs.")
            if tensors[name].shape != leaf.theirs:
                raise UserError(
                    f"The checkpoint's tensor '{name}' has shape {tensors[name].shape}; "
                    f"the model needs {leaf.theirs}."
                )
        pieces = [leaf.ours(tensors[name]) for name in leaf.names]
        out.append(np.stack(pieces) if leaf.stacked else pieces[0])
    for name in tensors:
        if name not in used:
            raise UserError(f"The checkpoint has the tensor '{name}', which the model has not.")
    return jax.tree.unflatten(tree, out)


def to_hf_tensors(config: ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """The inverse of `from_hf_tensors`."""
    _, leaves, _ = _leaves(config)
    out = {}
    for leaf, value in zip(leaves, jax.tree.leaves(params), strict=True):
        pieces = np.asarray(value) if leaf.stacked else np.asarray(value)[None]
        out |= {n: leaf.back(piece) for n, piece in zip(leaf.names, pieces, strict=True)}
    return out


def _leaves(config: ModelConfig) -> tuple[Any, list[_Leaf], set[str]]:
    abstract = abstract_params(config)
    tree = jax.tree.structure(abstract)
    leaves = list(_describe(config, abstract))
    return tree, leaves, {name for leaf in leaves for name in leaf.names}


def _describe(config: ModelConfig, abstract: Params) -> Iterator[_Leaf]:
    """Our leaves in tree order, with what they are called there."""
    for path, x in jax.tree_util.tree_leaves_with_path(abstract):
        ours = "/".join(key.key for key in path)
        stacked = ours.startswith("layers/")
        if stacked:
            ours = ours.removeprefix("layers/")
            names = [f"model.layers.{i}.{_LAYER[ours]}" for i in range(config.layers)]
            shape = x.shape[1:]
        else:
            names, shape = [_REST[ours]], x.shape
        last = ours.rsplit("/", 1)[-1]
        transposed = last in ("q", "k", "v", "o", "gate", "up", "down", "head")
        if not transposed:
            theirs = shape if ours == "embed" else (int(np.prod(shape)),)
        elif last == "o":  # [H, N, D] contracts its first two axes
            theirs = (shape[2], shape[0] * shape[1])
        else:
            theirs = (int(np.prod(shape[1:])), shape[0])
        yield _Leaf(names, shape, theirs, stacked, transposed)
