"""The networks that the bench measures: random Qwen3 of three sizes, as Hugging Face folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ibrl_jax.models import hf_folder
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.hf_config import TokenIds
from ibrl_jax.models.params import init_params
from ibrl_jax.models.presets import preset


@dataclass(frozen=True, kw_only=True)
class Size:
    """A Qwen3 of about so many parameters."""

    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @property
    def network(self) -> ModelConfig:
        return preset(
            "qwen3_tiny",
            vocab_size=self.vocab,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            rotary_dim=self.head_dim,
            mlp=self.mlp,
        )


SIZES = {
    "0.1M": Size(vocab=640, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, mlp=192),
    "4M": Size(vocab=2048, hidden=256, layers=4, heads=4, kv_heads=2, head_dim=64, mlp=896),
    "25M": Size(vocab=4096, hidden=512, layers=6, heads=8, kv_heads=4, head_dim=64, mlp=2048),
}


def write_folder(folder: Path, size: str) -> None:
    """A Hugging Face folder of random weights in float32; nothing where there is one."""
    if folder.is_dir():
        return
    network = SIZES[size].network
    hf_folder.write(
        folder,
        network,
        init_params(network, 0),
        as_type=lambda path: np.float32,
        ids=TokenIds(bos=None, eos=(), pad=None),
        max_positions=4096,
        files={},
        max_shard=1 << 30,
    )
