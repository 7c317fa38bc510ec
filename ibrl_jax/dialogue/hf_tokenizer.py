"""A released model's tokenizer, read from its folder by transformers.

Two things are kept apart that a released tokenizer does in one:

```
words      -> ids     by its vocabulary, merges and splitting alone: an added token ("<|im_start|>",
                      "<think>") is spelled out like any other text, whoever writes it
templates  -> ids     `control` gives the id of an added token, and nothing else does
```

transformers is imported when a folder is read, so what needs no folder does not wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ibrl_jax.errors import UserError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
"""What of a folder is its tokenizer; the first must be there."""

THOUGHT = ("<think>", "</think>")
"""Added tokens that have a text whatever the folder says: a referee drops thoughts by them."""

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"


class HFTokenizer:
    """The tokenizer of a folder with a `tokenizer.json`. Nothing is fetched from anywhere.

    `vocab_size` is one more than the largest id it knows. A network's embedding may be padded
    beyond: such ids have no text.

    Raises:
        UserError: the folder has no `tokenizer.json`, or it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.name: str = str(folder)
        self.files: Mapping[str, bytes] = _files(folder)
        self._whole = _read(folder)
        backend = self._whole.backend_tokenizer
        self._backend = backend
        self._words = _without_added_tokens(backend)
        self.vocab_size: int = max(backend.get_vocab(with_added_tokens=True).values()) + 1
        added = backend.get_added_tokens_decoder()
        self._added: dict[str, int] = {token.content: index for index, token in added.items()}
        self._silent = {i for i, token in added.items() if token.special} - {
            self._added.get(name) for name in THOUGHT
        }
        self._kept_out = {i for i, token in added.items() if token.special or _tag(token.content)}
        self._bytes = "ByteLevel" in str(backend.decoder)

    def encode(self, text: str) -> list[int]:
        """Ids of somebody's words; none of them is a control token's."""
        return self._spell(text.encode("utf-8", "replace").decode())  # lone surrogates: no text

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids. Control tokens have none, a thought's borders do."""
        known = [int(i) for i in ids if i < self.vocab_size and i not in self._silent]
        return self._backend.decode(known, skip_special_tokens=False)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [self._piece(int(i)) for i in ids]

    def control(self, name: str) -> int:
        if name not in self._added:
            raise UserError(
                f"the tokenizer of {self.name} has no control token {name}; "
                "the chat format is one of another family"
            )
        return self._added[name]

    @property
    def has_template(self) -> bool:
        return bool(self._whole.chat_template)

    def templated(
        self, messages: Sequence[Mapping[str, str]], *, thinking: bool, ask: bool
    ) -> list[int]:
        """Ids of a dialogue as the folder's own chat template renders it.

        Args:
            thinking: what the template is told as `enable_thinking`.
            ask: whether the header of a next turn of the assistant follows.

        Raises:
            Exception: whatever the template raises, or ValueError where there is none.
        """
        return self._whole.apply_chat_template(
            [dict(message) for message in messages],
            tokenize=True,
            return_dict=False,
            add_generation_prompt=ask,
            enable_thinking=thinking,
        )

    def _spell(self, text: str) -> list[int]:
        """Cuts the text inside whatever its merges would join to a control token."""
        encoding = self._words.encode(text, add_special_tokens=False)
        for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if token in self._kept_out:
                if stop - start < 2:  # cannot be cut: an unknown letter, which has no id
                    return [i for i in encoding.ids if i not in self._kept_out]
                middle = (start + stop) // 2
                return self._spell(text[:middle]) + self._spell(text[middle:])
        return encoding.ids

    def _piece(self, index: int) -> str:
        token = self._backend.id_to_token(index)
        if token is None:
            return ""
        if token in self._added or not self._bytes:
            return token.replace("\u2581", " ")
        return self._backend.decode([index], skip_special_tokens=False)


def _files(folder: Path) -> dict[str, bytes]:
    try:
        found = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
    except OSError as error:
        raise UserError(
            f"{error.filename} cannot be read ({error.strerror}); it is part of the tokenizer"
        ) from error
    if FILES[0] not in found:
        raise UserError(
            f"{folder} holds no tokenizer; one is a folder with {FILES[0]} (transformers) "
            "or tokenizer.model (sentencepiece)"
        )
    return found


def _read(folder: Path) -> Any:
    """The folder's tokenizer exactly as its `tokenizer.json` has it.

    Not by `AutoTokenizer`: the classes of the families build splitting and normalising anew.
    """
    with _no_advice():
        from transformers import PreTrainedTokenizerFast
    try:
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the reader of a damaged file raises all kinds
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"the tokenizer of {folder} cannot be read ({why[:200]}); it may have been cut short"
        ) from error


@contextmanager
def _no_advice() -> Iterator[None]:
    """Without the advice to install torch, which no tokenizer needs."""
    before = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = before


def _without_added_tokens(backend: Any) -> Any:
    """The same vocabulary, merges and splitting; added tokens are no part of it."""
    from tokenizers import Tokenizer

    words = Tokenizer(backend.model)
    if backend.normalizer is not None:
        words.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        words.pre_tokenizer = backend.pre_tokenizer
    return words


def _tag(text: str) -> bool:
    return len(text) > 2 and text.startswith("<") and text.endswith(">")
