"""Profiles: the paper's schemas and composition, the same bytes again, pools apart."""

import hashlib
from collections import Counter

import pytest

from ibrl_jax.domains.telesales.labels import LANGUAGES, Label
from ibrl_jax.domains.telesales.profiles import (
    VERSION,
    difficulty,
    dump_profiles,
    evaluation_profiles,
    lead_record,
    training_profiles,
    view,
)
from ibrl_jax.domains.telesales.profiles import terms as t
from ibrl_jax.domains.telesales.profiles.composition import (
    DIFFICULTY,
    GEOGRAPHY,
    INTENT,
    PERSONALITY,
    REACHABLE,
    quotas,
)
from ibrl_jax.domains.telesales.profiles.pools import load_pool
from ibrl_jax.domains.telesales.profiles.scoring import CUTS, PAPER_SCORES, level


@pytest.fixture(scope="module")
def exact():
    return evaluation_profiles(0, 500, "paper_exact", "zh")


@pytest.fixture(scope="module")
def sampled():
    return evaluation_profiles(0, 500, "sampled", "zh")


# ---------------------------------------------------------------------------- reproducibility


def test_the_same_seed_and_version_give_the_same_bytes():
    for language in LANGUAGES:
        first = dump_profiles(training_profiles(3, 20, language))
        assert first == dump_profiles(training_profiles(3, 20, language))
        assert first != dump_profiles(training_profiles(4, 20, language))
    for composition in ("sampled", "paper_exact"):
        batch = dump_profiles(evaluation_profiles(3, 40, composition, "en"))
        assert batch == dump_profiles(evaluation_profiles(3, 40, composition, "en"))


PINNED = {
    ("training", "zh"): "1e51d2cba1194182b2b71d91998ba31da618674fb626a1c206ecb2b1f5951fbb",
    ("training", "en"): "9191cc54c20f0f07f4c211ac5e2d0d436cf29d879ecdf216e1b0990b9b672a31",
    ("sampled", "zh"): "1de5c1f2a398e414ec2f18475ed437dfb3f447a34a430e545911cfc945bbf0f1",
    ("sampled", "en"): "742e19a31b0e09011e8752d5a91af751cb48c80464e8b28d8e361480f6b7ba5c",
    ("paper_exact", "zh"): "465a8df2ff4774495d553875d3c49c1fce9890055c75a755fed419cea0b5ab8b",
    ("paper_exact", "en"): "5d5524472b55dac28cee4e70b80c56f3100e66f1de6ccc5b6ea516a998fb74bf",
}
"""SHA-256 of 200 profiles of seed 0 at version 1, and of what their customers ask."""


@pytest.mark.parametrize("kind, language", PINNED)
def test_pools_and_rules_are_those_of_their_version(kind, language):
    if kind == "training":
        batch = training_profiles(0, 200, language)
    else:
        batch = evaluation_profiles(0, 200, kind, language)
    asked = "".join(line for profile in batch for line in view(profile).questions.values())
    found = hashlib.sha256(dump_profiles(batch) + asked.encode()).hexdigest()
    assert VERSION == "1", "pin the profiles of the new version here"
    assert found == PINNED[kind, language], (
        "a pool or a rule has changed, so a seed gives other people than it gave before: raise "
        "VERSION in profiles/generate.py and pin the profiles of the new version here"
    )


def test_a_drawn_batch_begins_with_the_smaller_one():
    assert training_profiles(0, 12, "en")[:5] == training_profiles(0, 5, "en")
    large = evaluation_profiles(0, 12, "sampled", "zh")
    assert large[:5] == evaluation_profiles(0, 5, "sampled", "zh")


def _without_words(value):
    """Labels and numbers of a profile: what has no language."""
    if isinstance(value, dict):
        return {str(k): _without_words(v) for k, v in value.items() if k != "language"}
    if isinstance(value, list | tuple):
        return [_without_words(item) for item in value]
    return value if isinstance(value, Label | int | float | bool | None) else "text"


def test_both_languages_tell_of_the_same_people():
    for make in (
        lambda lang: training_profiles(1, 30, lang),
        lambda lang: evaluation_profiles(1, 30, "sampled", lang),
    ):
        chinese, english = (
            [_without_words(p.model_dump(mode="python")) for p in make(lang)] for lang in LANGUAGES
        )
        assert chinese == english


def test_ids_are_distinct_and_tell_the_kinds_apart(exact, sampled):
    ids = [p.id for p in (*exact, *sampled, *training_profiles(0, 50, "zh"))]
    assert len(set(ids)) == len(ids) == 1050


# ---------------------------------------------------------------------------- pools


def test_the_pools_share_no_city_car_job_name_or_wording():
    seen = [
        {text for wording in load_pool(name).texts() for text in (wording.zh, wording.en)}
        for name in ("training", "evaluation")
    ]
    assert min(map(len, seen)) > 200
    assert not seen[0] & seen[1]


def test_every_category_has_fears_and_questions_in_both_pools():
    for name in ("training", "evaluation"):
        objections = load_pool(name).objections
        assert set(objections) == set(t.Category)
        assert all(entry.details and entry.questions for entry in objections.values())


def test_no_phone_number_of_a_profile_can_be_anybodys(sampled):
    for profile in (*sampled[:50], *training_profiles(0, 50, "zh")):
        lead = lead_record(profile)
        assert lead.phone_number.startswith("10")
        assert lead.service.phone.startswith("10")
        assert lead.phone_tail == lead.phone_number[-4:]


# ---------------------------------------------------------------------------- composition


def _counts(profiles):
    users = [p.user_profile for p in profiles]
    return (
        Counter(p.case_control.difficulty for p in profiles),
        Counter(u.intent_state.intent_depth for u in users),
        Counter(u.location_context.remote_type for u in users),
        Counter(u.intent_state.personality for u in users),
        Counter(u.contact_info.phone_can_add_wechat for u in users),
    )


def test_table_7_counts_are_the_papers():
    assert list(DIFFICULTY.values()) == [101, 192, 205, 2]
    assert list(INTENT.values()) == [90, 139, 138, 133]
    assert list(GEOGRAPHY.values()) == [226, 155, 119]
    assert list(PERSONALITY.values()) == [100] * 5
    assert REACHABLE == {True: 394, False: 106}


def test_paper_exact_meets_table_7_in_every_dimension(exact):
    assert _counts(exact) == (DIFFICULTY, INTENT, GEOGRAPHY, PERSONALITY, REACHABLE)
    assert {p.case_control.max_agent_turns for p in exact} == {15}


@pytest.mark.parametrize("seed", [1, 2])
def test_paper_exact_meets_its_quotas_for_other_seeds_and_sizes(seed):
    small = evaluation_profiles(seed, 60, "paper_exact", "en")
    wanted = (
        quotas(DIFFICULTY, 60),
        quotas(INTENT, 60),
        quotas(GEOGRAPHY, 60),
        quotas(PERSONALITY, 60),
        quotas(REACHABLE, 60),
    )
    # a level whose quota is none has no entry in a count
    assert _counts(small) == tuple(Counter(dict(counts)) for counts in wanted)


def test_sampled_shares_are_near_table_7(sampled):
    for ours, paper in zip(
        _counts(sampled), (DIFFICULTY, INTENT, GEOGRAPHY, PERSONALITY, REACHABLE), strict=True
    ):
        for key, count in paper.items():
            # three standard deviations of a binomial count, and a few for what is found afterwards
            slack = 3 * (count * (1 - count / 500)) ** 0.5 + 5
            assert abs(ours[key] - count) < slack, key


def test_quotas_add_up_and_keep_proportions():
    assert quotas({"a": 1, "b": 1, "c": 1}, 100) == {"a": 34, "b": 33, "c": 33}
    assert quotas(DIFFICULTY, 500) == DIFFICULTY
    for n in range(40):
        assert sum(quotas(INTENT, n).values()) == n


# ---------------------------------------------------------------------------- scores


@pytest.mark.parametrize("batch", ["exact", "sampled"])
def test_initial_scores_spread_like_the_papers(batch, request):
    profiles = request.getfixturevalue(batch)
    for name, paper in PAPER_SCORES.items():
        values = [getattr(p.initial_state, name) for p in profiles]
        assert paper.low <= min(values) < paper.low + 0.06
        assert paper.high - 0.08 < max(values) <= paper.high
        assert sum(values) / len(values) == pytest.approx(paper.mean, abs=0.012)


def test_difficulty_is_the_formula_on_a_profile_worked_by_hand(exact):
    base = exact[0]
    user = base.user_profile
    by_hand = base.model_copy(
        update={
            "initial_state": base.initial_state.model_copy(
                update={"willingness": 0.5, "trust": 0.5, "patience": 0.5}
            ),
            "user_profile": user.model_copy(
                update={
                    "intent_state": user.intent_state.model_copy(
                        update={"privacy_sensitivity": t.PrivacySensitivity.MEDIUM}
                    ),
                    "location_context": user.location_context.model_copy(
                        update={"remote_type": t.Remote.CROSS_PROVINCE}
                    ),
                    "contact_info": user.contact_info.model_copy(
                        update={
                            "phone_can_add_wechat": False,
                            "alternate_wechat_contact": "10000000000",
                        }
                    ),
                    "concerns": user.concerns.model_copy(
                        update={
                            "objections": (t.Category.PRICE, t.Category.FEES),
                            "objection_intensities": (0.4, 0.6),
                        }
                    ),
                }
            ),
        }
    )
    # 16 + 7 + 7 + 5 + 6 + 3 + 6 + 6
    assert difficulty(by_hand) == (56.0, t.Difficulty.HARD)


@pytest.mark.parametrize(
    "score, expected",
    [
        (0, "easy"),
        (43.4, "easy"),
        (43.41, "medium"),
        (53.7, "medium"),
        (53.71, "hard"),
        (74.8, "hard"),
        (74.81, "stress"),
    ],
)
def test_levels_change_at_the_cuts(score, expected):
    assert level(score) == expected
    assert list(CUTS.values()) == [43.4, 53.7, 74.8]


def test_table_14_example_is_medium_by_its_score():
    assert level(45.72) is t.Difficulty.MEDIUM
