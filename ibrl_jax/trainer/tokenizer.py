"""`make tokenizer`: trains the small tokenizer of this project, from the synthetic corpus.

Turn borders are control symbols, which no text encodes to. The protocol's tags, the item names and
the line feed are single pieces; every digit is a piece of its own; whatever else occurs falls back
to bytes, so any text survives a round trip.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import sentencepiece

from ibrl_jax.config import default_config
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Domain
from ibrl_jax.identity import generator
from ibrl_jax.trainer.teachers import converse

VOCABULARY = 640
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
OUTPUT = Path(__file__).parents[1] / "dialogue" / "tokenizer.model"


def corpus(domains: list[Domain], families: tuple[str, ...]) -> Iterator[str]:
    """Words of every prompt and of dialogues between the development negotiators, text by text."""
    rng = generator(0, "tokenizer")
    for index in range(DIALOGUES):
        domain = domains[index % len(domains)]
        scenarios = domain.scenarios("train")
        scenario = scenarios[int(rng.integers(len(scenarios)))]
        pair = [str(family) for family in rng.choice(families, len(domain.roles))]
        first = domain.roles[index % len(domain.roles)]
        referee = converse(
            domain, scenario, dict(zip(domain.roles, pair, strict=True)), first, "tokenizer", index
        )
        if index < len(domains) or domain is domains[0]:  # a long prompt's words need be seen once
            yield from domain.prompt(scenario, first).splitlines()
        yield from (turn.text for turn in referee.turns)


def train(texts: Iterator[str]) -> bytes:
    """A serialised sentencepiece model (byte-pair encoding, deterministic)."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=texts,
        model_writer=model,
        model_type="bpe",
        vocab_size=VOCABULARY,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        byte_fallback=True,
        control_symbols=list(CONTROL),
        user_defined_symbols=list(PIECES),
        pad_id=-1,
        bos_id=-1,
        eos_id=-1,
        unk_id=0,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    return model.getvalue()


def main() -> int:
    domains = []
    for prompt in ("short", "full"):
        config = default_config()
        config.dond.prompt = prompt
        config.dond.horizon_turns = 8
        domains.append(build_domain(config))
    model = train(corpus(domains, config.sft.families))
    OUTPUT.write_bytes(model)
    print(f"wrote a tokenizer of {VOCABULARY} pieces at most, {len(model)} bytes, into the package")
    return 0


if __name__ == "__main__":
    sys.exit(main())
