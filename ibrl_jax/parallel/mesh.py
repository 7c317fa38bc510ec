"""The grid of devices: axes (data, fsdp, tensor), the part of it that is here, and its division.

    data     copies of the parameters; rows of a batch are spread over them
    fsdp     parameters and optimiser state are cut over it, and rows of a batch too
    tensor   heads, inner widths and vocabulary are cut over it

The axes are `Auto` ones: the compiler completes the shardings that `rules` begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ibrl_jax.errors import UserError

AXES = ("data", "fsdp", "tensor")

Device = Any
"""One of `jax.devices()`."""


@dataclass(frozen=True, kw_only=True)
class MeshSettings:
    """Devices along each axis; -1 for one of them: as many as the other two leave."""

    data: int
    fsdp: int
    tensor: int

    def __post_init__(self) -> None:
        for axis, size in zip(AXES, self.sizes, strict=True):
            if size < 1 and size != -1:
                raise UserError(
                    f"mesh.{axis} is {size}; it must be at least 1, or -1 for what the others "
                    "leave."
                )
        if self.sizes.count(-1) > 1:
            raise UserError(
                f"mesh is {_times(self.sizes)} (data, fsdp, tensor); -1 may stand for one of them "
                "alone."
            )

    @property
    def sizes(self) -> tuple[int, int, int]:
        """In the order of `AXES`."""
        return self.data, self.fsdp, self.tensor


def build_mesh(settings: MeshSettings, devices: Sequence[Device]) -> Mesh:
    """The mesh over all of `devices`; `tensor` runs fastest, and a process's devices stay together.

    Raises:
        UserError: the sizes do not multiply to the number of devices.
    """
    sizes, count = list(settings.sizes), len(devices)
    if -1 in sizes:
        taken = -math.prod(sizes)
        if not count or count % taken:
            raise UserError(
                f"mesh is {_times(sizes)} (data, fsdp, tensor), and {taken} does not divide the "
                f"{count} devices; choose sizes whose product does."
            )
        sizes[sizes.index(-1)] = count // taken
    if math.prod(sizes) != count:
        raise UserError(
            f"mesh is {_times(sizes)} (data, fsdp, tensor), {math.prod(sizes)} devices, and there "
            f"are {count}; choose sizes whose product is {count}, or -1 for one of them, or "
            "1 x 1 x 1 for the first device alone."
        )
    return _mesh(_grid(_by_process(devices), sizes))


def local_mesh(mesh: Mesh) -> Mesh:
    """The block of the mesh that this process holds, as a mesh of its own (same axes).

    Raises:
        UserError: this process's devices are no block of it, or it has none there.
    """
    here = jax.process_index()
    mine = np.vectorize(lambda d: d.process_index == here, otypes=[bool])(mesh.devices)
    if not mine.any():
        raise UserError(f"process {here} holds no device of the mesh; give each process some.")
    block = np.ix_(*(np.unique(i) for i in np.nonzero(mine)))
    if not mine[block].all():
        raise UserError(
            f"the {mine.sum()} devices of process {here} are no block of the mesh "
            f"{_times(mesh.devices.shape)} (data, fsdp, tensor); choose sizes in which each "
            "process has one."
        )
    return _mesh(mesh.devices[block])


def split(devices: Sequence[Device], parts: int) -> list[list[Device]]:
    """`devices` in `parts` equal shares; each is a contiguous piece of every process's devices.

    ```
    process 0: a a b b   process 1: a a b b      two shares, a and b, of two processes' eight
    ```

    Raises:
        UserError: a process's devices cannot be shared out equally.
    """
    shares: list[list[Device]] = [[] for _ in range(parts)]
    for process, group in groupby(_by_process(devices), key=lambda d: d.process_index):
        held = list(group)
        if len(held) % parts:
            raise UserError(
                f"placement is split and the {len(held)} devices of process {process} cannot be "
                f"shared by {parts} roles; give it a multiple of {parts}, or choose "
                "placement = shared."
            )
        size = len(held) // parts
        for i, share in enumerate(shares):
            share += held[i * size : (i + 1) * size]
    return shares


def _mesh(grid: np.ndarray) -> Mesh:
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _grid(devices: Sequence[Device], sizes: Sequence[int]) -> np.ndarray:
    grid = np.empty(len(devices), dtype=object)
    grid[:] = devices
    return grid.reshape(sizes)


def _by_process(devices: Sequence[Device]) -> list[Device]:
    return sorted(devices, key=lambda d: d.process_index)


def _times(sizes: Sequence[int]) -> str:
    return " x ".join(str(n) for n in sizes)
