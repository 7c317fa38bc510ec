"""`make tokenizer`: trains the small tokenizers of this project, one a domain, on synthetic text.

Turn borders are control symbols, which no text encodes to. What a protocol writes again and again
is single pieces (Deal-or-No-Deal: tags and item names; TeleSales: the keys, labels and scores of a
record, tool calls); whatever else occurs falls back to bytes, so any text survives a round trip.
In Deal-or-No-Deal every digit is a piece of its own; in TeleSales they go in pairs, and a number
below 300, a sum's thousands included, is one piece with the space before it. So a value is few
pieces, seldom alike, that stand next to the word that says whose it is, and easy to copy. The
words by which development customers ask for something are single pieces as well, up to an ending:
`▁accident` begins `▁accidents`.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_letters
from typing import Any

import sentencepiece

from ibrl_jax.config import default_config
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Domain
from ibrl_jax.domains.telesales.customer_words import WORDS as CUSTOMER_WORDS
from ibrl_jax.domains.telesales.labels import Behaviour, Stage
from ibrl_jax.domains.telesales.profiles.terms import Availability, VehicleCondition
from ibrl_jax.domains.telesales.record import CustomerRecord
from ibrl_jax.domains.telesales.tools import END_MARKER, Tool
from ibrl_jax.identity import generator
from ibrl_jax.trainer.teachers import converse, pair_of

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<try>", "</try>", "<selection>", "</selection>", "<disagree>", "<think>", "</think>")
WORDS = ("\n", "system", "user", "assistant", "\u2581count\u2581", "\u2581value\u2581")
PIECES = (
    *WORDS,
    *TAGS,
    *(f"\u2581{tag}" for tag in TAGS[:4]),
    *(f"\u2581item{i}=" for i in range(3)),
)
DIALOGUES = 2000
FAMILIES = ("competent", "reader", "hedger", "liar", "polite", "spammer", "rule_v1", "rule_mix")
"""TeleSales' speakers in the corpus: none of the held-out ones."""

DEVELOPMENT = ("rule_v1", "rule_mix")
"""TeleSales' customers whose questions' words are pieces."""

OUTPUT = Path(__file__).parents[1] / "dialogue"


def telesales_pieces() -> tuple[str, ...]:
    """What TeleSales writes again and again, with a mark in place of each space."""
    first, second, *numbers, last = CustomerRecord.model_fields
    keys = [f'{{"{first}": "', f'", "{second}": "', f'", "{numbers[0]}": ']
    keys += [f', "{name}": ' for name in numbers[1:]] + [f', "{last}": "', '"}']
    scores = sorted({str(round(n / 100, 2)) for n in range(-20, 101)})
    tools = [f"<call_function={tool}" for tool in Tool]
    pieces = [*keys, *Behaviour, *Stage, *scores, *(f"{n:02d}" for n in range(100))]
    pieces += [*map(str, range(10)), *(f" {n}" for n in range(1, 300))]  # " 0" begins a score
    pieces += [f",{n}00" for n in range(10)]  # the end of a sum
    pieces += [f" {label.word('en')}" for label in (*VehicleCondition, *Availability)]
    pieces += [f" {word}" for word in question_words()]
    pieces += [*tools, "(phone_number=", ")>", END_MARKER, "<think>", "</think>", *WORDS[:4]]
    return tuple(dict.fromkeys(str(piece).replace(" ", "\u2581") for piece in pieces))


def question_words() -> tuple[str, ...]:
    """Words of four letters or more in the English questions, without those that begin with one."""
    lines = [
        line
        for family in DEVELOPMENT
        for lines in CUSTOMER_WORDS[family]["en"].questions.values()
        for line in lines
    ]
    words = sorted({w for line in lines for w in re.findall(r"\b[a-z]{4,}\b", line)})
    return tuple(w for w in words if not any(w != v and w.startswith(v) for v in words))


def corpus(domains: Sequence[Domain], families: Sequence[str]) -> Iterator[str]:
    """Words of every prompt and of dialogues between the development families, text by text."""
    rng = generator(0, "tokenizer")
    for index in range(DIALOGUES):
        domain = domains[index % len(domains)]
        scenarios = domain.scenarios("train")
        scenario = scenarios[int(rng.integers(len(scenarios)))]
        pair = pair_of(domain, families, rng)
        first = domain.roles[index % len(domain.roles)]
        referee = converse(domain, scenario, pair, first, "tokenizer", index)
        if index < len(domains) or domain is domains[0]:  # a long prompt's words need be seen once
            for role in (first,) if domain.interchangeable else domain.roles:
                yield from domain.prompt(scenario, role).splitlines()
        yield from (turn.said for turn in referee.turns)


def train(texts: Iterator[str], pieces: Sequence[str], vocabulary: int, **more: Any) -> bytes:
    """A serialised sentencepiece model (byte-pair encoding, deterministic)."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=texts,
        model_writer=model,
        model_type="bpe",
        vocab_size=vocabulary,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        byte_fallback=True,
        control_symbols=list(CONTROL),
        user_defined_symbols=list(pieces),
        pad_id=-1,
        bos_id=-1,
        eos_id=-1,
        unk_id=0,
        minloglevel=2,
        hard_vocab_limit=False,
        **more,
    )
    return model.getvalue()


def dond() -> bytes:
    """Deal-or-No-Deal's: 640 pieces."""
    domains = []
    for prompt in ("short", "full"):
        config = default_config()
        config.dond.prompt = prompt
        config.dond.horizon_turns = 8
        domains.append(build_domain(config))
    return train(corpus(domains, config.sft.families), PIECES, 640)


def telesales() -> bytes:
    """TeleSales': 1,664 pieces, mostly English; rare Chinese characters are bytes."""
    domains = []
    for language in ("en", "en", "en", "zh"):
        for length in ("short",) if domains else ("short", "full"):
            config = default_config("telesales")
            config.telesales.language = language
            config.telesales.prompt_length = length
            config.telesales.train_profiles = 500
            domains.append(build_domain(config))
    rest = dict(character_coverage=0.98, required_chars=ascii_letters)
    return train(corpus(domains, FAMILIES), telesales_pieces(), 1664, **rest)


def main() -> int:
    for name, make in (("tokenizer.model", dond), ("tokenizer-telesales.model", telesales)):
        model = make()
        (OUTPUT / name).write_bytes(model)
        print(f"wrote {name}, {len(model)} bytes, into the package")
    return 0


if __name__ == "__main__":
    sys.exit(main())
