"""Table 11 by rule: each entry fires on what it is for; what only looks like it earns nothing."""

from __future__ import annotations

import pytest

from ibrl_jax.domains.telesales.cues import C
from ibrl_jax.domains.telesales.labels import (
    EVALUATION_CLIPS,
    RUBRIC_CHANGES,
    Language,
    Rubric,
)
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord, State, lead_record
from ibrl_jax.domains.telesales.profiles.terms import Availability, Category, VehicleCondition
from ibrl_jax.domains.telesales.record import rescored
from ibrl_jax.domains.telesales.rubric import CAPS, Asked, Rated, Rater

B = Rubric


def record(language: Language = "zh", **vehicle: object) -> LeadRecord:
    lead = lead_record(evaluation_profiles(1, 1, "sampled", language)[0])
    known = {
        "price": 128_000,
        "fees": 3_500,
        "mileage": 32_000,
        "condition": VehicleCondition.CLEAN,
        "warranty_months": 18,
        "owners": 1,
        "down_payment_percent": 30,
        "availability": Availability.ON_SALE,
    } | vehicle
    return lead.model_copy(update={"vehicle": lead.vehicle.model_copy(update=known)})


def situation(category: Category | None = None, **other) -> Asked:
    fields = {"topic": category, "opening": False, "busy": False, "refused": False} | other
    return Asked(category=category, **fields)


def rate(words: str, category: Category | None = None, *, calls=0, lead=None, **other) -> Rated:
    lead = lead or record()
    return Rater(lead.language, lead).rate(words, calls, situation(category, **other))


def test_a_true_value_of_what_was_asked_answers():
    rated = rate("标价12.8万。", C.PRICE)
    assert rated.answered
    assert set(rated.hits) == {B.B01, B.B17}


def test_something_to_check_it_by_is_evidence():
    assert B.B04 in rate("标价12.8万，车源页上能看到。", C.PRICE).hits


def test_a_true_fact_of_another_category_is_beside_the_question():
    rated = rate("表显3.2万公里，保养记录可以查。", C.PRICE)
    assert rated.answered is False
    assert rated.hits == (B.B11,)


@pytest.mark.parametrize("words", ["标价9万。", "标价12.8万，也可以说标价20万。"])
def test_a_false_value_earns_nothing_and_costs_nothing(words):
    rated = rate(words, C.PRICE)
    assert rated.answered is False
    assert rated.hits == (B.B14,)


def test_a_rounded_number_is_the_registered_one():
    assert rate("标价12.9万。", C.PRICE).answered
    assert rate("标价14万。", C.PRICE).answered is False


def test_values_of_two_categories_are_a_list_read_aloud():
    rated = rate("标价12.8万，表显3.2万公里。", C.PRICE)
    assert rated.answered is False
    assert B.B16 in rated.hits
    assert B.B01 not in rated.hits


def test_what_is_not_registered_is_answered_by_an_offer_to_find_out():
    lead = record(price=None)
    words = "价格没有登记，我去核实一下再告诉您。"
    assert B.B03 in rate(words, C.PRICE, lead=lead).hits
    assert rate("标价12.8万。", C.PRICE, lead=lead).answered is False


def test_not_knowing_what_is_registered_is_no_answer():
    rated = rate("价格我不确定，我去核实一下再告诉您。", C.PRICE)
    assert rated.answered is False
    assert B.B03 not in rated.hits


def test_who_calls_why_and_from_where_is_said_once():
    lead = record()
    rater = Rater("zh", lead)
    words = "我是小李，您之前在平台看过这台车，来电是想跟您聊聊。"
    opening = situation(opening=True)
    assert B.B02 in rater.rate(words, 0, opening).hits
    assert (
        B.B02 not in rater.rate("我叫小李，您在网上留过咨询，给您打电话是想回访。", 0, opening).hits
    )


def test_a_reason_for_the_contact_belongs_to_what_was_asked():
    push = "加个微信，我把价格明细发给您？"
    assert B.B05 in rate(f"标价12.8万。{push}", C.PRICE).hits
    assert B.B05 not in rate(push, C.PRICE).hits
    assert B.B05 not in rate("加个微信，我把质保资料发给您？", None, topic=C.PRICE).hits


def test_a_light_push_beside_an_answer_is_b13_and_without_one_b08():
    assert B.B13 in rate("标价12.8万，加个微信好吗？", C.PRICE).hits
    rated = rate("加个微信好吗？", C.PRICE)
    assert {B.B08, B.B15} <= set(rated.hits)
    assert B.B11 not in rated.hits


def test_a_promise_of_privacy_answers_for_privacy():
    assert {B.B01, B.B06} <= set(rate("不会打扰您，只发这台车的。", C.PRIVACY).hits)


def test_a_pitch_for_somebody_busy():
    words = "这台车真的非常适合您和家人使用，空间大，开起来也舒服，" * 3
    assert B.B07 in rate(words, busy=True).hits
    assert B.B07 not in rate(words).hits


@pytest.mark.parametrize("words", ["这是全网最低价。", "最后一台了，马上涨价。", "绝对没问题。"])
def test_pressure_costs_and_earns_nothing_else(words):
    assert B.B09 in rate(words).hits
    assert B.B01 not in rate(f"标价12.8万，{words}", C.PRICE).hits


def test_the_third_push_in_a_row_without_news():
    rater = Rater("zh", record())
    pushes = ["加个微信吧。", "咱们加微信好吧。", "麻烦通过微信。"]
    fired = [B.B10 in rater.rate(words, 0, situation()).hits for words in pushes]
    assert fired == [False, False, True]


def test_a_push_after_a_refusal():
    assert B.B12 in rate("加个微信吧。", refused=True).hits
    assert B.B12 in rate("", calls=1, refused=True).hits


@pytest.mark.parametrize("language, length", [("zh", 120), ("en", 360)])
def test_length_counts_from_table_11s_limit_on(language, length):
    lead = record(language)
    char = "好" if language == "zh" else "a"
    assert B.B18 not in rate(char * (length - 1), lead=lead).hits
    assert B.B18 in rate(char * length, lead=lead).hits


def test_the_same_words_again_earn_nothing():
    rater = Rater("zh", record())
    words = "标价12.8万，车源页上能看到。"
    assert B.B01 in rater.rate(words, 0, situation(C.PRICE)).hits
    again = rater.rate(words, 0, situation(C.PRICE))
    assert again.stale
    assert not {B.B01, B.B04, B.B17} & set(again.hits)


def test_what_pays_pays_a_few_times_a_call():
    rater = Rater("zh", record())
    words = ("电话不会外泄。", "我们少打扰。", "资料只发这台车的。", "绝不乱讲，信息都保密。")
    paid = [B.B06 in rater.rate(line, 0, situation()).hits for line in words]
    assert paid == [True, True, False, False]
    assert CAPS[B.B06] == 2


def test_nothing_to_say_is_b14():
    assert rate("嗯嗯，好的。").hits == (B.B14,)


def test_without_a_lead_record_any_value_is_believed():
    rater = Rater("zh", None)
    assert rater.rate("标价9万。", 0, situation(C.PRICE)).answered


def test_english_reads_alike():
    lead = record("en")
    rated = rate("The price is 128,000 yuan, as the listing page shows.", C.PRICE, lead=lead)
    assert {B.B01, B.B04, B.B17} <= set(rated.hits)
    rated = rate("The mileage is 32,000 km.", C.PRICE, lead=lead)
    assert rated.hits == (B.B11,)


def test_changes_add_up_and_are_clipped_as_in_table_9():
    before = State(willingness=0.5, trust=0.5, patience=0.5)
    after, delta = rescored(before, (B.B08, B.B09, B.B12, B.B16))
    assert delta.willingness == EVALUATION_CLIPS.willingness.low == -0.20
    assert delta.trust == EVALUATION_CLIPS.trust.low == -0.20
    assert delta.patience == EVALUATION_CLIPS.patience.low == -0.15
    assert after.patience == pytest.approx(0.35)
    _, one = rescored(before, (B.B01,))
    assert one.willingness == RUBRIC_CHANGES[B.B01].willingness == 0.05
