"""Folders like those of released models: a tiny byte-level tokenizer, a template, their configs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA3 = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
THOUGHT = ("<think>", "</think>")
JOINED = (("h", "i"), ("Ġ", "hi"), ("Ċ", "Ċ"), ("1", "2"))
"""Merges; a dot over G is a space, over C a line feed."""
SPLIT = r"\s*[\r\n]+| ?[^\s<>]+|[<>]|\s+"

PLAIN_TEMPLATE = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


def write_folder(
    folder: Path,
    *,
    special: Sequence[str] = CHATML,
    spelled: Sequence[str] = (),
    merges: Sequence[tuple[str, str]] = JOINED,
    template: str | None = PLAIN_TEMPLATE,
    config: Mapping[str, Any] | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """`special` and `spelled` are the added tokens, without and with a text of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocabulary, [(a, b) for a, b in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for names, silent in ((special, True), (spelled, False)):
        tokenizer.add_tokens([AddedToken(name, special=silent, normalized=False) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    files: dict[str, Mapping[str, Any] | None] = {
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        "config.json": config,
        "generation_config.json": generation,
    }
    for name, values in files.items():
        if values is not None:
            (folder / name).write_text(json.dumps(values))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
