"""A policy's values as plain pytrees: made, counted, and described without being made.

`trained` and `frozen` are those of `ibrl_jax.models.lora`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings, check_targets

Params = Any
"""A nested dict of float32 arrays; layers are stacked on their first axis."""


def init_params(config: ModelConfig, seed: int) -> Params:
    """Fresh parameters on the default device. Not to be called under `jit`: see `initialise`."""
    return _once(lambda key: initialise(config, key), seed)


def init_adapters(config: ModelConfig, lora: LoraSettings, seed: int) -> Params:
    """Fresh adapters, which change nothing yet, on the default device.

    Raises:
        UserError: a target matches nothing.
    """
    check_targets(lora, config.period)
    return _once(lambda key: nn.meta.unbox(_init(config, lora, key)["lora"]), seed)


def initialise(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters as a pure function: kernels of variance 1 / fan-in, norms 1, biases 0."""
    return nn.meta.unbox(_init(config, None, key)["params"])


def abstract_params(config: ModelConfig) -> Params:
    """The same tree as shapes and dtypes; nothing is allocated."""
    return nn.meta.unbox(_boxed(config, None)["params"])


def abstract_adapters(config: ModelConfig, lora: LoraSettings) -> Params:
    """The tree of adapters as shapes and dtypes."""
    return nn.meta.unbox(_boxed(config, lora)["lora"])


def logical_axes(config: ModelConfig) -> Params:
    """The parameters' tree with a `PartitionSpec` of logical axis names at each leaf.

    Names: vocab, embed, heads, kv_heads, head_dim, mlp, layers, key_heads, value_heads, conv.
    """
    return nn.get_partition_spec(_boxed(config, None)["params"])


def adapter_axes(config: ModelConfig, lora: LoraSettings) -> Params:
    """The adapters' tree likewise; `lora_rank` is one more name."""
    return nn.get_partition_spec(_boxed(config, lora)["lora"])


def count_params(params: Params) -> int:
    """Numbers in a tree of arrays, or of the shapes that `abstract_params` gives."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _once(make: Any, seed: int) -> Params:
    unhurried = {"xla_backend_optimization_level": 0}  # it runs once: optimising takes longer
    return jax.jit(make, compiler_options=unhurried)(jax.random.key(seed))


def _boxed(config: ModelConfig, lora: LoraSettings | None) -> Params:
    return jax.eval_shape(lambda: _init(config, lora, jax.random.key(0)))


def _init(config: ModelConfig, lora: LoraSettings | None, key: jax.Array) -> Params:
    one = jnp.zeros((1, 1), jnp.int32)
    return Decoder(config, lora).init(key, one, one, None)
