"""Small random networks of the reference implementation (transformers, float32), and what it says.

Nothing in them is fresh: norms, biases and decays are drawn too, since fresh ones hide faults. The
last norm is scaled so that logits have a standard deviation of 1. What a network says of a row
is always what it says of that row alone, without padding and without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
import transformers

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_5")
DEVIATION = 1.0
LENGTHS = (21, 21, 13, 7, 2, 1)
"""Tokens of the rows of every case."""

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

_CLASSES = dict(llama="Llama", qwen2="Qwen2", qwen3="Qwen3", qwen3_5="Qwen3_5")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One network, and the rows that it is asked about."""

    family: str
    seed: int
    model: Any
    rows: Sequence[np.ndarray]  # ids [t] each
    weights: Sequence[np.ndarray]  # [2, t] each, of log-probabilities and entropies in the loss

    def save(self, folder: Path) -> None:
        """Write the folder that others would download."""
        self.model.save_pretrained(folder)

    def logits(self) -> list[np.ndarray]:
        """[t, V] of each row."""
        with torch.no_grad():
            return [_logits(self.model, ids).numpy() for ids in self.rows]

    def gradients(self, temperature: float) -> dict[str, np.ndarray]:
        """Of the loss with respect to every tensor, by its name.

            loss = sum_rows sum_t (w0[t] logp[t] + w1[t] entropy[t]) / tokens

        Both are of token t given those before it; a row's first token has neither.
        """
        total = torch.zeros(())
        for ids, weights in zip(self.rows, self.weights, strict=True):
            logp = torch.log_softmax(_logits(self.model, ids)[:-1] / temperature, dim=-1)
            picked = logp.gather(1, torch.from_numpy(ids[1:, None]))[:, 0]
            entropy = -(logp.exp() * logp).sum(-1)
            w = torch.from_numpy(weights[:, 1:])
            total = total + (w[0] * picked + w[1] * entropy).sum()
        self.model.zero_grad(set_to_none=True)
        (total / sum(LENGTHS)).backward()
        return {name: p.grad.numpy().copy() for name, p in self.model.named_parameters()}


def reference(family: str, seed: int) -> Reference:
    """The network of a family and seed."""
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    config = _config(family, seed, rng)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{_CLASSES[family]}ForCausalLM")(config).eval().float()
    rows = [rng.integers(0, config.vocab_size, t) for t in LENGTHS]
    weights = [rng.normal(size=(2, t)).astype(np.float32) for t in LENGTHS]
    slow = seed % 2 == 0  # hardly any decay: what leaks from one row into another stays
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = _values(family, name, tuple(parameter.shape), slow, rng)
            if "in_proj_qkv" in name or "conv1d" in name:
                _liken(values, config.linear_num_key_heads * config.linear_key_head_dim)
            parameter.copy_(torch.from_numpy(values))
        scale = DEVIATION / _logits(model, rows[0]).std()
        last = model.model.norm.weight
        last.copy_(scale * (1 + last) - 1 if family == "qwen3_5" else scale * last)
    return Reference(family=family, seed=seed, model=model, rows=rows, weights=weights)


def loaded(folder: Path, rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Logits [t, V] of each row by the network of a folder that somebody wrote."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    with torch.no_grad():
        return [_logits(model, ids).numpy() for ids in rows]


def _logits(model: Any, ids: np.ndarray) -> Any:
    return model(torch.from_numpy(ids)[None], use_cache=False).logits[0]


def _config(family: str, seed: int, rng: np.random.Generator) -> Any:
    """Sizes drawn; what has two values has each of them in one of any two or four seeds."""
    kv_heads = int(rng.choice([1, 2, 3]))
    heads = kv_heads * int(rng.choice([1, 2, 3]))
    head_dim = int(rng.choice([8, 16, 32]))
    theta = float(rng.choice([1e4, 5e5, 1e6, 1e7]))
    sizes: dict[str, Any] = dict(
        vocab_size=int(rng.integers(50, 90)),
        hidden_size=heads * (head_dim if family == "qwen2" else int(rng.choice([12, 16, 20]))),
        intermediate_size=int(rng.choice([40, 56, 72])),
        num_hidden_layers=int(rng.choice([1, 2, 3])),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=512,
        rms_norm_eps=(1e-6, 1e-5)[seed % 2],
        rope_parameters=dict(rope_type="default", rope_theta=theta),
        tie_word_embeddings=seed // 2 % 2 == 0,
        attn_implementation="eager",
    )
    if family == "qwen3_5":
        key_heads = int(rng.choice([1, 2, 3]))
        sizes |= dict(
            num_hidden_layers=(4, 8)[seed % 2],
            rope_parameters=dict(
                rope_type="default", rope_theta=theta, partial_rotary_factor=(0.25, 0.5)[seed % 2]
            ),
            linear_num_key_heads=key_heads,
            linear_num_value_heads=key_heads * int(rng.choice([1, 2])),
            linear_key_head_dim=int(rng.choice([16, 24])),
            linear_value_head_dim=int(rng.choice([8, 12])),
            linear_conv_kernel_dim=(4, 3)[seed // 2 % 2],
        )
        return transformers.Qwen3_5TextConfig(**sizes)
    if family == "qwen2":
        del sizes["head_dim"]  # it is hidden / heads there
    return getattr(transformers, f"{_CLASSES[family]}Config")(**sizes)


def _values(
    family: str, name: str, shape: tuple[int, ...], slow: bool, rng: np.random.Generator
) -> np.ndarray:
    noise = rng.normal(size=shape).astype(np.float32)
    if "norm" in name:
        from_zero = family == "qwen3_5" and "linear_attn" not in name
        return 0.3 * noise + (0.0 if from_zero else 1.0)
    if name.endswith("A_log"):
        return np.float32(np.log(0.05 if slow else 4.0)) + 0.3 * noise
    if name.endswith("dt_bias"):
        return 0.5 * noise - (0.0 if slow else 2.0)
    if name.endswith(("bias", "conv1d.weight")):
        return 0.5 * noise
    return noise * shape[-1] ** -0.5  # a kernel is [out, in]; the embedding's size is no matter


def _liken(values: np.ndarray, keys: int) -> None:
    """Make the rows of k somewhat like those of q, in place.

    A token's q and k that are nearly orthogonal make a state's first answer nearly nothing, which
    is then normalised: one bit in a weight would move logits by 1e-3, in the reference too.
    """
    values[keys : 2 * keys] = values[:keys] + 0.4 * values[keys : 2 * keys]
