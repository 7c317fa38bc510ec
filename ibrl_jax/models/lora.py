"""Low-rank adapters: what they sit on, and how they become part of the weights.

    y = x W + (x a) b alpha / rank        a starts random, b at zero: fresh adapters change nothing

A policy's values are two trees: `trained`, which its optimiser moves, and `frozen`, which nobody
moves. Without adapters `trained` is the whole network and `frozen` is None; with them `trained` is
the adapters and `frozen` the base, one tree that all policies share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from flax import traverse_util

from ibrl_jax.errors import UserError

Params = Any

KERNELS = {
    "attention": {"q": 1, "k": 1, "v": 1, "o": 2},
    "delta": {"q": 1, "k": 1, "v": 1, "z": 1, "a": 1, "b": 1, "o": 2},
    "mlp": {"gate": 1, "up": 1, "down": 1},
}
"""Kernels that can carry an adapter, with the number of their axes that are contracted."""

_FULL_PRECISION = ("scale", "A_log", "dt_bias")
"""Leaves that are float32 whatever the compute type: norms and decays work in it."""


@dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """Adapters of `rank` (at least 1) on the kernels that `targets` name, times `alpha` / `rank`.

    A target is a kernel's name (`q`, in every kind of layer) or a path's end (`attention/q`).
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"lora.rank is {self.rank}; an adapter's rank is at least 1.")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def on(self, module: str, kernel: str) -> bool:
        """Whether the kernel of a module carries an adapter."""
        return kernel in self.targets or f"{module}/{kernel}" in self.targets


def check_targets(lora: LoraSettings, period: tuple[str, ...]) -> None:
    """Raises UserError naming the first target that no kernel of the network answers to."""
    modules = {"attention" if kind == "full" else "delta" for kind in period} | {"mlp"}
    known = [f"{module}/{kernel}" for module in sorted(modules) for kernel in KERNELS[module]]
    if not lora.targets:
        raise UserError(
            f"config.lora.targets is empty; name some of {', '.join(known)}, or set rank 0"
        )
    for target in lora.targets:
        if not any(name == target or name.endswith(f"/{target}") for name in known):
            raise UserError(
                f"config.lora.targets names {target!r}, which matches nothing in this network; "
                f"it has {', '.join(known)}"
            )


def variables(trained: Params, frozen: Params | None) -> dict[str, Params]:
    """The collections that the network is applied to."""
    return {"params": trained} if frozen is None else {"params": frozen, "lora": trained}


def held_type(leaf: str, dtype: str) -> Any:
    """The type that a leaf of this name has where nobody trains it: float32 or the compute type."""
    return jnp.dtype("float32" if leaf in _FULL_PRECISION else dtype)


def merge(lora: LoraSettings, base: Params, adapters: Params) -> Params:
    """The parameters, float32, of the network without adapters that computes the same."""
    flat = traverse_util.flatten_dict(base)
    low: Any = traverse_util.flatten_dict(adapters)
    merged = {}
    for path, kernel in flat.items():
        kernel = jnp.asarray(kernel, jnp.float32)
        down = low.get((*path[:-1], f"{path[-1]}_a"))
        if down is not None:
            up = low[(*path[:-1], f"{path[-1]}_b")]
            stack, rank = down.shape[0], down.shape[-1]
            flat_a = jnp.asarray(down, jnp.float32).reshape(stack, -1, rank)
            flat_b = jnp.asarray(up, jnp.float32).reshape(stack, rank, -1)
            product = jnp.einsum("lir,lro->lio", flat_a, flat_b, precision="highest")
            kernel = kernel + lora.scale * product.reshape(kernel.shape)
        merged[path] = kernel
    return traverse_util.unflatten_dict(merged)


def fan_in(shape: tuple[int, ...], inputs: int) -> float:
    """Standard deviation 1 / sqrt(fan-in) of a kernel whose first `inputs` axes are contracted."""
    return math.prod(shape[:inputs]) ** -0.5
