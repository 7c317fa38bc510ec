"""AdamW as a role uses it: its numbers, its rate over its own updates, and what decays.

g <- g min(1, clip_norm / |g|)
params <- params - lr(updates) (adam(g) + weight_decay params)      decay on matrices alone
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

from ibrl_jax.models.params import Params


class Hyper(flax.struct.PyTreeNode):
    """One role's numbers, all scalars and all traced: changing one recompiles nothing.

    The learning rate rises linearly over `warmup_updates`, counted in this role's own updates, and
    stays. `kl` and `entropy` are per nat. `temperature` is the one that the role samples at.
    """

    learning_rate: Any
    warmup_updates: Any
    weight_decay: Any
    clip_norm: Any
    kl: Any
    entropy: Any
    clip_low: Any
    clip_high: Any
    temperature: Any


def learning_rate(hyper: Hyper, updates: Any) -> jax.Array:
    """The rate of the update that follows `updates` earlier ones (see `Hyper`); a scalar."""
    done = jnp.asarray(updates, jnp.float32)
    warm = jnp.minimum((done + 1.0) / jnp.maximum(hyper.warmup_updates, 1.0), 1.0)
    return hyper.learning_rate * warm


def matrices(params: Params, stacked: tuple[str, ...]) -> Any:
    """A tree of bools: which leaves are matrices (two axes or more beside a leading layer axis)."""

    def is_matrix(path: tuple[Any, ...], leaf: Any) -> bool:
        keys = {str(getattr(k, "key", getattr(k, "name", k))) for k in path}
        return leaf.ndim - bool(keys & set(stacked)) >= 2

    return jax.tree_util.tree_map_with_path(is_matrix, params)


def abstract_optimiser(optimiser: optax.GradientTransformation, params: Params) -> Any:
    """The shapes and shardings of an optimiser's state: moments lie where their parameters do.

    `params` are arrays, or their shapes with shardings.
    """

    def at(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return optax.tree.map_params(
        optimiser,
        lambda x, like: at(x, like.sharding),
        jax.eval_shape(optimiser.init, params),
        params,
        transform_non_params=lambda x: at(x, beside(params)),
    )


def adamw(
    learning_rate: Any,
    weight_decay: Any,
    clip_norm: Any,
    *,
    moments: tuple[float, float, float],
    stacked: tuple[str, ...],
) -> optax.GradientTransformation:
    """The module's step; the first three may be traced, `moments` are b1, b2 and eps.

    `stacked`: see `matrices`.
    """
    b1, b2, eps = moments
    return optax.chain(
        optax.clip_by_global_norm(clip_norm),
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps, mu_dtype=jnp.float32),
        optax.add_decayed_weights(weight_decay, mask=lambda p: matrices(p, stacked)),
        optax.scale_by_learning_rate(learning_rate),
    )


def beside(params: Params) -> Any:
    """Where a scalar lies beside parameters: whole on each of their devices."""
    first = jax.tree.leaves(params)[0].sharding
    return NamedSharding(first.mesh, PartitionSpec()) if isinstance(first, NamedSharding) else first
