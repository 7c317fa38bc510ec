"""What a dense decoder is made of: sizes, the flags of its family, and how it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from ibrl_jax.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A dense decoder of the Llama, Qwen2.5 or Qwen3 family.

    | family | qkv_bias | qk_norm |
    | --- | --- | --- |
    | Llama | no | no |
    | Qwen2.5 | yes | no |
    | Qwen3 | no | yes |
    """

    vocab_size: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    """Heads of the keys and values; divides `heads`, and consecutive query heads share one."""
    head_dim: int
    mlp: int
    """Inner width of the gated feed-forward layer."""
    rope_theta: float
    norm_eps: float
    tied: bool
    """The output projection is the transposed embedding."""
    qkv_bias: bool
    qk_norm: bool
    """RMSNorm of each head's queries and keys, before the rotation."""
    dtype: str
    """Of matrix products and caches; parameters, norms, softmax and logits are float32 always."""
    remat: bool
    """Recompute each layer in the backward pass rather than keep its activations."""
    attention_block: int
    """Queries a block of training attention; 0: all at once (what a fused GPU kernel wants)."""
    unroll: int | bool
    """Layers a step of the scan over layers; True for all of them (a straight-line program)."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp"):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.heads % self.kv_heads:
            raise UserError(
                f"model.heads is {self.heads}; it must be a multiple of model.kv_heads, "
                f"{self.kv_heads}."
            )
        if self.head_dim % 2:
            raise UserError(
                f"model.head_dim is {self.head_dim}; rotary positions need an even number."
            )
        if self.dtype not in DTYPES:
            raise UserError(
                f"model.dtype is '{self.dtype}'; it must be one of {', '.join(DTYPES)}."
            )
