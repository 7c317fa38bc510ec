"""Sizes by name: those that a CPU trains from scratch, and released ones of each family.

>>> preset("qwen3_4b", remat=False).hidden
2560
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ibrl_jax.errors import UserError
from ibrl_jax.models.config import DeltaConfig, ModelConfig

# How it is compiled: a small one as straight-line fp32 code, a large one as a scan in bf16.
SMALL: dict[str, Any] = dict(
    dtype="float32", remat=False, attention="xla", attention_block=32, unroll=True
)
LARGE: dict[str, Any] = dict(
    dtype="bfloat16", remat=True, attention="auto", attention_block=0, unroll=1
)

LARGE_CHUNK = 64
"""Positions a chunk of the delta rule in a large network: a guess at what an accelerator likes."""

_DENSE: dict[str, Any] = dict(
    period=("full",), attention_gate=False, norm_offset=False, delta=None, norm_eps=1e-6
)
_LLAMA: dict[str, Any] = _DENSE | dict(qkv_bias=False, qk_norm=False)
_QWEN2_5: dict[str, Any] = _DENSE | dict(
    qkv_bias=True, qk_norm=False, vocab_size=151936, rope_theta=1e6
)
_QWEN3: dict[str, Any] = _DENSE | dict(
    qkv_bias=False, qk_norm=True, vocab_size=151936, rope_theta=1e6
)
_QWEN3_5: dict[str, Any] = dict(
    period=("delta", "delta", "delta", "full"),
    attention_gate=True,
    norm_offset=True,
    qkv_bias=False,
    qk_norm=True,
    vocab_size=248320,
    rope_theta=1e7,
    norm_eps=1e-6,
    rotary_dim=64,
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
    values: dict[str, Any] = dict(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=mlp,
        tied=tied,
        rotary_dim=head_dim,
    )
    return ModelConfig(**values | rest)


def _delta(value_heads: int) -> DeltaConfig:
    """The linear layers of the released Qwen3.5."""
    return DeltaConfig(
        key_heads=16,
        value_heads=value_heads,
        key_dim=128,
        value_dim=128,
        conv_kernel=4,
        chunk=LARGE_CHUNK,
    )


def qwen3_micro(vocab_size: int) -> ModelConfig:
    """The smallest Qwen3 in which every mechanism is present; for tests."""
    return _size(32, 2, 4, 2, 16, 64, tied=True, **_QWEN3 | SMALL | dict(vocab_size=vocab_size))


def qwen3_tiny(vocab_size: int) -> ModelConfig:
    """About 150 thousand parameters; learns the Deal-or-No-Deal protocol on one CPU core."""
    return _size(64, 2, 4, 2, 32, 192, tied=True, **_QWEN3 | SMALL | dict(vocab_size=vocab_size))


def qwen3_5_micro(vocab_size: int) -> ModelConfig:
    """The smallest Qwen3.5 in which every mechanism is present; for tests."""
    delta = DeltaConfig(key_heads=2, value_heads=4, key_dim=8, value_dim=8, conv_kernel=4, chunk=16)
    rest = _QWEN3_5 | SMALL | dict(vocab_size=vocab_size, rotary_dim=4, delta=delta)
    return _size(32, 4, 4, 2, 16, 64, tied=True, **rest)


def qwen3_5_tiny(vocab_size: int) -> ModelConfig:
    """The hybrid at the size of `qwen3_tiny`, for a CPU."""
    delta = DeltaConfig(
        key_heads=2, value_heads=4, key_dim=16, value_dim=16, conv_kernel=4, chunk=16
    )
    rest = _QWEN3_5 | SMALL | dict(vocab_size=vocab_size, rotary_dim=8, delta=delta)
    return _size(64, 4, 4, 2, 32, 192, tied=True, **rest)


def smollm2_135m() -> ModelConfig:
    """SmolLM2-135M, of the Llama family."""
    rest = _LLAMA | LARGE | dict(vocab_size=49152, rope_theta=1e5, norm_eps=1e-5)
    return _size(576, 30, 9, 3, 64, 1536, tied=True, **rest)


def qwen2_5_0_5b() -> ModelConfig:
    """Qwen2.5-0.5B."""
    return _size(896, 24, 14, 2, 64, 4864, tied=True, **_QWEN2_5 | LARGE)


def qwen2_5_1_5b() -> ModelConfig:
    """Qwen2.5-1.5B."""
    return _size(1536, 28, 12, 2, 128, 8960, tied=True, **_QWEN2_5 | LARGE)


def qwen2_5_3b() -> ModelConfig:
    """Qwen2.5-3B."""
    return _size(2048, 36, 16, 2, 128, 11008, tied=True, **_QWEN2_5 | LARGE)


def qwen2_5_7b() -> ModelConfig:
    """Qwen2.5-7B."""
    rest = _QWEN2_5 | LARGE | dict(vocab_size=152064)
    return _size(3584, 28, 28, 4, 128, 18944, tied=False, **rest)


def qwen3_0_6b() -> ModelConfig:
    """Qwen3-0.6B."""
    return _size(1024, 28, 16, 8, 128, 3072, tied=True, **_QWEN3 | LARGE)


def qwen3_1_7b() -> ModelConfig:
    """Qwen3-1.7B."""
    return _size(2048, 28, 16, 8, 128, 6144, tied=True, **_QWEN3 | LARGE)


def qwen3_4b() -> ModelConfig:
    """Qwen3-4B as first released; the 2507 editions differ in `rope_theta` alone, 5e6."""
    return _size(2560, 36, 32, 8, 128, 9728, tied=True, **_QWEN3 | LARGE)


def qwen3_8b() -> ModelConfig:
    """Qwen3-8B."""
    return _size(4096, 36, 32, 8, 128, 12288, tied=False, **_QWEN3 | LARGE)


def qwen3_5_0_8b() -> ModelConfig:
    """The text model of Qwen3.5-0.8B."""
    return _size(1024, 24, 8, 2, 256, 3584, tied=True, delta=_delta(16), **_QWEN3_5 | LARGE)


def qwen3_5_2b() -> ModelConfig:
    """The text model of Qwen3.5-2B."""
    return _size(2048, 24, 8, 2, 256, 6144, tied=True, delta=_delta(16), **_QWEN3_5 | LARGE)


def qwen3_5_4b() -> ModelConfig:
    """The text model of Qwen3.5-4B, the smaller of the paper's two."""
    return _size(2560, 32, 16, 4, 256, 9216, tied=True, delta=_delta(32), **_QWEN3_5 | LARGE)


def qwen3_5_9b() -> ModelConfig:
    """The text model of Qwen3.5-9B, the larger of the paper's two."""
    return _size(4096, 32, 16, 4, 256, 12288, tied=False, delta=_delta(32), **_QWEN3_5 | LARGE)


_NEED_VOCAB: dict[str, Callable[[int], ModelConfig]] = {
    f.__name__: f for f in (qwen3_micro, qwen3_tiny, qwen3_5_micro, qwen3_5_tiny)
}
_RELEASED: dict[str, Callable[[], ModelConfig]] = {
    f.__name__: f
    for f in (
        smollm2_135m,
        qwen2_5_0_5b,
        qwen2_5_1_5b,
        qwen2_5_3b,
        qwen2_5_7b,
        qwen3_0_6b,
        qwen3_1_7b,
        qwen3_4b,
        qwen3_8b,
        qwen3_5_0_8b,
        qwen3_5_2b,
        qwen3_5_4b,
        qwen3_5_9b,
    )
}
SCRATCH = tuple(_NEED_VOCAB)
"""The presets that are trained from scratch; they take their vocabulary from the tokenizer."""

PRESETS = (*SCRATCH, *_RELEASED)
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
