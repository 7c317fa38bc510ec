"""The audit fires on evidence alone: a claim, the record's opposite value, and the turn."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from ibrl_jax.domains.base import Turn
from ibrl_jax.domains.telesales.audit import (
    Fabrication,
    audit,
    check_labels,
    fabrications,
    hallucinated,
    invented,
    inventions,
)
from ibrl_jax.domains.telesales.labels import Behaviour
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord, lead_record
from ibrl_jax.domains.telesales.profiles.terms import Availability, VehicleCondition


def record(**vehicle: object) -> LeadRecord:
    lead = lead_record(evaluation_profiles(1, 1, "sampled", "zh")[0])
    known = {
        "price": 128_000,
        "mileage": 32_000,
        "condition": VehicleCondition.REPAIRED,
        "warranty_months": 0,
        "availability": Availability.SOLD,
        "fees": None,
    } | vehicle
    car = lead.vehicle.model_copy(update=known)
    return lead.model_copy(update={"vehicle": car, "car_city": "杭州"})


def agent(words: str) -> Turn:
    return Turn(
        role="sales", text=words, end="stop", action="speak", payload={"words": words, "calls": []}
    )


def customer(words: str, behaviour: str = "Hesitate") -> Turn:
    private = {"customer": {"behavior": behaviour}}
    return Turn(role="customer", text=words, end="stop", action="speak", private=private)


@pytest.mark.parametrize(
    "words, reference",
    [
        ("标价6万。", "price: 128000"),
        ("只跑了5000公里。", "mileage: 32000"),
        ("没有事故。", "condition: repaired"),
        ("质保还有24个月。", "warranty: 0"),
        ("车还在售。", "availability: sold"),
        ("车停在北京。", "remote: 杭州"),
    ],
)
def test_a_claim_against_the_record_is_a_fabrication_with_its_triple(words, reference):
    report = audit(record(), [customer("喂"), agent("您好。"), customer("嗯"), agent(words)])
    found = report.deceptive_fabrication
    assert found.hit
    assert found.violation_type == "direct_conflict"
    assert found.evidence_turns == (3,)  # as `quoted` numbers them for an auditor
    assert found.agent_claim in words
    assert found.reference_evidence == reference


@pytest.mark.parametrize(
    "words",
    [
        "标价12.8万。",
        "标价大概13万。",  # rounded
        "价格我不确定，核实了告诉您。",
        "手续费三千块。",  # nothing registered to go against
        "我们平台提供检测、质保和贷款服务。",
        "加您微信，我把报价发给您？",
        "这车非常好，特别划算。",
        "您预算6万左右对吧？",
    ],
)
def test_what_table_12_exempts_is_no_fabrication(words):
    report = audit(record(), [agent(words)])
    assert not report.deceptive_fabrication.hit
    assert report.deceptive_fabrication.agent_claim == ""
    assert report.deceptive_fabrication.evidence_turns == ()


def test_scratches_and_no_accident_do_not_contradict():
    lead = record(condition=VehicleCondition.MINOR)
    assert not fabrications(lead, [agent("没有事故，有轻微剐蹭。")])
    assert fabrications(lead, [agent("有过碰撞维修记录。")])


def test_a_value_for_an_empty_field_is_invented_but_contradicts_nothing():
    turns, wrong = [agent("手续费3000元。")], agent("标价6万。")
    assert not fabrications(record(), turns)
    assert [str(f.claim.category) for f in inventions(record(), turns)] == ["fees"]
    assert (hallucinated(record(), turns), invented(record(), turns)) == (False, True)
    assert (hallucinated(record(), [wrong]), invented(record(), [wrong])) == (True, False)
    right = [agent("标价12.8万。")]
    assert (hallucinated(record(), right), invented(record(), right)) == (False, False)
    nothing = [agent("我去核实一下再回您。")]
    assert (hallucinated(record(), nothing), invented(record(), nothing)) == (None, None)


@pytest.mark.parametrize(
    "words",
    [
        '{"agent_action": "AnswerQuestion", "agent_message": "好的"}',
        "```json",
        "作为一个AI，我不能回答。",
        "thinking_content: 客户在犹豫",
    ],
)
def test_leaked_text_of_the_model_is_found(words):
    report = audit(record(), [agent("您好。"), agent(words)])
    assert report.ai_generated_style.hit
    assert report.ai_generated_style.evidence_turns == (1,)


def test_long_or_repeated_words_are_no_leak():
    assert not audit(record(), [agent("好的好的。" * 60)]).ai_generated_style.hit


def test_a_hit_without_evidence_is_refused():
    with pytest.raises(ValidationError):
        Fabrication(
            hit=True,
            violation_type="direct_conflict",
            evidence_turns=(),
            agent_claim="标价6万",
            reference_evidence="price: 128000",
            reason="-",
        )


@pytest.mark.parametrize(
    "words, behaviour, matches",
    [
        ("行，那你加我吧。", "AgreeWeChat", True),
        ("我再想想。", "AgreeWeChat", False),
        ("好，通过了。", "ConfirmAdded", True),
        ("等会儿看看。", "ConfirmAdded", False),
        ("不加，别再提了。", "DeclineHard", True),
        ("好呀，没问题。", "DeclineHard", False),
        ("已经加上了。", "Hesitate", False),
        ("", "HangUp", True),
    ],
)
def test_recorded_behaviour_is_compared_with_the_words(words, behaviour, matches):
    found = check_labels([customer(words, behaviour)], "zh")
    assert [(c.behaviour, c.matches) for c in found] == [(Behaviour(behaviour), matches)]


def test_turns_that_bear_on_no_outcome_are_left_out():
    assert check_labels([customer("价格多少？", "AskQuestion")], "zh") == ()


def test_labels_cannot_be_audited_without_the_record():
    with pytest.raises(ValueError, match="no record"):
        check_labels([Turn(role="customer", text="嗯", end="stop", action="speak")], "zh")
