"""The compiled programs of one network and one set of sizes, which several engines may share.

They may be compiled in the background, while other work goes on: a call waits for its own alone.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ibrl_jax.errors import UserError
from ibrl_jax.host import cores
from ibrl_jax.models.cache import Cache
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
from ibrl_jax.sampler.programs import Sampled, Shape, Table, sample_block
from ibrl_jax.sampler.sampling import Strategy, Temperature
from ibrl_jax.sampler.store import Store, empty_store, give, store_axes, take
from ibrl_jax.sampler.types import EngineSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Lay:
    """Parameters, laid out for the sampler."""


@dataclass(frozen=True)
class Take:
    """An opening out of a slot: so many entries."""

    length: int


@dataclass(frozen=True)
class Give:
    """An opening into slots: so many entries."""

    length: int


Kind = Shape | Lay | Take | Give
"""What a program does, and its sizes."""


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
        self.alone = threading.Lock()
        """Held while a program of several devices runs: two of them side by side can lock up."""
        self._base: Params | None = None
        self._strategy = strategy or Temperature()
        self._compiled: dict[Kind, Future[jax.stages.Compiled]] = {}
        self._openings: set[int] = set()
        self._warm = False
        self._lock = threading.Lock()
        if mesh is not None and settings.slots % math.prod(mesh.devices.shape[:2]):
            raise UserError(
                f"the engine has {settings.slots} slots, which mesh.data x mesh.fsdp = "
                f"{math.prod(mesh.devices.shape[:2])} does not divide; make config.rollout.draws "
                "times config.rollout.group a multiple of it."
            )

    @property
    def compilations(self) -> int:
        """Programs built so far, those that are being built included."""
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

    def shape(self, rows: int, new_tokens: int | None, length: int) -> Shape:
        """The smallest program for so many rows, new tokens (None: rows go on) and entries."""
        return self.settings.shape(rows, new_tokens, length, aligned=self.aligned)

    def expect_opening(self, tokens: int) -> None:
        """There will be openings of so many tokens: `warmup` compiles what they need."""
        self._openings.add(self.settings.entries(tokens))

    def begin_warmup(self) -> None:
        """Start to compile every program that can occur, as many at a time as there are cores."""
        copies = [kind(n) for n in sorted(self._openings) for kind in (Take, Give)]
        with self._lock:
            soonest = sorted(self.shapes(), key=_when_needed)
            wanted = [Lay(), *copies, *soonest]
            missing = [kind for kind in wanted if kind not in self._compiled]
            self._warm = True
            if missing:
                pool = ThreadPoolExecutor(cores(), thread_name_prefix="compile")
                self._compiled.update({k: pool.submit(self._in_background, k) for k in missing})
                pool.shutdown(wait=False)

    def warmup(self) -> None:
        """Compile every program that can occur, and wait for all."""
        self.begin_warmup()
        for kind in tuple(self._compiled):
            self._program(kind)

    def serve(self, trained: Params) -> ServingParams | Adapted:
        """A copy of what trains (arrays of the device or the host), laid out for the sampler."""
        laid = self._program(Lay())(self._placed(trained))
        if self.model.lora is None:
            return laid
        assert self._base is not None, "adapters are served before their base was set"
        return Adapted(base=self._base, adapters=laid)

    def run(
        self, shape: Shape, params: ServingParams | Adapted, store: Store, table: Table
    ) -> tuple[Store, Sampled]:
        """One call; the store is donated."""
        rows: Any = table.array
        if self.mesh is not None:
            rows = jax.device_put(rows, batch_sharding(self.mesh, rows))
        return self._program(shape)(params, store, rows)

    def take(self, store: Store, slot: int, tokens: int) -> Cache:
        """A copy of what a slot holds of its first tokens."""
        program = self._program(Take(self.settings.entries(tokens)))
        return program(store, self._everywhere(np.int32(slot)))

    def give(self, store: Store, opening: Cache, slots: list[int], tokens: int) -> Store:
        """Put an opening at the beginning of slots; the store is donated."""
        padded = np.full(self.settings.slots, self.settings.slots, np.int32)
        padded[: len(slots)] = slots
        program = self._program(Give(self.settings.entries(tokens)))
        return program(store, opening, self._everywhere(padded))

    def empty_store(self) -> Store:
        """A store for all slots, where it belongs."""
        config, s = self.model.config, self.settings
        make = functools.partial(empty_store, config, s.slots, s.lengths[-1])
        if self.mesh is None:
            return make()
        return jax.jit(make, out_shardings=_shardings(self.abstract_store()))()

    def lowered(self, shape: Shape) -> jax.stages.Lowered:
        """A program before it is compiled; nothing is allocated."""
        s = self.settings
        program = functools.partial(
            sample_block,
            self.model,
            self._strategy,
            self.stop_ids,
            s.samples_at_once,
            s.stragglers,
            shape,
        )
        table: Any = Table(shape, self.settings.slots).array
        out = None
        if self.mesh is not None:
            table = _at(table, batch_sharding(self.mesh, table))
            out = (_shardings(self.abstract_store()), self._whole())
        with use(self.mesh):
            return jax.jit(program, donate_argnums=1, out_shardings=out).lower(
                self.abstract_params(), self.abstract_store(), table
            )

    def _program(self, kind: Kind) -> jax.stages.Compiled:
        """The program, compiled here and now if nobody has begun to."""
        with self._lock:
            found = self._compiled.get(kind)
            if found is None and self._warm:
                log.warning("the sampler compiles %s although it was warm", kind)
            begun = found is not None and not found.cancel()  # one that waits its turn is ours
            if not begun:
                found = self._compiled[kind] = Future()
                found.set_running_or_notify_cancel()
        assert found is not None
        if not begun:
            try:
                found.set_result(self._compile(kind))
            except BaseException as error:
                found.set_exception(error)
        return found.result()

    def _in_background(self, kind: Kind) -> jax.stages.Compiled:
        if not threading.main_thread().is_alive():  # the interpreter ends: do not hold it up
            raise CancelledError
        return self._compile(kind)

    def _compile(self, kind: Kind) -> jax.stages.Compiled:
        if isinstance(kind, Shape):
            return self.lowered(kind).compile()
        out: Any = None
        if isinstance(kind, Lay):
            program, donated, arguments = self._lay, (), (self._trained(),)
            out = None if self.mesh is None else _shardings(self._laid())
        elif isinstance(kind, Take):
            program, donated = functools.partial(take, length=kind.length), ()
            arguments = (self.abstract_store(), self._at_hand(()))
            out = None if self.mesh is None else _shardings(self._abstract_opening(kind.length))
        else:
            program, donated = functools.partial(give, aligned=self.aligned), (0,)
            opening = self._abstract_opening(kind.length)
            arguments = (self.abstract_store(), opening, self._at_hand((self.settings.slots,)))
            out = None if self.mesh is None else _shardings(self.abstract_store())
        with use(self.mesh):
            made = jax.jit(program, donate_argnums=donated, out_shardings=out)
            return made.lower(*arguments).compile()

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

    def _abstract_opening(self, length: int) -> Cache:
        """What `take` gives: one row, whole on all devices but for its heads."""
        opening = jax.eval_shape(
            functools.partial(take, length=length), self.abstract_store(), np.int32(0)
        )
        places = jax.tree.map(
            lambda axes: PartitionSpec(None, *axes[1:]),
            store_axes(self.model.config).now,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )
        return self._on_mesh(opening, places, "an opening")

    def _on_mesh(self, shapes: Any, axes: Any, what: str) -> Any:
        if self.mesh is None:
            return shapes
        return jax.tree.map(_at, shapes, shardings(self.mesh, axes, shapes, what))

    def _whole(self) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec())

    def _at_hand(self, size: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        """Whole numbers that every device has."""
        where = None if self.mesh is None else self._whole()
        return jax.ShapeDtypeStruct(size, np.int32, sharding=where)

    def _everywhere(self, numbers: Any) -> Any:
        return numbers if self.mesh is None else jax.device_put(numbers, self._whole())

    def _placed(self, trained: Params) -> Params:
        if self.mesh is None:
            return trained
        return jax.device_put(trained, _shardings(self._trained()))


def _when_needed(shape: Shape) -> tuple[int, int, int]:
    """Dialogues begin short, and many at once."""
    return shape.length, -shape.rows, shape.new_tokens


def _at(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)


def _shardings(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.sharding, tree)
