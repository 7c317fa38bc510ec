"""Where arrays lie on the mesh: one table, from the names of their axes to axes of the mesh.

Parameters, optimiser state (moments lie where their parameters do), caches, batches and
activations all go by it. What a name has no mesh axis for is whole on every device. A dimension
that its mesh axes do not divide is refused by `shardings` and `batch_sharding`; `constrain`, which
is advice to the compiler, leaves such a one to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from ibrl_jax.errors import UserError

RULES = MappingProxyType(
    {
        # parameters
        "vocab": ("tensor",),
        "embed": ("fsdp",),
        "mlp": ("tensor",),
        "heads": ("tensor",),
        "kv_heads": ("tensor",),
        "key_heads": ("tensor",),
        "value_heads": ("tensor",),
        "head_dim": (),
        "layers": (),
        "conv": (),
        "lora_rank": (),
        # activations and caches; their hidden axis is no "embed" but whole (None)
        "batch": ("data", "fsdp"),
        "slots": ("data", "fsdp"),
        "time": (),
    }
)
"""Logical name -> axes of the mesh, outer first."""


def spec(axes: PartitionSpec, what: str) -> PartitionSpec:
    """Mesh axes for logical ones; `what` names the array in errors.

    Raises:
        UserError: two axes of the array want the same axis of the mesh.
        ValueError: a name that no rule knows.
    """
    owner: dict[str, str] = {}
    for name in axes:
        for axis in _wanted(name):
            if axis in owner:
                raise UserError(
                    f"two axes of {what}, {owner[axis]} and {name}, both want the mesh axis "
                    f"{axis}; one of them alone can have it."
                )
            owner[axis] = str(name)
    return PartitionSpec(*(_entry(_wanted(name)) for name in axes))


def shardings(mesh: Mesh | AbstractMesh, axes_tree: Any, abstract_tree: Any, what: str) -> Any:
    """A `NamedSharding` for each leaf of `abstract_tree` (arrays, or their shapes and dtypes).

    Args:
        axes_tree: the same tree with a `PartitionSpec` of logical names at each leaf.
        what: what the tree is, for errors: "the model".

    Raises:
        UserError: a collision (see `spec`), or a dimension that its axes do not divide.
    """

    def place(path: tuple[Any, ...], x: Any, axes: PartitionSpec) -> NamedSharding:
        leaf = jax.tree_util.keystr(path, simple=True, separator="/")
        if len(axes) > len(x.shape):
            raise ValueError(f"{leaf} of {what} is {x.shape}, and its axes are {tuple(axes)}")
        placed = spec(axes, f"{leaf} of {what}")
        for name, size in zip(axes, x.shape, strict=False):  # the axes left out are whole
            wanted = _wanted(name)
            if size % _share(mesh, wanted):
                raise UserError(
                    f"{leaf} of {what} has {name} {size}, which {_sizes(mesh, wanted)} does not "
                    f"divide; choose {_a(wanted)} that divides it."
                )
        return NamedSharding(mesh, placed)

    return jax.tree_util.tree_map_with_path(place, abstract_tree, axes_tree)


def batch_sharding(mesh: Mesh | AbstractMesh, batch: Any) -> Any:
    """A `NamedSharding` for each array of a batch (a tree of arrays, or one): rows are spread.

    Arrays are [B, T] and [B]; or, where one of them is [M, b, T], all lead with the axis M of
    micro-batches, which is whole on every device: each then has its share of every micro-batch.

    Raises:
        UserError: the rows cannot be spread evenly.
    """
    wanted = RULES["batch"]
    share = _share(mesh, wanted)
    leading = max(len(x.shape) for x in jax.tree.leaves(batch)) - 2 > 0
    placed = PartitionSpec(*[None] * leading, wanted)

    def place(x: Any) -> NamedSharding:
        rows = x.shape[leading]
        if rows % share:
            raise UserError(
                f"a batch has {rows} rows, which {_sizes(mesh, wanted)} does not divide; make "
                f"config.optimiser.micro_batch a multiple of {share}."
            )
        return NamedSharding(mesh, placed)

    return jax.tree.map(place, batch)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """`x`, laid over the mesh in use by the logical names of its axes; `x` itself without one.

    None for an axis that is whole everywhere. A dimension that its mesh axes do not divide is left
    to the compiler.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or any(kind != AxisType.Auto for kind in mesh.axis_types):
        return x
    if len(axes) != x.ndim:
        raise ValueError(f"{len(axes)} axes {axes} for an array of {x.ndim}")
    placed = [
        entry if size % _share(mesh, _wanted(name)) == 0 else PartitionSpec.UNCONSTRAINED
        for name, size, entry in zip(
            axes, x.shape, spec(PartitionSpec(*axes), f"an activation {axes}"), strict=True
        )
    ]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*placed))


@contextmanager
def use(mesh: Mesh | None) -> Iterator[None]:
    """Trace for a mesh: `constrain` reads it; None for no mesh. Around the tracing call.

    What is set is JAX's own abstract mesh, of which every cache of traces keeps account, and which
    two meshes of equal shape share; a variable of our own would hand one role's constraints to a
    program of the other's devices. It holds in the thread that set it.
    """
    abstract = AbstractMesh((), ()) if mesh is None else mesh.abstract_mesh
    with jax.sharding.use_abstract_mesh(abstract):
        yield


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh that the arrays of a tree (or their abstract values) lie on; None without one."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
            return sharding.mesh
    return None


def _wanted(name: Any) -> tuple[str, ...]:
    if name is None:
        return ()
    if name not in RULES:
        raise ValueError(f"no rule for an axis named {name!r}; there are {', '.join(RULES)}")
    return RULES[name]


def _entry(wanted: tuple[str, ...]) -> str | tuple[str, ...] | None:
    return wanted if len(wanted) > 1 else wanted[0] if wanted else None


def _share(mesh: Mesh | AbstractMesh, wanted: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in wanted)


def _sizes(mesh: Mesh | AbstractMesh, wanted: tuple[str, ...]) -> str:
    return f"{' x '.join(f'mesh.{axis}' for axis in wanted)} = {_share(mesh, wanted)}"


def _a(wanted: tuple[str, ...]) -> str:
    if len(wanted) == 1:
        return f"{'an' if wanted[0] in ('fsdp',) else 'a'} {wanted[0]}"
    return f"{' and '.join(wanted)} with a product"
