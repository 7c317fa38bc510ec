"""Claims, topics and cues are found where they are said, in both languages, and nowhere else."""

from __future__ import annotations

import time
from itertools import combinations

import pytest

from ibrl_jax.domains.telesales.cues import C, arabic, asked, cues, read
from ibrl_jax.domains.telesales.customer_words import WORDS
from ibrl_jax.domains.telesales.labels import LANGUAGES, Language
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.pools import load_pool
from ibrl_jax.domains.telesales.profiles.schema import fact, lead_record
from ibrl_jax.domains.telesales.profiles.terms import Category
from ibrl_jax.domains.telesales.rubric import agrees
from ibrl_jax.domains.telesales.seller_words import WORDS as SELLER_WORDS
from ibrl_jax.domains.telesales.sellers import spoken
from ibrl_jax.domains.telesales.wording import vehicle_text


def said(words: str, language: Language) -> list[tuple[str, float | str]]:
    return [(str(claim.category), claim.value) for claim in read(words, language).claims]


@pytest.mark.parametrize(
    "words, claims",
    [
        ("这台车标价12.8万，检测报告上都有。", [("price", 128_000)]),
        ("标价十二万八，手续费大概三千块。", [("price", 128_000), ("fees", 3_000)]),
        ("表显三万二千公里。", [("mileage", 32_000)]),
        ("表显3.2万公里", [("mileage", 32_000)]),
        ("质保还剩一年", [("warranty", 12)]),
        ("车已经过保了", [("warranty", 0)]),
        ("一共两任车主", [("ownership", 2)]),
        ("电池健康度92%", [("battery", 92)]),
        ("首付三成", [("finance", 30)]),
        ("没有事故", [("condition", "clean")]),
        ("有过碰撞维修记录", [("condition", "repaired")]),
        ("目前在售", [("availability", "on_sale")]),
        ("车停在杭州", [("remote", "杭州")]),
        ("您预算15到20万对吧？", []),
        ("是否在售暂时没有记录", []),
        ("您想了解价格还是里程？", []),
    ],
)
def test_claims_in_chinese(words, claims):
    assert said(words, "zh") == claims


@pytest.mark.parametrize(
    "words, claims",
    [
        ("It's listed at 128,000 yuan.", [("price", 128_000)]),
        ("The price is RMB 128,000", [("price", 128_000)]),
        ("The fees are 3,500 yuan in all.", [("fees", 3_500)]),
        ("The mileage is 32,000 km.", [("mileage", 32_000)]),
        ("It has 18 months of warranty left.", [("warranty", 18)]),
        ("The warranty has expired.", [("warranty", 0)]),
        ("It had two previous owners.", [("ownership", 2)]),
        ("Battery health is 92 percent.", [("battery", 92)]),
        ("The down payment is 30%.", [("finance", 30)]),
        ("It was repaired after a collision", [("condition", "repaired")]),
        ("The car is in Hangzhou.", [("remote", "Hangzhou")]),
        ("Your budget is 150,000 to 200,000 yuan, right?", []),
        ("What price did you have in mind?", []),
    ],
)
def test_claims_in_english(words, claims):
    assert said(words, "en") == claims


@pytest.mark.parametrize(
    "spoken_number, figures",
    [
        ("十二万八元", "128000元"),
        ("三千五块", "3500块"),
        ("一百零五元", "105元"),
        ("百分之九十二", "92%"),
        ("三点二万公里", "3.2万公里"),
    ],
)
def test_spoken_numbers_become_figures(spoken_number, figures):
    assert arabic(spoken_number, "zh") == figures


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_registered_value_is_found_in_the_sellers_words(language):
    for profile in evaluation_profiles(5, 40, "sampled", language):
        lead = lead_record(profile)
        for category, lines in SELLER_WORDS[language].facts.items():
            value = fact(lead, category)
            if value is None:
                continue
            for line in lines:
                words = line.format(value=spoken(category, value, language))
                found = read(words, language).claims
                assert [claim.category for claim in found] == [category], words
                assert agrees(found[0], lead), words


@pytest.mark.parametrize("language", LANGUAGES)
def test_values_in_the_prompts_own_wording_agree_with_the_record(language):
    for profile in evaluation_profiles(6, 40, "sampled", language):
        lead = lead_record(profile)
        for claim in read(vehicle_text(lead.vehicle, language), language).claims:
            assert agrees(claim, lead), claim


@pytest.mark.parametrize("family", WORDS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_customers_questions_are_read_as_what_they_ask(family, language):
    phrases = WORDS[family][language]
    questions = phrases.asks()
    for line in phrases.all():
        assert asked(line, language) is questions.get(line), line


@pytest.mark.parametrize("pool", ["training", "evaluation"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_questions_of_the_profiles_are_read_as_what_they_ask(pool, language):
    for category, objection in load_pool(pool).objections.items():
        for question in objection.questions:
            assert asked(question[language], language) is category, question[language]


@pytest.mark.parametrize("family", WORDS)
@pytest.mark.parametrize("language", LANGUAGES)
def test_what_an_outcome_rests_on_is_said_in_words(family, language):
    phrases = WORDS[family][language]
    means = {
        "says_yes": phrases.agreed,
        "says_added": phrases.added,
        "says_no": phrases.not_now + phrases.not_found,
        "says_never": phrases.never,
        "says_bye": phrases.bye,
        "busy": phrases.busy,
    }
    for line in phrases.all():
        found = cues(line, language)
        for name, lines in means.items():
            if line in lines:
                assert name in found, line
        if line not in phrases.agreed:
            assert "says_yes" not in found, line
        if line not in phrases.added:
            assert "says_added" not in found, line


@pytest.mark.parametrize("one, other", list(combinations(WORDS, 2)))
@pytest.mark.parametrize("language", LANGUAGES)
def test_two_families_share_no_line(one, other, language):
    assert not set(WORDS[one][language].all()) & set(WORDS[other][language].all())


def test_every_category_can_be_asked_about():
    for table in WORDS.values():
        for phrases in table.values():
            assert set(phrases.questions) == set(Category)


def test_the_last_question_is_the_one_that_waits():
    assert asked("价格我知道了。那跑了多少公里？", "zh") is C.MILEAGE
    assert asked("嗯，再说吧。", "zh") is None


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("piece", ["1", "1,", "一", "一万", "车在", "check ", "the car is in A "])
def test_endless_words_are_read_in_no_time(piece, language):
    start = time.perf_counter()
    read(piece * (2_000 // len(piece)), language)
    assert time.perf_counter() - start < 2.0


@pytest.mark.parametrize(
    "line",
    ["Don't send me a request.", "Did you send the request?", "I can't agree to connect with you."],
)
def test_a_yes_that_is_denied_or_asked_about_is_none(line):
    assert "says_yes" not in cues(line, "en")
