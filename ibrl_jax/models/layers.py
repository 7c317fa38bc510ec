"""What every kind of layer is built from: projections (with adapters), norms, rotation, the MLP.

Each parameter is declared once, in float32, with the logical names of its axes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.lora import LoraSettings, fan_in


class RMSNorm(nn.Module):
    """`x * rsqrt(mean x^2 + eps) * w` in float32 over the last axis; with `offset`, 1 + w for w."""

    eps: float
    axis: str
    offset: bool

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        fresh = nn.initializers.zeros if self.offset else nn.initializers.ones
        scale = self.param("scale", named(fresh, self.axis), (x.shape[-1],))
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + self.eps)
        return (wide * (1.0 + scale if self.offset else scale)).astype(x.dtype)


class Mlp(nn.Module):
    """The gated feed-forward layer."""

    config: ModelConfig
    lora: LoraSettings | None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        d, f = self.config.hidden, self.config.mlp
        gate = project(self, "gate", x, (d, f), ("embed", "mlp"), 1)
        up = project(self, "up", x, (d, f), ("embed", "mlp"), 1)
        return project(self, "down", nn.silu(gate) * up, (f, d), ("mlp", "embed"), 1)


def project(
    module: nn.Module,
    name: str,
    x: jax.Array,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    inputs: int,
) -> jax.Array:
    """x [B, T, in...] times the module's kernel `name` [in..., out...], plus its adapter's part.

    Args:
        module: has `config`, `lora`, and a name under which targets know it.
        axes: logical names of the kernel's axes.
        inputs: how many of the kernel's axes are contracted.
    """
    kernel = module.param(name, named(_normal(inputs), *axes), shape)
    y = _contract(x, kernel, inputs)
    lora: LoraSettings | None = module.lora
    if lora is None or not lora.on(str(module.name), name):
        return y

    def adapter(suffix: str, initialiser: Any, shape: tuple[int, ...], axes: tuple) -> jax.Array:
        def make() -> jax.Array:
            key = module.make_rng("params")
            return named(initialiser, *axes)(key, shape, jnp.float32)

        return module.variable("lora", f"{name}_{suffix}", make).value

    r = lora.rank
    low = (*axes[:inputs], "lora_rank"), ("lora_rank", *axes[inputs:])
    a = adapter("a", _normal(inputs), (*shape[:inputs], r), low[0])
    b = adapter("b", nn.initializers.zeros, (r, *shape[inputs:]), low[1])
    return y + _contract(_contract(x, a, inputs), b, 1) * jnp.asarray(lora.scale, y.dtype)


def named(initialiser: Any, *axes: str) -> Any:
    """The same initialiser, its result boxed with the logical names of its axes."""
    return nn.with_logical_partitioning(initialiser, axes)


def rotation(positions: jax.Array, config: ModelConfig) -> tuple[jax.Array, jax.Array]:
    """cos and sin [B, T, 1, R/2] of positions [B, T], in float32, with R = `rotary_dim`."""
    exponent = jnp.arange(0, config.rotary_dim, 2, dtype=jnp.float32) / config.rotary_dim
    angle = positions[:, :, None, None].astype(jnp.float32) * config.rope_theta**-exponent
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate the pairs (i, i + R/2) of the first R dimensions of x [B, T, heads, N] by position."""
    half = cos.shape[-1]
    wide = x.astype(jnp.float32)
    a, b = wide[..., :half], wide[..., half : 2 * half]
    turned = [a * cos - b * sin, b * cos + a * sin]
    return jnp.concatenate([*turned, wide[..., 2 * half :]], axis=-1).astype(x.dtype)


def _contract(x: jax.Array, kernel: jax.Array, inputs: int) -> jax.Array:
    """x [B, T, in...] times kernel [in..., out...], in the type of x."""
    axes = tuple(range(x.ndim - inputs, x.ndim)), tuple(range(inputs))
    return jax.lax.dot_general(x, kernel.astype(x.dtype), (axes, ((), ())))


def _normal(inputs: int) -> Any:
    """Normal with variance 1 / fan-in, for a kernel whose first `inputs` axes are contracted."""

    def initialise(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.normal(key, shape, dtype) * fan_in(shape, inputs)

    return initialise
