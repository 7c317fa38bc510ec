"""Tokenizers: text to ids and back.

Control tokens (turn borders, end of text) can never come out of encoding somebody's words.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol

import sentencepiece

from ibrl_jax.dialogue.hf_tokenizer import FILES, HFTokenizer
from ibrl_jax.errors import UserError

EMBEDDED: Mapping[str, str] = {"dond": "embedded", "telesales": "embedded-telesales"}
"""The name of the small tokenizer in the package that each domain's tiny policies have."""
_FILES = {"embedded": "tokenizer.model", "embedded-telesales": "tokenizer-telesales.model"}
SENTENCEPIECE = "tokenizer.model"
"""The sentencepiece model in a folder."""


class Tokenizer(Protocol):
    """Text to ids and back. `control(name)` is the id of a token that no text encodes to."""

    name: str
    """Where it is from, for a person."""
    files: Mapping[str, bytes]
    """What a policy's folder keeps of it: contents by file name."""
    vocab_size: int
    """Ids it knows; a network's embedding may have more."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control tokens and unknown ids have none."""
        ...

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """How to show each id to a person."""
        ...

    def control(self, name: str) -> int:
        """Raises UserError if there is no such control token."""
        ...


class SentencePieceTokenizer:
    """A sentencepiece model: turn borders are control symbols, unknown text falls back to bytes."""

    def __init__(self, model: bytes, *, name: str) -> None:
        self.name: str = name
        self.files: Mapping[str, bytes] = {SENTENCEPIECE: model}
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise UserError(
                f"{name} is not a sentencepiece model; `make tokenizer` trains one"
            ) from error
        self.vocab_size: int = self._processor.GetPieceSize()

    def encode(self, text: str) -> list[int]:
        return self._processor.EncodeAsIds(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.DecodeIds([int(i) for i in ids if i < self.vocab_size])

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [
            self._processor.IdToPiece(int(i)).replace("\u2581", " ") if i < self.vocab_size else ""
            for i in ids
        ]

    def control(self, name: str) -> int:
        index = self._processor.PieceToId(name)
        if not self._processor.IsControl(index):
            raise UserError(
                f"the tokenizer {self.name} has no control token {name}; "
                "`make tokenizer` trains one that does"
            )
        return index


def load_tokenizer(where: str) -> Tokenizer:
    """An embedded tokenizer, a sentencepiece file's, or that of a released model's folder.

    A folder's is its `tokenizer.json`; where it has none, its `tokenizer.model`.

    Raises:
        UserError: there is no tokenizer, or it cannot be read.
    """
    if where in _FILES:
        data = resources.files("ibrl_jax.dialogue").joinpath(_FILES[where]).read_bytes()
        return SentencePieceTokenizer(data, name=f"{where} in ibrl_jax")
    path = Path(where)
    if path.is_dir() and ((path / FILES[0]).is_file() or not (path / SENTENCEPIECE).is_file()):
        return HFTokenizer(path)
    file = path / SENTENCEPIECE if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"there is no tokenizer {where}; config.policy.tokenizer is {', '.join(_FILES)}, "
            "a sentencepiece file or a released model's folder"
        )
    try:
        return SentencePieceTokenizer(file.read_bytes(), name=str(file))
    except OSError as error:
        raise UserError(f"the tokenizer {file} cannot be read ({error.strerror})") from error


def check_fits(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises UserError if the tokenizer knows more ids than an embedding of `vocab_size` rows."""
    if tokenizer.vocab_size > vocab_size:
        raise UserError(
            f"the tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids and the network's "
            f"embedding {vocab_size} rows; a network needs a row for each id of its tokenizer"
        )


def fingerprint(tokenizer: Tokenizer) -> str:
    """A hash of the tokenizer's files, by name and content."""
    digest = hashlib.sha256()
    for name, content in sorted(tokenizer.files.items()):
        digest.update(f"{name}:{len(content)}:".encode() + content)
    return digest.hexdigest()
