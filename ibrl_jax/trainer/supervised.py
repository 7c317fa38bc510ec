"""One supervised step: the weighted loss of `trainer.start`, its gradient, the optimiser's move.

What trains is all parameters or adapters; a base under these is an argument of every program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params
from ibrl_jax.models.score import score
from ibrl_jax.parallel.place import put
from ibrl_jax.parallel.rules import batch_sharding, use
from ibrl_jax.rl.learner import abstract_optimiser
from ibrl_jax.trainer.placing import Place

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""ids, segment ids and weights of a batch, [B, T] each."""


class Stepper(Protocol):
    """One supervised step after another."""

    def init(self, params: Params) -> tuple[Params, Any]:
        """The parameters where they are trained, and the optimiser's first state."""
        ...

    def __call__(self, params: Params, state: Any, rows: Rows) -> tuple[Params, Any, jax.Array]:
        """Parameters and state after a step, and its loss."""
        ...

    def lowered(self, params: Params, length: int) -> jax.stages.Lowered:
        """The program that takes most, for rows of so many tokens; `params` may be abstract."""
        ...


def stepper(
    speech: Speech,
    optimiser: optax.GradientTransformation,
    chunk: int,
    batch: int,
    frozen: Params | None,
    place: Place,
    *,
    packed: bool,
) -> Stepper:
    """Steps of `batch` rows at a place.

    Args:
        chunk: positions a row whose logits exist at once.
        frozen: the base under adapters; None where all parameters train.
        packed: whether a row may hold several examples, whose positions start anew.

    Raises:
        UserError: the mesh does not divide the rows.
    """
    gradient = _gradient(speech, chunk, packed)
    if place.mesh is None:
        return _Copies(gradient, optimiser, batch, frozen)
    return _Sharded(gradient, optimiser, batch, frozen, place.mesh)


class _Copies:
    """Each local device takes a share of the rows; the sums meet on the first one.

    Under adapters the first device takes all of them: a base is not copied.
    """

    def __init__(
        self,
        gradient: Callable[..., Any],
        optimiser: optax.GradientTransformation,
        batch: int,
        frozen: Params | None,
    ) -> None:
        devices = jax.local_devices()[: 1 if frozen is not None else None]
        count = next(n for n in range(len(devices), 0, -1) if batch % n == 0)
        self._devices = devices[:count]
        self._share = batch // count
        self._optimiser = optimiser
        self._frozen = frozen

        def apply(params: Params, state: Any, parts: Any) -> tuple[Params, Any, jax.Array]:
            (loss, weight), gradient = jax.tree.map(lambda *leaves: sum(leaves), *parts)
            return _applied(optimiser, params, state, loss, weight, gradient)

        self._gradient = jax.jit(gradient)
        self._apply = jax.jit(apply)

    def init(self, params: Params) -> tuple[Params, Any]:
        params = jax.device_put(params, self._devices[0])
        return params, self._optimiser.init(params)

    def __call__(self, params: Params, state: Any, rows: Rows) -> tuple[Params, Any, jax.Array]:
        size = self._share
        parts = []
        for index, device in enumerate(self._devices):
            share = tuple(x[index * size : (index + 1) * size] for x in rows)
            here, share = jax.device_put((params, share), device)
            parts.append(self._gradient(here, self._frozen, share))
        return self._apply(params, state, jax.device_put(parts, self._devices[0]))

    def lowered(self, params: Params, length: int) -> jax.stages.Lowered:
        return self._gradient.lower(params, self._frozen, _abstract_rows(self._share, length))


class _Sharded:
    """One program over a mesh: parameters, moments and rows lie as in training."""

    def __init__(
        self,
        gradient: Callable[..., Any],
        optimiser: optax.GradientTransformation,
        batch: int,
        frozen: Params | None,
        mesh: Mesh,
    ) -> None:
        share = mesh.shape["data"] * mesh.shape["fsdp"]
        if batch % share:
            raise UserError(
                f"config.sft.batch is {batch}, which mesh.data x mesh.fsdp = {share} does not "
                "divide; make it a multiple"
            )
        self._optimiser, self._frozen, self._batch = optimiser, frozen, batch
        self._mesh = mesh
        self._step: Any = None

        def step(
            params: Params, frozen: Params | None, state: Any, rows: Any
        ) -> tuple[Params, Any, jax.Array]:
            (loss, weight), gradients = gradient(params, frozen, rows)
            return _applied(optimiser, params, state, loss, weight, gradients)

        self._whole = step

    def init(self, params: Params) -> tuple[Params, Any]:
        self._step, state = self._compiled(params)
        state_at = jax.tree.map(lambda x: x.sharding, state)
        return params, jax.jit(self._optimiser.init, out_shardings=state_at)(params)

    def lowered(self, params: Params, length: int) -> jax.stages.Lowered:
        step, state = self._compiled(params)
        rows = _abstract_rows(self._batch, length)
        at = batch_sharding(self._mesh, rows)
        placed = jax.tree.map(
            lambda x, there: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), rows, at
        )
        with use(self._mesh):
            return step.lower(params, self._frozen, state, placed)

    def _compiled(self, params: Params) -> tuple[Any, Any]:
        """The step, for parameters that lie where these do, and the optimiser's abstract state."""
        state = abstract_optimiser(self._optimiser, params)
        at, state_at = (jax.tree.map(lambda x: x.sharding, tree) for tree in (params, state))
        return jax.jit(self._whole, out_shardings=(at, state_at, None)), state

    def __call__(self, params: Params, state: Any, rows: Rows) -> tuple[Params, Any, jax.Array]:
        with use(self._mesh):
            rows = put(rows, batch_sharding(self._mesh, rows))
            return jax.block_until_ready(self._step(params, self._frozen, state, rows))


def _abstract_rows(count: int, length: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    """ids, segment ids and weights [count, length], as shapes and types."""
    types = (jnp.int32, jnp.int32, jnp.float32)
    return tuple(jax.ShapeDtypeStruct((count, length), dtype) for dtype in types)


def _gradient(speech: Speech, chunk: int, packed: bool) -> Callable[..., Any]:
    """((loss sum, weight sum), gradient of the loss sum) of what trains, the rest, and rows."""

    def loss_sum(
        params: Params, frozen: Params | None, rows: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        ids, segments, weight = rows
        positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        if packed:
            begins = jnp.diff(segments, axis=1, prepend=-1) != 0
            positions -= jax.lax.cummax(jnp.where(begins, positions, 0), axis=1)
        logp, _ = score(speech.model, params, frozen, ids, positions, segments, 1.0, chunk)
        return -jnp.sum(weight * logp), jnp.sum(weight)

    return jax.value_and_grad(loss_sum, has_aux=True)


def _applied(
    optimiser: optax.GradientTransformation,
    params: Params,
    state: Any,
    loss: jax.Array,
    weight: jax.Array,
    gradient: Params,
) -> tuple[Params, Any, jax.Array]:
    """Parameters and state after a step, and its loss."""
    gradient = jax.tree.map(lambda g: g / weight, gradient)
    updates, state = optimiser.update(gradient, state, params)
    return optax.apply_updates(params, updates), state, loss / weight
