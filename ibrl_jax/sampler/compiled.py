"""The compiled programs of one network and one set of sizes, which several engines may share."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import jax
import numpy as np

from ibrl_jax.models.cache import empty_cache
from ibrl_jax.models.dense import Decoder
from ibrl_jax.models.params import Params, abstract_params
from ibrl_jax.models.serving import ServingParams, serving_params
from ibrl_jax.sampler.programs import Batch, Shape, sample_turns
from ibrl_jax.sampler.sampling import Strategy, Temperature
from ibrl_jax.sampler.types import EngineSettings

log = logging.getLogger(__name__)


class Programs:
    """Compiles a program the first time that it is asked for; `warmup` asks for all.

    Args:
        model: the network.
        settings: sizes and buckets.
        stop_ids: a row stops after sampling one of them.
        strategy: which tokens may be drawn; all of them by default.
    """

    def __init__(
        self,
        model: Decoder,
        settings: EngineSettings,
        stop_ids: Iterable[int],
        strategy: Strategy | None = None,
    ) -> None:
        self.model, self.settings = model, settings
        self.stop_ids = tuple(sorted(set(stop_ids)))
        self.abstract = abstract_params(model.config)
        self._serving = functools.partial(serving_params, model.config)
        self._strategy = strategy or Temperature()
        self._compiled: dict[Shape | None, jax.stages.Compiled] = {}  # None: `serve`
        self._warm = False
        self._lock = Lock()

    @property
    def compilations(self) -> int:
        """Programs built so far."""
        return len(self._compiled)

    def warmup(self) -> None:
        """Compile every program that can occur, as many at a time as there are cores."""
        with self._lock:
            wanted = [None, *self.settings.shapes()]
            missing = [shape for shape in wanted if shape not in self._compiled]
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                self._compiled.update(zip(missing, pool.map(self._compile, missing), strict=True))
            self._warm = True

    def serve(self, params: Params) -> ServingParams:
        """A copy of parameters (arrays of the device or the host), laid out for the sampler."""
        return self._program(None)(params)

    def __getitem__(self, shape: Shape) -> jax.stages.Compiled:
        return self._program(shape)

    def _program(self, shape: Shape | None) -> jax.stages.Compiled:
        with self._lock:
            if shape not in self._compiled:
                if self._warm:
                    log.warning("the sampler compiles %s although it was warm", shape)
                self._compiled[shape] = self._compile(shape)
            return self._compiled[shape]

    def _compile(self, shape: Shape | None) -> jax.stages.Compiled:
        if shape is None:
            return jax.jit(self._serving).lower(self.abstract).compile()
        settings, config = self.settings, self.model.config
        program = functools.partial(
            sample_turns, self.model, self._strategy, self.stop_ids, settings.max_new, shape.length
        )
        params = jax.eval_shape(self._serving, self.abstract)
        store = jax.eval_shape(lambda: empty_cache(config, settings.slots, settings.lengths[-1]))
        batch = Batch(**padding(settings, shape))
        return jax.jit(program, donate_argnums=1).lower(params, store, batch).compile()


def padding(settings: EngineSettings, shape: Shape) -> dict[str, Any]:
    """The fields of a batch (numpy) of nothing but padding."""
    r = shape.rows
    return dict(
        slots=np.full(r, settings.slots, np.int32),
        starts=np.zeros(r, np.int32),
        ids=np.zeros((r, shape.new_tokens), np.int32),
        counts=np.zeros(r, np.int32),
        keys=np.zeros((r, 2), np.uint32),
        temperatures=np.ones(r, np.float32),
        limits=np.zeros(r, np.int32),
    )
