"""What tests of a run on TeleSales stand on: the smoke config, the small tokenizer, teachers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.config import load
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.tokenizers import load_tokenizer

ROOT = Path(__file__).parents[2]
SMOKE = str(ROOT / "configs" / "telesales" / "smoke.py")
TOKENIZER = load_tokenizer("embedded-telesales")
SPEECH: Any = SimpleNamespace(tokenizer=TOKENIZER, chat=ChatML(TOKENIZER))
FAMILIES = ("competent", "rule_v1")


def smoke(*options: str) -> ConfigDict:
    return load(SMOKE, [f"--config.{option}" for option in options])
