"""What starts learn from, what they are tuned by and what is held out have no words in common."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import pytest

from ibrl_jax.domains.telesales.cues import asked
from ibrl_jax.domains.telesales.customer_words import WORDS
from ibrl_jax.domains.telesales.customers import FAMILIES, customer, framed
from ibrl_jax.domains.telesales.labels import LANGUAGES, Language
from ibrl_jax.domains.telesales.profiles.generate import training_profiles
from ibrl_jax.domains.telesales.profiles.pools import load_pool
from ibrl_jax.domains.telesales.scenarios import make_scenario
from ibrl_jax.trainer.tokenizer import DEVELOPMENT, question_words
from ibrl_jax.trainer.tokenizer import FAMILIES as FAMILIES_OF_THE_CORPUS
from tests.telesales.smoke import TOKENIZER

LEARNED, TUNED, HELD_OUT = "rule_mix", "rule_dev", "rule_v2"
SHARED = {"en": 4, "zh": 5}
"""So many words (characters) in a row must not be in common."""


def words(line: str, language: Language) -> list[str]:
    bare = line.lower().replace("{number}", " ")
    return re.findall(r"[\w']+" if language == "en" else r"\w", bare)


def sequences(lines: Iterable[str], language: Language) -> set[tuple[str, ...]]:
    n = SHARED[language]
    found = (words(line, language) for line in lines)
    return {tuple(said[i : i + n]) for said in found for i in range(len(said) - n + 1)}


def evaluation_questions(language: Language) -> list[str]:
    """What customers of evaluation profiles ask in words of their own."""
    objections = load_pool("evaluation").objections.values()
    return [question[language] for objection in objections for question in objection.questions]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("family", [LEARNED, TUNED])
def test_held_out_customers_say_nothing_that_others_say(family, language):
    ours = WORDS[family][language].all()
    theirs = (*WORDS[HELD_OUT][language].all(), *evaluation_questions(language))
    plain = {tuple(words(line, language)) for line in ours}
    assert not plain & {tuple(words(line, language)) for line in theirs}
    assert not sequences(ours, language) & sequences(theirs, language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_start_is_tuned_by_sentences_that_it_has_not_met(language):
    met = (*WORDS[LEARNED][language].all(), *WORDS["rule_v1"][language].all())
    tuned = WORDS[TUNED][language]
    assert not set(met) & set(tuned.all())
    assert not sequences(met, language) & sequences(tuned.asks(), language)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_frame_changes_nothing_about_what_is_asked(language):
    phrases = WORDS[LEARNED][language]
    assert len(phrases.frames) > 5
    for category, lines in phrases.questions.items():
        for frame in phrases.frames:
            assert asked(framed(frame, lines[-1]), language) is category, frame


def test_what_follows_something_begins_small():
    assert framed("And {}", "Is it on sale?") == "And is it on sale?"
    assert framed("And {}", "I'd like a loan.") == "And I'd like a loan."
    assert framed("{} Be honest.", "Is it on sale?") == "Is it on sale? Be honest."


def test_customers_of_the_mixed_family_are_no_two_alike():
    scenario = make_scenario(training_profiles(3, 1, "en")[0])
    people = [
        customer(LEARNED, scenario, np.random.default_rng(seed), score_step=0.01)
        for seed in range(30)
    ]
    for trait in ("willingness", "trust", "answered", "refusals", "out_of_patience", "shuffled"):
        assert len({getattr(person.family, trait) for person in people}) > 1, trait
    category = people[0].persona.concerns[0]
    said = {person._question(category) for person in people}
    assert len(said) > 10
    assert all(asked(line, "en") is category for line in said)


def test_families_of_one_wording_have_no_frames():
    for family in set(FAMILIES) - {LEARNED}:
        assert not FAMILIES[family].drawn
        assert not any(WORDS[family][language].frames for language in LANGUAGES)


def test_the_words_of_questions_that_a_start_learns_from_are_single_pieces():
    assert HELD_OUT not in (*DEVELOPMENT, *FAMILIES_OF_THE_CORPUS)
    assert TUNED not in (*DEVELOPMENT, *FAMILIES_OF_THE_CORPUS)
    found = question_words()
    assert {"odometer", "warranty", "damage"} <= set(found)
    assert "damaged" not in found
    assert all(len(TOKENIZER.encode(f" {word}")) == 1 for word in found)
