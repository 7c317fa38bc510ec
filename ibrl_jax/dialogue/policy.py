"""What a local policy is beside its parameters: a network, a tokenizer, a chat template."""

from __future__ import annotations

from dataclasses import dataclass

from ibrl_jax.dialogue.chat import ChatTemplate
from ibrl_jax.dialogue.tokenizers import Tokenizer
from ibrl_jax.models.decoder import Decoder


@dataclass(frozen=True, kw_only=True)
class Speech:
    """How parameters of one shape become utterances and utterances become tokens."""

    model: Decoder
    tokenizer: Tokenizer
    chat: ChatTemplate
