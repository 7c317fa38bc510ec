"""What a decoder is made of: sizes, the flags of its family, and how it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from ibrl_jax.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")
KINDS = ("full", "delta")
ATTENTION = ("auto", "xla", "cudnn")


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """The Gated DeltaNet layers of a hybrid."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`; consecutive value heads share a key head."""
    key_dim: int
    value_dim: int
    conv_kernel: int
    """Taps of the causal convolution, the token's own included."""
    chunk: int
    """Positions that the chunked form takes at once."""

    def __post_init__(self) -> None:
        for name in ("key_heads", "value_heads", "key_dim", "value_dim", "conv_kernel", "chunk"):
            if getattr(self, name) < 1:
                raise UserError(f"delta.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.value_heads % self.key_heads:
            raise UserError(
                f"delta.value_heads is {self.value_heads}; it must be a multiple of "
                f"delta.key_heads, {self.key_heads}."
            )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of the Llama, Qwen2.5, Qwen3 or Qwen3.5 family.

    | family | period | qkv_bias | qk_norm | norm_offset | attention_gate |
    | --- | --- | --- | --- | --- | --- |
    | Llama | full | no | no | no | no |
    | Qwen2.5 | full | yes | no | no | no |
    | Qwen3 | full | no | yes | no | no |
    | Qwen3.5 | delta, delta, delta, full | no | yes | yes | yes |
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
    period: tuple[str, ...]
    """Kinds of consecutive layers, `full` or `delta`, repeated through the network."""
    rotary_dim: int
    """Leading dimensions of a head that are rotated by position."""
    attention_gate: bool
    """A head's query kernel makes a gate too; the head's output is times its sigmoid."""
    norm_offset: bool
    """RMSNorm scales by 1 + w rather than w."""
    delta: DeltaConfig | None
    """Of the `delta` layers, where there are any."""
    dtype: str
    """Of matrix products and caches; parameters, norms, softmax and logits are float32 always."""
    remat: bool
    """Recompute each period in the backward pass rather than keep its activations."""
    attention: str
    """Kernel of training attention: `cudnn` (GPUs, 16 bits), `xla`, or `auto`."""
    attention_block: int
    """Queries a block of training attention; 0: all at once (what a fused GPU kernel wants)."""
    unroll: int | bool
    """Periods a step of the scan over them; True for all of them (a straight-line program)."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden", "layers", "heads", "kv_heads", "head_dim", "mlp"):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name} is {getattr(self, name)}; it must be at least 1.")
        if self.heads % self.kv_heads:
            raise UserError(
                f"model.heads is {self.heads}; it must be a multiple of model.kv_heads, "
                f"{self.kv_heads}."
            )
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise UserError(
                f"model.rotary_dim is {self.rotary_dim}; rotary positions need an even number of "
                f"at most model.head_dim, {self.head_dim}."
            )
        if not self.period or self.layers % len(self.period):
            raise UserError(
                f"model.period has {len(self.period)} layers; it must divide model.layers, "
                f"{self.layers}."
            )
        for kind in self.period:
            if kind not in KINDS:
                raise UserError(f"model.period has '{kind}'; a layer is {' or '.join(KINDS)}.")
        if "full" not in self.period:
            raise UserError("model.period has no full layer; a network needs at least one.")
        if ("delta" in self.period) != (self.delta is not None):
            raise UserError("model.delta must be given just where model.period has delta layers.")
        for name, known in (("dtype", DTYPES), ("attention", ATTENTION)):
            if getattr(self, name) not in known:
                raise UserError(
                    f"model.{name} is '{getattr(self, name)}'; it must be one of "
                    f"{', '.join(known)}."
                )

    @property
    def periods(self) -> int:
        """How often the period is repeated: the length of a stacked parameter."""
        return self.layers // len(self.period)

    def kind(self, layer: int) -> str:
        """The kind of a layer, `full` or `delta`."""
        return self.period[layer % len(self.period)]
