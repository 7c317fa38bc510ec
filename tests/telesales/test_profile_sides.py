"""A profile agrees with itself, shows each side what it may see, and is read from a user's file."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibrl_jax.domains.telesales.labels import LANGUAGES
from ibrl_jax.domains.telesales.profiles import (
    EvaluationProfile,
    TrainingProfile,
    dump_profiles,
    evaluation_profiles,
    lead_record,
    problems,
    read_profiles,
    training_profiles,
    view,
)
from ibrl_jax.domains.telesales.profiles import terms as t
from ibrl_jax.domains.telesales.profiles.pools import find_city, remote_type
from ibrl_jax.domains.telesales.profiles.schema import (
    FIELD_OF,
    LeadRecord,
    Money,
    Vehicle,
    fact,
)
from ibrl_jax.errors import UserError


@pytest.fixture(scope="module")
def exact():
    return evaluation_profiles(0, 500, "paper_exact", "zh")


# ---------------------------------------------------------------------------- consistency


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), language=st.sampled_from(LANGUAGES))
def test_a_generated_profile_agrees_with_itself(seed, language):
    for profile in (
        *training_profiles(seed, 1, language),
        *evaluation_profiles(seed, 1, "sampled", language),
    ):
        assert problems(profile) == ()
        assert type(profile).model_validate_json(profile.model_dump_json()) == profile


def test_the_rules_of_agreement_hold_over_a_batch(exact):
    for profile in exact:
        user = profile.user_profile
        intent, lead, needs = user.intent_state, user.lead_context, user.car_needs
        if intent.intent_depth is t.IntentDepth.URGENT:
            assert needs.purchase_timeline in (t.Timeline.WEEK, t.Timeline.MONTH)
            assert lead.lead_memory_state is t.Memory.CLEAR
        if intent.intent_depth is t.IntentDepth.ACCIDENTAL:
            assert lead.lead_memory_state in (t.Memory.VAGUE, t.Memory.NONE)
        same = user.location_context.remote_type is t.Remote.SAME_CITY
        assert same == (user.location_context.city == needs.car_city)
        price = profile.agent_info.vehicle.price
        assert price is None or price in needs.budget_range
        contact = user.contact_info
        assert contact.phone_can_add_wechat or contact.alternate_wechat_contact
        if user.basic_profile.purchase_experience is t.Experience.FIRST:
            assert user.basic_profile.previous_car_type is None
        assert 2 <= len(user.concerns.objections) <= 4


def test_distance_follows_from_the_provinces_in_either_language():
    assert remote_type("南京", "南京") is t.Remote.SAME_CITY
    assert remote_type("Nanjing", "Suzhou") is t.Remote.SAME_PROVINCE
    assert remote_type("南京", "长沙") is t.Remote.CROSS_PROVINCE
    assert find_city("Atlantis") is None


# ---------------------------------------------------------------------------- who sees what


def test_the_lead_record_holds_what_the_paper_lets_the_agent_see_and_no_more():
    assert set(LeadRecord.model_fields) == {
        "target_car",
        "car_city",
        "budget_range",
        "purchase_timeline",
        "phone_number",
        "vehicle",
        "service",
        "language",
    }


def test_the_lead_record_does_not_move_with_the_customers_private_side(exact):
    for profile in (exact[0], training_profiles(0, 1, "en")[0]):
        state = profile.initial_state.model_copy(update={"willingness": 0.0})
        other = profile.model_copy(update={"initial_state": state})
        assert lead_record(other) == lead_record(profile)
    user = exact[0].user_profile
    hidden = user.model_copy(
        update={
            "intent_state": user.intent_state.model_copy(
                update={"personality": t.Personality.FRIENDLY}
            ),
            "concerns": user.concerns.model_copy(update={"objection_details": ("MARKER",)}),
            "basic_profile": user.basic_profile.model_copy(update={"name": "MARKER"}),
        }
    )
    record = lead_record(exact[0].model_copy(update={"user_profile": hidden}))
    assert record == lead_record(exact[0])
    assert "MARKER" not in record.model_dump_json()


def test_a_training_customers_own_budget_is_not_in_the_lead_record():
    for profile in training_profiles(0, 30, "zh"):
        own = profile.user_profile.purchase_intent.budget
        assert own in lead_record(profile).budget_range
        dearer = profile.user_profile.purchase_intent.model_copy(update={"budget": own + 1})
        user = profile.user_profile.model_copy(update={"purchase_intent": dearer})
        other = profile.model_copy(update={"user_profile": user})
        assert lead_record(other) == lead_record(profile)


def test_a_category_is_answered_by_its_field_or_has_to_be_checked(exact):
    assert set(FIELD_OF) == set(t.Category)
    assert {f for f in FIELD_OF.values() if f} == set(Vehicle.model_fields) - {"registered"}
    record = lead_record(exact[0])
    assert fact(record, t.Category.REMOTE) == record.car_city
    assert fact(record, t.Category.PRIVACY) is None
    assert fact(record, t.Category.MILEAGE) == record.vehicle.mileage
    some = [fact(lead_record(p), t.Category.MILEAGE) for p in exact]
    assert 0.1 < some.count(None) / len(some) < 0.3


def test_channels_say_which_call_reaches_the_customer(exact):
    for profile in exact:
        contact, channels = profile.user_profile.contact_info, view(profile).channels
        if contact.phone_can_add_wechat:
            assert channels.numbers == (contact.phone_number,)
            assert channels.invitation
        else:
            assert channels.numbers == (contact.alternate_wechat_contact,)
            assert not channels.invitation
        assert channels.reachable == contact.phone_can_add_wechat


def test_a_training_account_is_found_by_number_only_if_it_is_searchable_and_on_this_phone():
    found = set()
    for profile in training_profiles(0, 300, "zh"):
        contact, channels = profile.user_profile.contact_channels, view(profile).channels
        here = contact.primary_account is t.PrimaryAccount.THIS_PHONE
        searchable = contact.wechat_privacy is t.WechatPrivacy.SEARCHABLE
        assert channels.numbers == ((contact.phone_number,) if here and searchable else ())
        assert channels.invitation
        found.add((here, searchable))
    assert len(found) == 4


# ---------------------------------------------------------------------------- a user's own files


def _write(tmp_path, *profiles):
    path = tmp_path / "profiles.jsonl"
    lines = [json.dumps(profile, ensure_ascii=False) for profile in profiles]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _own(kind="evaluation"):
    made = (
        evaluation_profiles(5, 1, "sampled", "en")
        if kind == "evaluation"
        else training_profiles(5, 1, "en")
    )
    return json.loads(made[0].model_dump_json())


def test_profiles_are_read_as_they_were_written(tmp_path, exact):
    path = tmp_path / "own.jsonl"
    path.write_bytes(dump_profiles(exact[:5]))
    assert read_profiles(path, EvaluationProfile) == exact[:5]
    path.write_bytes(dump_profiles(training_profiles(0, 5, "en")))
    assert read_profiles(path, TrainingProfile) == training_profiles(0, 5, "en")


def test_an_unknown_city_is_one_sentence(tmp_path):
    own = _own()
    own["user_profile"]["location_context"]["city"] = "Atlantis"
    with pytest.raises(UserError, match="line 1, profile .*: the city 'Atlantis' is unknown"):
        read_profiles(_write(tmp_path, own), EvaluationProfile)


def test_a_budget_that_does_not_hold_the_price_is_one_sentence(tmp_path):
    own = _own()
    own["agent_info"]["vehicle"]["price"] = 9_000_000
    with pytest.raises(UserError, match=r"the budget \d+ to \d+ does not hold the price 9000000"):
        read_profiles(_write(tmp_path, own), EvaluationProfile)


def test_a_stated_difficulty_is_held_to_the_formula(tmp_path):
    own = _own("training")
    own["user_profile"]["willingness_control"]["difficulty"] = "stress"
    with pytest.raises(UserError, match="difficulty is stress, but a score of"):
        read_profiles(_write(tmp_path, own), TrainingProfile)


def test_a_missing_or_unknown_attribute_is_named(tmp_path):
    own = _own()
    del own["user_profile"]["car_needs"]["target_car"]
    with pytest.raises(UserError, match=r"user_profile\.car_needs\.target_car: Field required"):
        read_profiles(_write(tmp_path, own), EvaluationProfile)
    own = _own()
    own["user_profile"]["car_needs"]["colour"] = "red"
    with pytest.raises(UserError, match=r"user_profile\.car_needs\.colour: Extra inputs"):
        read_profiles(_write(tmp_path, own), EvaluationProfile)


def test_an_id_may_not_stand_twice(tmp_path):
    with pytest.raises(UserError, match="line 2: the id .* stands twice"):
        read_profiles(_write(tmp_path, _own(), _own()), EvaluationProfile)


def test_a_file_without_profiles_or_no_file_at_all_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="holds no profile"):
        read_profiles(_write(tmp_path), EvaluationProfile)
    with pytest.raises(UserError, match="cannot be read"):
        read_profiles(tmp_path / "missing.jsonl", EvaluationProfile)


def test_a_range_of_money_runs_upwards_and_knows_what_is_in_it():
    assert 150_000 in Money(low=140_000, high=160_000)
    assert 161_000 not in Money(low=140_000, high=160_000)
    with pytest.raises(ValueError, match="runs from 5 down to 4"):
        Money(low=5, high=4)
