"""The compiled programs of one network and one set of sizes, which several engines may share."""

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ibrl_jax.errors import UserError
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import held_type
from ibrl_jax.models.params import (
    Params,
    abstract_adapters,
    abstract_params,
    adapter_axes,
    logical_axes,
)
from ibrl_jax.models.serving import Adapted, ServingParams, serving_adapters, serving_params
from ibrl_jax.parallel.rules import batch_sharding, shardings, use
from ibrl_jax.sampler.programs import Batch, Sampled, Shape, sample_turns
from ibrl_jax.sampler.sampling import Strategy, Temperature
from ibrl_jax.sampler.store import FRESH, Start, Store, empty_store, store_axes
from ibrl_jax.sampler.types import EngineSettings

log = logging.getLogger(__name__)


class Programs:
    """Compiles a program the first time that it is asked for; `warmup` asks for all.

    Args:
        model: the network.
        settings: sizes and buckets.
        stop_ids: a row stops after sampling one of them.
        strategy: which tokens may be drawn; all of them by default.
        mesh: where parameters, caches and rows lie; None: on the default device.
    """

    def __init__(
        self,
        model: Decoder,
        settings: EngineSettings,
        stop_ids: Iterable[int],
        strategy: Strategy | None = None,
        *,
        mesh: Mesh | None = None,
    ) -> None:
        self.model, self.settings, self.mesh = model, settings, mesh
        self.stop_ids = tuple(sorted(set(stop_ids)))
        config, lora = model.config, model.lora
        self.abstract = abstract_adapters(config, lora) if lora else abstract_params(config)
        self.alone = Lock()
        """Held while a program of several devices runs: two of them side by side can lock up."""
        self._base: Params | None = None
        self._strategy = strategy or Temperature()
        self._compiled: dict[Shape | None, jax.stages.Compiled] = {}  # None: `serve`
        self._warm = False
        self._lock = Lock()
        if mesh is not None and settings.slots % math.prod(mesh.devices.shape[:2]):
            raise UserError(
                f"the engine has {settings.slots} slots, which mesh.data x mesh.fsdp = "
                f"{math.prod(mesh.devices.shape[:2])} does not divide; make config.rollout.draws "
                "times config.rollout.group a multiple of it."
            )

    @property
    def compilations(self) -> int:
        """Programs built so far."""
        return len(self._compiled)

    @property
    def base(self) -> Params | None:
        """The frozen base that all policies share, if there are adapters: the array given."""
        return self._base

    def hold(self, base: Params) -> None:
        """Set the base under the adapters; it is shared, not copied."""
        self._base = base

    @property
    def aligned(self) -> bool:
        """Whether a call's rows are the slots, in order (see `store`)."""
        return self.mesh is not None

    def shapes(self) -> list[Shape]:
        """Every program that a call can need."""
        return self.settings.shapes(aligned=self.aligned)

    def shape(self, rows: int, new_tokens: int, length: int) -> Shape:
        """The smallest program for so many rows, new tokens and cache entries."""
        return self.settings.shape(rows, new_tokens, length, aligned=self.aligned)

    def warmup(self) -> None:
        """Compile every program that can occur, as many at a time as there are cores."""
        with self._lock:
            wanted = [None, *self.shapes()]
            missing = [shape for shape in wanted if shape not in self._compiled]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self._compiled.update(zip(missing, pool.map(self._compile, missing), strict=True))
            self._warm = True

    def serve(self, trained: Params) -> ServingParams | Adapted:
        """A copy of what trains (arrays of the device or the host), laid out for the sampler."""
        laid = self._program(None)(self._placed(trained))
        if self.model.lora is None:
            return laid
        assert self._base is not None, "adapters are served before their base was set"
        return Adapted(base=self._base, adapters=laid)

    def run(
        self, shape: Shape, params: ServingParams | Adapted, store: Store, batch: Batch
    ) -> tuple[Store, Sampled]:
        """One call; the store is donated."""
        if self.mesh is not None:
            batch = jax.device_put(batch, batch_sharding(self.mesh, batch))
        return self._program(shape)(params, store, batch)

    def empty_store(self) -> Store:
        """A store for all slots, where it belongs."""
        config, s = self.model.config, self.settings
        make = functools.partial(empty_store, config, s.slots, s.lengths[-1])
        if self.mesh is None:
            return make()
        return jax.jit(make, out_shardings=_shardings(self.abstract_store()))()

    def lowered(self, shape: Shape) -> jax.stages.Lowered:
        """A program before it is compiled; nothing is allocated."""
        program = functools.partial(
            sample_turns, self.model, self._strategy, self.stop_ids, self.settings.max_new, shape
        )
        batch = Batch(**padding(self.settings, shape))
        out = None
        if self.mesh is not None:
            at = batch_sharding(self.mesh, batch)
            batch = jax.tree.map(_at, batch, at)
            out = (_shardings(self.abstract_store()), NamedSharding(self.mesh, PartitionSpec()))
        with use(self.mesh):
            return jax.jit(program, donate_argnums=1, out_shardings=out).lower(
                self.abstract_params(), self.abstract_store(), batch
            )

    def _program(self, shape: Shape | None) -> jax.stages.Compiled:
        with self._lock:
            if shape not in self._compiled:
                if self._warm:
                    log.warning("the sampler compiles %s although it was warm", shape)
                self._compiled[shape] = self._compile(shape)
            return self._compiled[shape]

    def _compile(self, shape: Shape | None) -> jax.stages.Compiled:
        if shape is not None:
            return self.lowered(shape).compile()
        out = None if self.mesh is None else _shardings(self._laid())
        with use(self.mesh):
            return jax.jit(self._lay, out_shardings=out).lower(self._trained()).compile()

    def _lay(self, trained: Params) -> Any:
        config = self.model.config
        if self.model.lora is None:
            return serving_params(config, trained)
        return serving_adapters(config, trained)

    # Shapes, with the places they have on the mesh

    def _trained(self) -> Params:
        config, lora = self.model.config, self.model.lora
        axes = adapter_axes(config, lora) if lora else logical_axes(config)
        return self._on_mesh(self.abstract, axes, "the model")

    def _laid(self) -> Any:
        """What `serve` copies: the layers' leading axis is gone, the other axes lie as before."""
        shapes = jax.eval_shape(self._lay, self.abstract)
        if self.mesh is None:
            return shapes
        trained, mesh = self._trained(), self.mesh
        places = jax.tree_util.tree_map_with_path(
            lambda path, x: (
                NamedSharding(mesh, PartitionSpec(*x.sharding.spec[1:]))
                if path[0].key == "layers"
                else x.sharding
            ),
            trained,
        )
        p, config = len(self.model.config.period), self.model.config
        blocks = tuple(places["layers"].get(f"block{i % p}", {}) for i in range(config.layers))
        if self.model.lora is not None:
            return jax.tree.map(_at, shapes, blocks)
        outer = {name: x for name, x in places.items() if name != "layers"}
        return jax.tree.map(_at, shapes, ServingParams(outer=outer, layers=blocks, adapters=None))

    def abstract_params(self) -> ServingParams | Adapted:
        """What `serve` gives, as shapes, types and places."""
        config = self.model.config
        if self.model.lora is None:
            return self._laid()

        def held(path: tuple, x: Any) -> Any:
            return jax.ShapeDtypeStruct(x.shape, held_type(path[-1].key, config.dtype))

        base = jax.tree_util.tree_map_with_path(held, abstract_params(config))
        base = self._on_mesh(base, logical_axes(config), "the model")
        return Adapted(base=base, adapters=self._laid())

    def abstract_store(self) -> Store:
        """What `empty_store` gives, as shapes, types and places."""
        config, s = self.model.config, self.settings
        store = jax.eval_shape(lambda: empty_store(config, s.slots, s.lengths[-1]))
        return self._on_mesh(store, store_axes(config), "the caches")

    def _on_mesh(self, shapes: Any, axes: Any, what: str) -> Any:
        if self.mesh is None:
            return shapes
        return jax.tree.map(_at, shapes, shardings(self.mesh, axes, shapes, what))

    def _placed(self, trained: Params) -> Params:
        if self.mesh is None:
            return trained
        return jax.device_put(trained, _shardings(self._trained()))


def padding(settings: EngineSettings, shape: Shape) -> dict[str, Any]:
    """The fields of a batch (numpy) of nothing but padding."""
    r = shape.rows
    start: dict[str, Any] = dict(
        slots=np.full(r, settings.slots, np.int32),
        starts=np.zeros(r, np.int32),
        sources=np.full(r, FRESH, np.int32),
        marked=np.zeros(r, bool),
    )
    return dict(
        start=Start(**start),
        ids=np.zeros((r, shape.new_tokens), np.int32),
        counts=np.zeros(r, np.int32),
        keys=np.zeros((r, 2), np.uint32),
        temperatures=np.ones(r, np.float32),
        limits=np.zeros(r, np.int32),
    )


def _at(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.sharding, tree)
