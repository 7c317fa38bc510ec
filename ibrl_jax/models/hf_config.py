"""A network from and to Hugging Face's `config.json`.

| model_type | family |
| --- | --- |
| `llama` | Llama |
| `qwen2` | Qwen2.5 |
| `qwen3` | Qwen3 |
| `qwen3_5` (its `text_config`), `qwen3_5_text` | Qwen3.5 |

A file says a network's sizes in the spelling of its day: `rope_theta` stands alone or inside
`rope_parameters`. What our decoder does not do (scaled rotary positions, llama3's included; sliding
windows; biases other than those of q, k, v) is refused, never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibrl_jax.errors import UserError
from ibrl_jax.models.config import DeltaConfig, ModelConfig

_KINDS = {"full_attention": "full", "linear_attention": "delta"}
_HEAD_DIM = {"qwen3": 128, "qwen3_5_text": 256}
"""Where a file may leave it out; the other families have hidden / heads."""
_THETA = 10_000.0  # what a file that names none means
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
}


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The ids that a model's configuration names."""

    bos: int | None
    eos: tuple[int, ...]
    """All that end what a model says, the usual one first."""
    pad: int | None

    def to_hf(self) -> dict[str, Any]:
        """As both of the folder's configurations say it."""
        eos = self.eos[0] if len(self.eos) == 1 else list(self.eos) or None
        return dict(bos_token_id=self.bos, eos_token_id=eos, pad_token_id=self.pad)


def network(
    source: Path | Mapping[str, Any],
    *,
    dtype: str,
    remat: bool,
    attention: str,
    attention_block: int,
    unroll: int | bool,
    chunk: int,
) -> ModelConfig:
    """The network of a folder, or of what its `config.json` says.

    Args:
        dtype, remat, attention, attention_block, unroll: as in `ModelConfig`.
        chunk: as in `DeltaConfig`, for a hybrid.

    Raises:
        UserError: there is no such file, it is broken, or it names what we do not have.
    """
    if isinstance(source, Path):
        file = _File(values=_load(source), where=str(source / "config.json"))
    else:
        file = _File(values=dict(source), where="The model's config.json")
    family, file = _family(file)
    _refuse_others(family, file)
    hybrid = family == "qwen3_5_text"
    hidden, layers = file.whole("hidden_size"), file.whole("num_hidden_layers")
    heads = file.whole("num_attention_heads")
    head_dim = file.whole("head_dim", _HEAD_DIM.get(family, hidden // max(1, heads)))
    theta, partial = _rotation(file, 0.25 if hybrid else 1.0)
    if not hybrid and partial != 1.0:
        raise UserError(
            f"{file.where} has a partial_rotary_factor of {partial}; of the families here "
            "only Qwen3.5 rotates a part of a head."
        )
    return ModelConfig(
        vocab_size=file.whole("vocab_size"),
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=file.whole("num_key_value_heads", heads if family == "llama" else None),
        head_dim=head_dim,
        mlp=file.whole("intermediate_size"),
        rope_theta=theta,
        norm_eps=file.number("rms_norm_eps", 1e-6),
        tied=file.flag("tie_word_embeddings", False),
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3_5_text"),
        period=_period(file, hybrid, layers),
        rotary_dim=int(head_dim * partial),
        attention_gate=hybrid,
        norm_offset=hybrid,
        delta=_delta(file, chunk) if hybrid else None,
        dtype=dtype,
        remat=remat,
        attention=attention,
        attention_block=attention_block,
        unroll=unroll,
    )


def to_hf(config: ModelConfig, *, ids: TokenIds, max_positions: int, dtype: str) -> dict[str, Any]:
    """A `config.json` that transformers loads as a text model.

    Args:
        max_positions: the longest sequence that the model is for.
        dtype: of the tensors beside it.

    Raises:
        UserError: no family has this combination of flags.
    """
    family = _family_of(config)
    rope = dict(rope_type="default", rope_theta=config.rope_theta)
    out: dict[str, Any] = dict(
        architectures=[_CLASSES[family]],
        model_type=family,
        dtype=dtype,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden,
        intermediate_size=config.mlp,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        hidden_act="silu",
        max_position_embeddings=max_positions,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied,
        rope_parameters=rope,
        rope_theta=config.rope_theta,
        use_cache=True,
        **ids.to_hf(),
    )
    if family != "qwen2":
        out |= dict(attention_bias=False)
    delta = config.delta
    if delta is not None:
        their = {ours: theirs for theirs, ours in _KINDS.items()}
        rope |= dict(partial_rotary_factor=config.rotary_dim / config.head_dim)
        out |= dict(
            layer_types=[their[kind] for kind in config.period] * config.periods,
            attn_output_gate=True,
            linear_num_key_heads=delta.key_heads,
            linear_num_value_heads=delta.value_heads,
            linear_key_head_dim=delta.key_dim,
            linear_value_head_dim=delta.value_dim,
            linear_conv_kernel_dim=delta.conv_kernel,
        )
    return out


@dataclass(frozen=True, kw_only=True)
class _File:
    """A configuration's values, read with a sentence for each that is not what it should be."""

    values: dict[str, Any]
    where: str

    def whole(self, name: str, otherwise: int | None = None) -> int:
        return self._read(name, otherwise, (int,), "a whole number")

    def number(self, name: str, otherwise: float | None = None) -> float:
        return float(self._read(name, otherwise, (int, float), "a number"))

    def flag(self, name: str, otherwise: bool) -> bool:
        return self._read(name, otherwise, (bool,), "true or false")

    def part(self, name: str) -> _File:
        """What stands in braces under a name; null and nothing are empty."""
        values = self._read(name, {}, (dict,), "an object")
        return _File(values=values, where=f"{self.where}'s '{name}'")

    def _read(self, name: str, otherwise: Any, kinds: Sequence[type], called: str) -> Any:
        value = self.values.get(name)
        if value is None:
            if otherwise is None:
                raise UserError(f"{self.where} lacks '{name}'.")
            return otherwise
        if not isinstance(value, tuple(kinds)) or (isinstance(value, bool) and bool not in kinds):
            raise UserError(f"{self.where} has '{name}': {value!r}; it must be {called}.")
        return value


def _load(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error.strerror}); a Hugging Face folder has one."
        ) from error
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}).") from error
    if not isinstance(values, dict):
        raise UserError(f"{file} holds no JSON object; a model's configuration is one.")
    return values


def _family(file: _File) -> tuple[str, _File]:
    """The text model's type, and what describes it."""
    family = file.values.get("model_type")
    if family == "qwen3_5":  # a model that sees images has a text model inside
        text = file.part("text_config")
        if not text.values:
            raise UserError(f"{file.where} lacks 'text_config', which a qwen3_5 model has.")
        outer = file.values.get("tie_word_embeddings")
        values = text.values | ({} if outer is None else dict(tie_word_embeddings=outer))
        return "qwen3_5_text", _File(values=values, where=text.where)
    if family not in _CLASSES:
        known = ", ".join((*_CLASSES, "qwen3_5"))
        raise UserError(f"{file.where} has the model_type {family!r}; known are {known}.")
    return family, file


def _refuse_others(family: str, file: _File) -> None:
    """What a family's configuration can ask for and our decoder has not."""
    activation = file.values.get("hidden_act", "silu")
    if activation != "silu":
        raise UserError(f"{file.where} has the hidden_act {activation!r}; only 'silu' is known.")
    for name in ("attention_bias", "mlp_bias", "use_sliding_window"):
        own = family == "qwen2" and name == "attention_bias"  # it has those of q, k, v always
        if file.flag(name, False) and not own:
            raise UserError(f"{file.where} sets '{name}', which is not supported.")
    if family == "qwen3_5_text" and not file.flag("attn_output_gate", True):
        raise UserError(f"{file.where} has no 'attn_output_gate', which is not supported.")


def _rotation(file: _File, partial: float) -> tuple[float, float]:
    """Theta and the rotated part of a head, `partial` where a file does not say it."""
    rope = file.part("rope_parameters")
    if not rope.values:
        rope = file.part("rope_scaling")
    kind = rope.values.get("rope_type", rope.values.get("type", "default"))
    if kind != "default":
        raise UserError(
            f"{rope.where} has the rotary positions {kind!r}; only 'default' is supported."
        )
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise UserError(f"{rope.where} differ from layer to layer, which is not supported.")
    theta = rope.number("rope_theta", file.number("rope_theta", _THETA))
    outer = file.number("partial_rotary_factor", partial)
    return theta, rope.number("partial_rotary_factor", outer)


def _period(file: _File, hybrid: bool, layers: int) -> tuple[str, ...]:
    """The shortest run of layers that the network repeats."""
    types = file.values.get("layer_types")
    if types is None:
        every = file.whole("full_attention_interval", 4) if hybrid else 1
        kinds = ["delta" if (i + 1) % every else "full" for i in range(layers)]
    else:
        if not isinstance(types, list) or len(types) != layers:
            raise UserError(
                f"{file.where} has 'layer_types' that are no list of num_hidden_layers, {layers}."
            )
        for kind in types:
            if kind not in _KINDS or (kind == "linear_attention" and not hybrid):
                raise UserError(
                    f"{file.where} has a layer of type {kind!r}, which is not supported."
                )
        kinds = [_KINDS[kind] for kind in types]
    for length in range(1, layers):
        if layers % length == 0 and kinds == kinds[:length] * (layers // length):
            return tuple(kinds[:length])
    return tuple(kinds)


def _delta(file: _File, chunk: int) -> DeltaConfig:
    return DeltaConfig(
        key_heads=file.whole("linear_num_key_heads"),
        value_heads=file.whole("linear_num_value_heads"),
        key_dim=file.whole("linear_key_head_dim"),
        value_dim=file.whole("linear_value_head_dim"),
        conv_kernel=file.whole("linear_conv_kernel_dim"),
        chunk=chunk,
    )


def _family_of(config: ModelConfig) -> str:
    """The family whose flags these are."""
    flags = config.qkv_bias, config.qk_norm, config.norm_offset, config.attention_gate
    families = {
        (False, False, False, False): "llama",
        (True, False, False, False): "qwen2",
        (False, True, False, False): "qwen3",
        (False, True, True, True): "qwen3_5_text",
    }
    family = families.get(flags)
    hybrid = family == "qwen3_5_text"
    if (
        family is None
        or hybrid != (config.delta is not None)
        or not (hybrid or config.rotary_dim == config.head_dim)
    ):
        raise UserError(
            "The model is of no family that transformers knows: its flags qkv_bias, qk_norm, "
            "norm_offset, attention_gate, its delta layers or its rotary_dim are of several."
        )
    return family
