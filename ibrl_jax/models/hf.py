"""Parameters from and to the names and layouts of Hugging Face checkpoints.

Families: Llama, Qwen2, Qwen3 and Qwen3.5 (its text model). Their kernels are [out, in] with heads
flattened, one tensor a layer; ours are [in..., out...] with heads apart, and layers stacked. A
leaf of ours is thus made of pieces, one a layer, and a piece is some rows of a tensor:

    attention/q [D, H, N]   <- q_proj [H N, D]             all rows
    attention/o [H, N, D]   <- o_proj [D, H N]             all rows
    delta/k     [D, Hk, dk] <- in_proj_qkv [.., D]         the rows after those of q
    delta/conv_k [Hk, dk, W] <- conv1d [.., 1, W]          likewise

A tensor is named as in a text model, `model.layers.0...`; `model.language_model.layers.0...` is
the same one inside a model that sees images too.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ibrl_jax.errors import UserError
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.params import Params, abstract_params

_LAYER = {
    "mixer_norm/scale": "input_layernorm.weight",
    "mlp_norm/scale": "post_attention_layernorm.weight",
    "mlp/gate": "mlp.gate_proj.weight",
    "mlp/up": "mlp.up_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
    "attention/q": "self_attn.q_proj.weight",
    "attention/k": "self_attn.k_proj.weight",
    "attention/v": "self_attn.v_proj.weight",
    "attention/o": "self_attn.o_proj.weight",
    "attention/q_bias": "self_attn.q_proj.bias",
    "attention/k_bias": "self_attn.k_proj.bias",
    "attention/v_bias": "self_attn.v_proj.bias",
    "attention/q_norm/scale": "self_attn.q_norm.weight",
    "attention/k_norm/scale": "self_attn.k_norm.weight",
    "delta/q": "linear_attn.in_proj_qkv.weight",
    "delta/k": "linear_attn.in_proj_qkv.weight",
    "delta/v": "linear_attn.in_proj_qkv.weight",
    "delta/z": "linear_attn.in_proj_z.weight",
    "delta/a": "linear_attn.in_proj_a.weight",
    "delta/b": "linear_attn.in_proj_b.weight",
    "delta/conv_q": "linear_attn.conv1d.weight",
    "delta/conv_k": "linear_attn.conv1d.weight",
    "delta/conv_v": "linear_attn.conv1d.weight",
    "delta/A_log": "linear_attn.A_log",
    "delta/dt_bias": "linear_attn.dt_bias",
    "delta/norm/scale": "linear_attn.norm.weight",
    "delta/o": "linear_attn.out_proj.weight",
}
_REST = {
    "embed": "model.embed_tokens.weight",
    "norm/scale": "model.norm.weight",
    "head": "lm_head.weight",
}
_TEXT, _NESTED = "model.", "model.language_model."
_SKIPPED = ("model.visual.", "mtp.")
"""What sees images, and what guesses several tokens ahead."""

_BLOCK = 1 << 22
"""Bytes of a tensor read at once, on their way into a leaf."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What one tensor gives to one layer of one of our leaves."""

    path: str
    """The leaf's, `layers/block0/attention/q`."""
    layer: int | None
    """Index in the leaf's stack; None: the leaf is not stacked."""
    shape: tuple[int, ...]
    """Ours, of one layer."""
    tensor: str
    row: int
    """The first of the tensor's rows that are meant."""
    axes: tuple[tuple[int, ...], ...]
    """Our axes that each of the tensor's axes unfolds to; none: it has size 1."""

    @property
    def theirs(self) -> tuple[int, ...]:
        """Shape of the rows that are meant."""
        return tuple(math.prod(self.shape[a] for a in group) for group in self.axes)

    def back(self, ours: np.ndarray) -> np.ndarray:
        """The tensor's rows, of our layer."""
        return ours.transpose(self._order).reshape(self.theirs)

    def read(self, source: Any, bounds: tuple[tuple[int, int], ...], dtype: Any) -> np.ndarray:
        """A box of our layer, of a tensor that is read in blocks: little is held besides.

        Args:
            source: the tensor; anything that a tuple of slices makes an array of.
            bounds: first and last + 1 along each of our axes.
            dtype: of the result.
        """
        out = np.empty([stop - start for start, stop in bounds], dtype)
        view = out.transpose(self._order)  # theirs, unfolded
        lead, *inner = self.axes[0]
        start, stop = bounds[lead]
        width = math.prod(self.shape[a] for a in inner) * math.prod(self.theirs[1:])
        step = max(1, _BLOCK // (4 * width))
        for first in range(start, stop, step):
            last = min(first + step, stop)
            box = list(bounds)
            box[lead] = (first, last)
            view[first - start : last - start] = self._unfold(source, box)
        return out

    @property
    def _order(self) -> tuple[int, ...]:
        return sum(self.axes, ())

    def _unfold(self, source: Any, box: list[tuple[int, int]]) -> np.ndarray:
        """The box in the tensor's order, its axes unfolded to ours."""
        taken, unfolded, kept = [], [], []
        for group in self.axes:
            if not group:
                taken.append(slice(0, 1))
                continue
            # Of an axis that unfolds to several, the outermost is cut in the reading: it is the
            # only one that shardings cut.
            lead, *inner = group
            start, stop = box[lead]
            width = math.prod(self.shape[a] for a in inner)
            taken.append(slice(start * width, stop * width))
            unfolded += [stop - start, *(self.shape[a] for a in inner)]
            kept += [slice(None), *(slice(*box[a]) for a in inner)]
        rows = taken[0]
        taken[0] = slice(self.row + rows.start, self.row + rows.stop)
        return source[tuple(taken)].reshape(unfolded)[tuple(kept)]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All pieces of a network."""

    leaves: dict[str, list[Piece]]
    """By path, in the order of the tree; a piece a layer."""
    tensors: dict[str, list[Piece]]
    """By tensor, in the order of layers; a tensor's rows from the first to the last."""
    tree: Any
    """The structure of the parameters."""

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The whole tensor's."""
        pieces = self.tensors[tensor]
        return (sum(piece.theirs[0] for piece in pieces), *pieces[0].theirs[1:])


@functools.lru_cache(maxsize=8)
def layout(config: ModelConfig) -> Layout:
    """How the network's leaves are made of tensors; to be read, not changed."""
    abstract = abstract_params(config)
    leaves = {}
    tensors: dict[str, list[Piece]] = defaultdict(list)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(abstract):
        path = "/".join(key.key for key in keys)
        leaves[path] = _pieces(config, path, leaf.shape)
        for piece in leaves[path]:
            tensors[piece.tensor].append(piece)
    order = sorted(tensors, key=_reading_order)
    return Layout(
        leaves=leaves,
        tensors={name: sorted(tensors[name], key=lambda piece: piece.row) for name in order},
        tree=jax.tree.structure(abstract),
    )


def find(
    layout: Layout, shapes: Mapping[str, tuple[int, ...]], *, tied: bool, where: str
) -> dict[str, str]:
    """What each tensor of the layout is called in a checkpoint, which has all of them and no more.

    Args:
        shapes: of the checkpoint's tensors.
        tied: the network has no output projection of its own; a checkpoint's is passed over.
        where: the checkpoint, as a sentence's subject.

    Raises:
        UserError: naming the first tensor that is missing, of a wrong shape, or unknown.
    """
    nested = any(name.startswith(_NESTED) for name in shapes)
    skipped = (*_SKIPPED, "lm_head.weight") if tied else _SKIPPED
    known = {}
    for name in sorted(shapes):
        if name.startswith(skipped):
            continue
        ours = _TEXT + name.removeprefix(_NESTED) if name.startswith(_NESTED) else name
        if ours not in layout.tensors:
            raise UserError(f"{where} has the tensor '{name}', which the model has not.")
        if ours in known:
            raise UserError(f"{where} has both '{known[ours]}' and '{name}', which are one tensor.")
        known[ours] = name
    for ours in layout.tensors:
        if ours not in known:
            theirs = ours.replace(_TEXT, _NESTED, 1) if nested else ours
            raise UserError(f"{where} lacks the tensor '{theirs}', which the model needs.")
        shape = tuple(shapes[known[ours]])
        if shape != layout.shape(ours):
            raise UserError(
                f"{where}'s tensor '{known[ours]}' has shape {shape}; "
                f"the model needs {layout.shape(ours)}."
            )
    return known


def from_tensors(config: ModelConfig, tensors: Mapping[str, np.ndarray]) -> Params:
    """Our parameters (numpy, float32) from a checkpoint's tensors by name.

    Raises:
        UserError: naming the first tensor that is missing, of a wrong shape, or unknown.
    """
    plan = layout(config)
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    names = find(plan, shapes, tied=config.tied, where="The checkpoint")

    def layer(piece: Piece) -> np.ndarray:
        whole = tuple((0, size) for size in piece.shape)
        return piece.read(tensors[names[piece.tensor]], whole, np.float32)

    leaves = []
    for pieces in plan.leaves.values():
        layers = [layer(piece) for piece in pieces]
        leaves.append(layers[0] if pieces[0].layer is None else np.stack(layers))
    return jax.tree.unflatten(plan.tree, leaves)


def to_tensors(config: ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """The inverse of `from_tensors`, under the names of a text model."""
    plan = layout(config)
    leaves = dict(zip(plan.leaves, map(np.asarray, jax.tree.leaves(params)), strict=True))

    def rows(piece: Piece) -> np.ndarray:
        leaf = leaves[piece.path]
        return piece.back(leaf if piece.layer is None else leaf[piece.layer])

    return {n: np.concatenate([rows(p) for p in pieces]) for n, pieces in plan.tensors.items()}


def _pieces(config: ModelConfig, path: str, shape: tuple[int, ...]) -> list[Piece]:
    """The pieces of one leaf, first layer first."""
    if not path.startswith("layers/block"):
        axes = _axes(path, len(shape))
        name = _REST[path]
        return [Piece(path=path, layer=None, shape=shape, tensor=name, row=0, axes=axes)]
    block, inside = path.removeprefix("layers/block").split("/", 1)
    count, *rest = shape
    return [
        Piece(
            path=path,
            layer=index,
            shape=tuple(rest),
            tensor=f"model.layers.{index * len(config.period) + int(block)}.{_LAYER[inside]}",
            row=_row(config, inside),
            axes=_axes(inside, len(rest)),
        )
        for index in range(count)
    ]


def _row(config: ModelConfig, inside: str) -> int:
    """Where a leaf's rows begin: a tensor of a delta layer holds q, k, v one after the other."""
    if config.delta is None or inside not in ("delta/k", "delta/v", "delta/conv_k", "delta/conv_v"):
        return 0
    keys = config.delta.key_heads * config.delta.key_dim
    return keys if inside.endswith("k") else 2 * keys


def _axes(inside: str, rank: int) -> tuple[tuple[int, ...], ...]:
    """Which of a leaf's axes each axis of its tensor unfolds to."""
    last = inside.rsplit("/", 1)[-1]
    if last in ("embed", "scale", "A_log", "dt_bias"):
        return tuple((a,) for a in range(rank))
    if last.endswith("_bias"):
        return ((0, 1),)
    if last.startswith("conv_"):
        return ((0, 1), (), (2,))
    if last == "o":  # contracts its first two axes
        return ((2,), (0, 1))
    return (tuple(range(1, rank)), (0,))


def _reading_order(name: str) -> tuple[int, str]:
    """Embedding, layers by number, the rest."""
    if name.startswith("model.layers."):
        return int(name.split(".")[2]), name
    return (-1 if name == _REST["embed"] else 1 << 30), name
