"""Sizes by name: two that a CPU trains from scratch, and released Llama, Qwen2.5 and Qwen3 sizes.

>>> preset("qwen3_4b", remat=False).hidden
2560
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ibrl_jax.errors import UserError
from ibrl_jax.models.config import ModelConfig

# How it is compiled: a small one as straight-line fp32 code, a large one as a scan in bf16.
_SMALL: dict[str, Any] = dict(dtype="float32", remat=False, attention_block=64, unroll=True)
_LARGE: dict[str, Any] = dict(dtype="bfloat16", remat=True, attention_block=0, unroll=1)

_LLAMA: dict[str, Any] = dict(qkv_bias=False, qk_norm=False)
_QWEN25: dict[str, Any] = dict(
    qkv_bias=True, qk_norm=False, vocab_size=151936, rope_theta=1e6, norm_eps=1e-6
)
_QWEN3: dict[str, Any] = dict(
    qkv_bias=False, qk_norm=True, vocab_size=151936, rope_theta=1e6, norm_eps=1e-6
)


def _size(
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    mlp: int,
    *,
    tied: bool,
    **rest: Any,
) -> ModelConfig:
    return ModelConfig(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=mlp,
        tied=tied,
        **rest,
    )


def qwen3_micro(vocab_size: int) -> ModelConfig:
    """The smallest Qwen3 in which every mechanism is present; for tests."""
    return _size(32, 2, 4, 2, 16, 64, tied=True, **_QWEN3 | _SMALL | dict(vocab_size=vocab_size))


def qwen3_tiny(vocab_size: int) -> ModelConfig:
    """About 150 thousand parameters; learns the Deal-or-No-Deal protocol on one CPU core."""
    return _size(64, 2, 4, 2, 32, 192, tied=True, **_QWEN3 | _SMALL | dict(vocab_size=vocab_size))


def smollm2_135m() -> ModelConfig:
    """SmolLM2-135M, of the Llama family."""
    rest = _LLAMA | _LARGE | dict(vocab_size=49152, rope_theta=1e5, norm_eps=1e-5)
    return _size(576, 30, 9, 3, 64, 1536, tied=True, **rest)


def qwen25_0b5() -> ModelConfig:
    """Qwen2.5-0.5B."""
    return _size(896, 24, 14, 2, 64, 4864, tied=True, **_QWEN25 | _LARGE)


def qwen25_1b5() -> ModelConfig:
    """Qwen2.5-1.5B."""
    return _size(1536, 28, 12, 2, 128, 8960, tied=True, **_QWEN25 | _LARGE)


def qwen25_3b() -> ModelConfig:
    """Qwen2.5-3B."""
    return _size(2048, 36, 16, 2, 128, 11008, tied=True, **_QWEN25 | _LARGE)


def qwen25_7b() -> ModelConfig:
    """Qwen2.5-7B."""
    rest = _QWEN25 | _LARGE | dict(vocab_size=152064)
    return _size(3584, 28, 28, 4, 128, 18944, tied=False, **rest)


def qwen3_0b6() -> ModelConfig:
    """Qwen3-0.6B."""
    return _size(1024, 28, 16, 8, 128, 3072, tied=True, **_QWEN3 | _LARGE)


def qwen3_1b7() -> ModelConfig:
    """Qwen3-1.7B."""
    return _size(2048, 28, 16, 8, 128, 6144, tied=True, **_QWEN3 | _LARGE)


def qwen3_4b() -> ModelConfig:
    """Qwen3-4B as first released; the 2507 editions differ in `rope_theta` alone, 5e6."""
    return _size(2560, 36, 32, 8, 128, 9728, tied=True, **_QWEN3 | _LARGE)


def qwen3_8b() -> ModelConfig:
    """Qwen3-8B."""
    return _size(4096, 36, 32, 8, 128, 12288, tied=False, **_QWEN3 | _LARGE)


_NEED_VOCAB: dict[str, Callable[[int], ModelConfig]] = {
    f.__name__: f for f in (qwen3_micro, qwen3_tiny)
}
_RELEASED: dict[str, Callable[[], ModelConfig]] = {
    f.__name__: f
    for f in (
        smollm2_135m,
        qwen25_0b5,
        qwen25_1b5,
        qwen25_3b,
        qwen25_7b,
        qwen3_0b6,
        qwen3_1b7,
        qwen3_4b,
        qwen3_8b,
    )
}
PRESETS = (*_NEED_VOCAB, *_RELEASED)
"""Every name that `preset` knows."""


def preset(name: str, **overrides: Any) -> ModelConfig:
    """The size `name`, with any of its fields replaced. The from-scratch sizes need `vocab_size`.

    Raises:
        UserError: for a name or field that does not exist, or a missing `vocab_size`.
    """
    if name not in PRESETS:
        raise UserError(f"There is no model preset '{name}'; known are {', '.join(PRESETS)}.")
    unknown = overrides.keys() - ModelConfig.__dataclass_fields__.keys()
    if unknown:
        raise UserError(f"A model has no field '{min(unknown)}', which preset '{name}' was given.")
    if name in _RELEASED:
        return replace(_RELEASED[name](), **overrides)
    if "vocab_size" not in overrides:
        raise UserError(f"Model preset '{name}' needs vocab_size, the tokenizer's number of ids.")
    return replace(_NEED_VOCAB[name](overrides["vocab_size"]), **overrides)
