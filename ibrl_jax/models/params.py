"""Parameters as plain pytrees: made, counted, and described without being made."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.dense import Decoder

Params = Any
"""A nested dict of float32 arrays; layers are stacked on their first axis."""


def init_params(config: ModelConfig, seed: int) -> Params:
    """Fresh parameters on the default device. Not to be called under `jit`: see `initialise`."""
    once = {"xla_backend_optimization_level": 0}  # it runs once: optimising would take longer
    program = jax.jit(lambda key: initialise(config, key), compiler_options=once)
    return program(jax.random.key(seed))


def initialise(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters as a pure function: kernels of variance 1 / fan-in, norms 1, biases 0."""
    return nn.meta.unbox(_init(config, key))


def abstract_params(config: ModelConfig) -> Params:
    """The same tree as shapes and dtypes; nothing is allocated."""
    return nn.meta.unbox(_boxed(config))


def logical_axes(config: ModelConfig) -> Params:
    """The same tree with a `PartitionSpec` of logical axis names at each leaf.

    Names: vocab, embed, heads, kv_heads, head_dim, mlp, layers.
    """
    return nn.get_partition_spec(_boxed(config))


def count_params(params: Params) -> int:
    """Numbers in a tree of arrays, or of the shapes that `abstract_params` gives."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _boxed(config: ModelConfig) -> Params:
    return jax.eval_shape(lambda: _init(config, jax.random.key(0)))


def _init(config: ModelConfig, key: jax.Array) -> Params:
    one = jnp.zeros((1, 1), jnp.int32)
    return Decoder(config).init(key, one, one, None)["params"]
