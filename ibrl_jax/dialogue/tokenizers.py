"""Tokenizers: text to ids and back.

Control tokens (turn borders, end of text) can never come out of encoding somebody's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol

import sentencepiece

from ibrl_jax.errors import UserError

EMBEDDED = "embedded"


class Tokenizer(Protocol):
    """Text to ids and back. `control(name)` is the id of a token that no text encodes to."""

    model: bytes
    """What a policy's folder keeps of it."""
    vocab_size: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control tokens have none."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """How to show each id to a person."""
        ...

    def control(self, name: str) -> int: ...


class SentencePieceTokenizer:
    """A sentencepiece model: turn borders are control symbols, unknown text falls back to bytes."""

    def __init__(self, model: bytes, *, name: str) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(
                f"{name} is not a sentencepiece model; `make tokenizer` trains one"
            ) from error
        self._name = name
        self.vocab_size = self._processor.GetPieceSize()

    def encode(self, text: str) -> list[int]:
        return self._processor.EncodeAsIds(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.DecodeIds([int(i) for i in ids])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._processor.IdToPiece(int(i)).replace("\u2581", " ") for i in ids]

    def control(self, name: str) -> int:
        index = self._processor.PieceToId(name)
        if not self._processor.IsControl(index):
            raise UserError(
                f"the tokenizer {self._name} has no control token {name}; "
                "`make tokenizer` trains one that does"
            )
        return index


def load_tokenizer(path: str) -> SentencePieceTokenizer:
    """The tokenizer of a file, or the embedded one.

    Raises:
        UserError: the file is missing or no sentencepiece model.
    """
    if path == EMBEDDED:
        data = resources.files("ibrl_jax.dialogue").joinpath("tokenizer.model").read_bytes()
        return SentencePieceTokenizer(data, name="embedded in ibrl_jax")
    file = Path(path)
    if not file.is_file():
        raise UserError(
            f"there is no tokenizer {path}; config.policy.tokenizer is `embedded` or a file"
        )
    return SentencePieceTokenizer(file.read_bytes(), name=path)
