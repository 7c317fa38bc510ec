"""`make models`: every preset with its sizes and its number of parameters."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.params import abstract_params, count_params
from ibrl_jax.models.presets import PRESETS, SCRATCH, preset

EMBEDDED_VOCABULARY = 640
"""Ids of the embedded tokenizer, which the presets that are trained from scratch come with."""


def family(config: ModelConfig) -> str:
    """The model family that a network belongs to."""
    if config.delta is not None:
        return "Qwen3.5"
    if config.qkv_bias:
        return "Qwen2.5"
    return "Qwen3" if config.qk_norm else "Llama"


def table() -> Table:
    """One row a preset; parameters are counted from the declarations, nothing is allocated."""
    columns = (
        "preset", "family", "parameters", "layers", "hidden", "heads", "head dim", "mlp",
        "vocabulary", "tied", "theta",
    )  # fmt: skip
    made = Table(box=None, pad_edge=False)
    for name in columns:
        made.add_column(name, justify="left" if name in columns[:2] else "right", no_wrap=True)
    for name in PRESETS:
        c = preset(name, **(dict(vocab_size=EMBEDDED_VOCABULARY) if name in SCRATCH else {}))
        made.add_row(
            name,
            family(c),
            three_digits(count_params(abstract_params(c))),
            str(c.layers),
            str(c.hidden),
            f"{c.heads}/{c.kv_heads}",
            str(c.head_dim),
            str(c.mlp),
            str(c.vocab_size),
            "yes" if c.tied else "no",
            f"{c.rope_theta:g}",
        )
    return made


def three_digits(count: int) -> str:
    """A number of parameters, such as `8.95 B`; exact below a million."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if count >= unit / 2:
            value = count / unit
            return f"{value:.{max(0, 3 - len(str(int(value))) + (value < 1))}f} {name}"
    return f"{count:,}"


if __name__ == "__main__":
    Console(width=140).print(table())
