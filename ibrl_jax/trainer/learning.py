"""One role's update: its own batch, its own reference, its own optimiser.

A batch that was rolled out before the last update (`behind`) is corrected for it. With q what it
was sampled under, p the present parameters before this update, and p' those being learned,

    the clipped ratio is    p' / p
    and a token's weight    min(p / q, truncate)        fixed, on the clipped objective alone
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ibrl_jax.domains.base import Role
from ibrl_jax.rl.batches import RoleBatch
from ibrl_jax.rl.learner import Hyper, Learner, LearnerState
from ibrl_jax.rl.losses import truncated_importance
from ibrl_jax.trainer.placing import Place
from ibrl_jax.trainer.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What a role learns from now, and how.

    `batch`: its rows [B, T], on the host. `reference`: their log-probs under the role's start, laid
    out as the batch is, from whoever has them by now; None: yet to be computed. `behind`: whether
    the live parameters have changed since they were sampled. `aside`: whether to leave the state
    that it starts from in place, which takes a second one.
    """

    batch: RoleBatch
    reference: Callable[[], np.ndarray] | None = None
    behind: bool = False
    aside: bool = False


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The state after an update, what is logged of it, and its seconds by part.

    `metrics` are those of the first pass, which is on-policy (loss, KL, entropy, difference between
    sampler and trainer), with the clip fractions of the last, and whether all passes were finite.
    """

    state: LearnerState
    metrics: dict[str, float]
    seconds: dict[str, float]


def learn(
    learner: Learner,
    state: LearnerState,
    start: Weights,
    place: Place,
    hyper: Hyper,
    lesson: Lesson,
    *,
    micro_batch: int,
    epochs: int,
    truncate: float,
) -> Learned:
    """One role's update. `state` is donated, unless the lesson is `aside`.

    Nothing waits for the device but the metrics at the end; on a mesh, each program for the last.
    """
    began = time.perf_counter()
    with jax.profiler.TraceAnnotation("reference"):
        batch = lesson.batch
        if lesson.reference is not None:
            batch = batch.replace(reference_logp=lesson.reference())
        batch = place.batch(batch, micro_batch)
        known = _Arrival(began)
        if lesson.reference is None:
            logp = place.done(
                learner.reference_logp(start.trained, start.frozen, batch, hyper.temperature)
            )
            known.of(logp)
            batch = batch.replace(reference_logp=_beside(place, logp, batch))
    if lesson.aside:
        state = jax.tree.map(jnp.copy, state)
    more: dict[str, Any] = {}
    with jax.profiler.TraceAnnotation("update"):
        if lesson.behind:
            now = place.done(
                learner.reference_logp(state.params, start.frozen, batch, hyper.temperature)
            )
            batch, more = _corrected(batch, _beside(place, now, batch), truncate)
        passes = []
        for _ in range(epochs):
            state, metrics = place.done(learner.update(state, start.frozen, batch, hyper))
            passes.append(metrics)
        passes, more = jax.device_get((passes, more))
    metrics = dict(passes[0])
    metrics |= {key: passes[-1][key] for key in ("clip_low", "clip_high", "updates")}
    refused = next((one for one in passes if not one["finite"]), None)
    if refused is not None:
        metrics = refused
    metrics |= more | {"batch_tokens": np.count_nonzero(lesson.batch.segment_ids)}
    reference = known.seconds()
    return Learned(
        state=state,
        metrics={key: float(value) for key, value in metrics.items()},
        seconds={"reference": reference, "update": time.perf_counter() - began - reference},
    )


def parts(learned: Mapping[Role, Learned], beside: Sequence[float]) -> dict[str, float]:
    """Seconds of the roles' updates, and of all reference passes, those `beside` included."""
    if not learned:
        return {}
    reference = sum(one.seconds["reference"] for one in learned.values()) + sum(beside)
    updates = {f"update_{owner}": one.seconds["update"] for owner, one in learned.items()}
    return {"reference": reference, **updates}


@jax.jit
def _weigh(
    now: jax.Array, behaviour: jax.Array, sampled: jax.Array, truncate: jax.Array
) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
    """(log-probs that the ratio is against, importance), both as the batch's; and the figures."""
    now, before = jnp.where(sampled, now, 0.0), jnp.where(sampled, behaviour, 0.0)
    importance = truncated_importance(now, before, truncate)
    count = jnp.maximum(sampled.sum(), 1)
    return (
        now,
        importance,
        {
            "importance": jnp.where(sampled, importance, 0.0).sum() / count,
            "importance_truncated": (sampled & (importance >= truncate)).sum() / count,
        },
    )


def _corrected(
    batch: RoleBatch, now: jax.Array, truncate: float
) -> tuple[RoleBatch, dict[str, Any]]:
    """A batch that was sampled by older parameters, given its log-probs under the present ones."""
    sampled = jnp.asarray(batch.loss_mask, bool) & (jnp.asarray(batch.segment_ids) > 0)
    now, importance, figures = _weigh(now, batch.behaviour_logp, sampled, np.float32(truncate))
    return batch.replace(behaviour_logp=now, importance=importance), figures


def _beside(place: Place, logp: jax.Array, batch: RoleBatch) -> Any:
    """Log-probs where the batch lies; without a mesh they are there, and nobody waits for them."""
    return logp if place.mesh is None else place.beside(logp, batch)


class _Arrival:
    """When an array was there, seen by a thread that waits for it so that nobody else has to."""

    def __init__(self, began: float) -> None:
        self._began = self._there = began
        self._thread: Thread | None = None

    def of(self, array: jax.Array) -> None:
        def wait() -> None:
            jax.block_until_ready(array)
            self._there = time.perf_counter()

        self._thread = Thread(target=wait, name="reference")
        self._thread.start()

    def seconds(self) -> float:
        if self._thread is not None:
            self._thread.join()
        return self._there - self._began
