"""Where a role's values and batches lie: on the mesh that it trains on, or on the default device.

What trains, its moments, the base under adapters and the rows of a batch all go by the one table of
`parallel.rules`. Nothing is copied that lies where it should, so roles on one mesh share a base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_local_meshes, build_meshes
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.domains.base import Role
from ibrl_jax.models import hf_folder
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import held_type
from ibrl_jax.models.params import (
    Params,
    abstract_adapters,
    abstract_params,
    adapter_axes,
    init_adapters,
    init_params,
    initialise,
    logical_axes,
)
from ibrl_jax.parallel.hosts import Hosts, localise
from ibrl_jax.parallel.mesh import local_mesh
from ibrl_jax.parallel.place import gather, put
from ibrl_jax.parallel.rules import batch_sharding, mesh_of, shardings
from ibrl_jax.rl.batches import RoleBatch, abstract_batch, to_micro

_UNHURRIED = {"xla_backend_optimization_level": 0}  # it runs once: optimising takes longer


def places(config: ConfigDict, speech: Speech, roles: Sequence[Role]) -> dict[Role, Place]:
    """The place of each role; one and the same for those that share a mesh.

    Raises:
        UserError: the mesh does not fit the devices, or the network does not fit the mesh.
    """
    return _places(speech, build_meshes(config, roles))


def local_places(config: ConfigDict, speech: Speech, roles: Sequence[Role]) -> dict[Role, Place]:
    """The same on this process's devices alone, for what one process does by itself."""
    return _places(speech, build_local_meshes(config, roles))


def _places(speech: Speech, meshes: dict[Role, Mesh | None]) -> dict[Role, Place]:
    known = {mesh: Place(speech.model, mesh) for mesh in dict.fromkeys(meshes.values())}
    return {role: known[mesh] for role, mesh in meshes.items()}


def at_home(values: Params) -> Params:
    """Values for this process's own engines.

    Of what several processes hold together, a whole copy on this one's devices, in which all take
    part; anything else as it is.
    """
    mesh = mesh_of(values)
    if mesh is None or not mesh.is_multi_process:
        return values
    return localise(values, mesh, local_mesh(mesh))


def to_be_written(values: Params, hosts: Hosts) -> Params | None:
    """Values that one process can write: the first gets them, the others, who take part, None."""
    if hosts.count == 1:
        return values

    def collect(x: jax.Array) -> np.ndarray | None:
        found = gather(x)
        return found if hosts.is_first else None

    collected = jax.tree.map(collect, values)
    return collected if hosts.is_first else None


class Place:
    """The devices of a mesh and how values of one network are cut over them.

    Args:
        mesh: None for the default device.
    """

    def __init__(self, model: Decoder, mesh: Mesh | None) -> None:
        self.model, self.mesh = model, mesh
        if mesh is not None:  # a network that does not fit is refused before anything is made
            _ = self._base_at, self._trained_at

    @property
    def like(self) -> Params:
        """What trains, as shapes and types."""
        config, lora = self.model.config, self.model.lora
        return abstract_adapters(config, lora) if lora else abstract_params(config)

    def abstract_trained(self) -> Params:
        """What trains, as shapes, types and places."""
        return _abstract(self.like, self._trained_at, lambda name, x: x.dtype)

    def abstract_base(self) -> Params | None:
        """A base as it is held; None where there are no adapters."""
        if self.model.lora is None:
            return None
        whole = abstract_params(self.model.config)
        return _abstract(whole, self._base_at, lambda name, x: self._held(name))

    # Values

    def trained(self, values: Params) -> Params:
        """What trains, here; arrays that are here by now are given back as they are."""
        return _here(values, self._trained_at)

    def base(self, values: Params) -> Params:
        """A base here, in the types that a base is held in."""
        cast = jax.tree_util.tree_map_with_path(
            lambda path, x: x if x.dtype == (t := self._held(path[-1].key)) else x.astype(t), values
        )
        return _here(cast, self._base_at)

    def fresh(self, seed: int, *, base: bool) -> Params:
        """Random parameters of the whole network, to be trained or (`base`) to lie under adapters.

        They are the same on every mesh.
        """
        config = self.model.config
        if self.mesh is None:
            made = init_params(config, seed)
            return self.base(made) if base else made

        def make(key: jax.Array) -> Params:
            return jax.tree_util.tree_map_with_path(
                lambda path, x: x.astype(self._held(path[-1].key)) if base else x,
                initialise(config, key),
            )

        program = jax.jit(make, out_shardings=self._base_at, compiler_options=_UNHURRIED)
        return jax.block_until_ready(program(jax.random.key(seed)))

    def adapters(self, seed: int) -> Params:
        """Fresh adapters, which change nothing yet."""
        assert self.model.lora is not None
        return self.trained(init_adapters(self.model.config, self.model.lora, seed))

    def read(self, folder: Path, *, base: bool) -> Params:
        """The weights of a Hugging Face folder, to be trained or (`base`) to lie under adapters.

        Raises:
            UserError: they are missing, damaged or of another network.
        """

        def as_type(path: str) -> Any:
            return self._held(path.rpartition("/")[2]) if base else jnp.float32

        return hf_folder.read(folder, self.model.config, self._base_at, as_type)

    # Batches

    def batch(self, batch: RoleBatch, micro: int) -> RoleBatch:
        """A batch [B, T] of host arrays as the learner takes it here: on a mesh [M, b, T], each of
        whose micro-batches is spread.

        Raises:
            UserError: the rows of a micro-batch cannot be spread evenly.
        """
        if self.mesh is None:
            return batch
        batch = to_micro(batch, micro)
        return put(batch, batch_sharding(self.mesh, batch))

    def beside(self, logp: jax.Array, batch: RoleBatch) -> Any:
        """Log-probabilities that a program gave for a batch, placed as the batch is."""
        if self.mesh is None:
            return np.asarray(logp)
        return self.done(jax.device_put(logp, batch.ids.sharding))

    def done(self, values: Any) -> Any:
        """What a program gives; on a mesh, once it has.

        Of two programs of several devices that are in flight each may wait for the other for ever.
        """
        return values if self.mesh is None else jax.block_until_ready(values)

    def abstract_batch(self, rows: int, length: int, micro: int, views: int) -> RoleBatch:
        """What `batch` will give, to compile for before there is one; `views` may share a row."""
        batch = abstract_batch(rows, length, views)
        if self.mesh is None:
            return batch
        batch = jax.eval_shape(partial(to_micro, size=micro), batch)
        return jax.tree.map(
            lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
            batch,
            batch_sharding(self.mesh, batch),
        )

    # Shardings; None without a mesh

    @cached_property
    def _base_at(self) -> Params | None:
        config = self.model.config
        return self._at(logical_axes(config), abstract_params(config))

    @cached_property
    def _trained_at(self) -> Params | None:
        config, lora = self.model.config, self.model.lora
        if lora is None:
            return self._base_at
        return self._at(adapter_axes(config, lora), abstract_adapters(config, lora))

    def _at(self, axes: Params, abstract: Params) -> Params | None:
        return None if self.mesh is None else shardings(self.mesh, axes, abstract, "the model")

    def _held(self, leaf: str) -> Any:
        """The type that a leaf of a base is held in."""
        return held_type(leaf, self.model.config.dtype)


def _abstract(shapes: Params, at: Params | None, dtype: Callable[[str, Any], Any]) -> Params:
    """Shapes at their places (on the default device, where there is no mesh)."""
    alone = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    at = jax.tree.map(lambda x: alone, shapes) if at is None else at
    return jax.tree_util.tree_map_with_path(
        lambda path, x, place: jax.ShapeDtypeStruct(
            x.shape, dtype(path[-1].key, x), sharding=place
        ),
        shapes,
        at,
    )


def _here(values: Params, at: Params | None) -> Params:
    """Arrays of the host or of other devices at their places."""
    if at is None:
        return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else jax.device_put(x), values)

    several = jax.process_count() > 1  # what lies elsewhere then cannot be moved but by the host

    def place(x: Any, sharding: Any) -> jax.Array:
        if not isinstance(x, jax.Array):
            return put(x, sharding)
        if x.sharding == sharding:
            return x
        return put(gather(x), sharding) if several else jax.device_put(x, sharding)

    return jax.tree.map(place, values, at)
