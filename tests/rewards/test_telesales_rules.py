"""Rule-based judges of TeleSales: the agent's pays for the outcome, the customer's for realism."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from ibrl_jax.domains.base import Scenario
from ibrl_jax.domains.telesales.customers import customer
from ibrl_jax.domains.telesales.labels import Behaviour, Stage
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.record import write_record
from ibrl_jax.domains.telesales.referee import TelesalesReferee
from ibrl_jax.domains.telesales.scenarios import make_scenario
from ibrl_jax.domains.telesales.sellers import seller
from ibrl_jax.rewards.telesales_rules import (
    STAND_IN,
    CustomerRuleJudge,
    SalesRuleJudge,
    TurnWeights,
    discounted,
)
from ibrl_jax.rewards.types import Case, Failed, Scored

WEIGHTS = TurnWeights(turn=0.2, episode=0.8, gamma=0.9)
PEOPLE = [make_scenario(p) for p in evaluation_profiles(4, 60, "sampled", "zh")]


def play(scenario: Scenario, name: str, seed: int = 0) -> TelesalesReferee:
    ruling = TelesalesReferee(scenario, max_agent_turns=15)
    players = {
        "sales": seller(name, scenario, np.random.default_rng([seed, 1])),
        "customer": customer(
            "rule_v1", scenario, np.random.default_rng([seed, 2]), score_step=0.01
        ),
    }
    while (role := ruling.to_move) is not None:
        ruling.play(ruling.check(role, players[role].reply(ruling.turns), "stop"))
    return ruling


def score(ruling: TelesalesReferee, role: str) -> Scored:
    found = judge(ruling, role)
    assert isinstance(found, Scored)
    return found


def judge(ruling: TelesalesReferee, role: str) -> Scored | Failed:
    assert ruling.outcome is not None
    case = Case.of(ruling.scenario, role, ruling.turns, ruling.outcome)
    judges = {
        "sales": SalesRuleJudge(weights=WEIGHTS),
        "customer": CustomerRuleJudge(weights=WEIGHTS),
    }
    return asyncio.run(judges[role].score(case))


CALLS = {
    name: [play(scenario, name, seed) for seed, scenario in enumerate(PEOPLE)]
    for name in ("competent", "liar", "polite", "spammer")
}


def mean(name: str, role: str) -> float:
    return float(np.mean([score(ruling, role).value for ruling in CALLS[name]]))


def won(ruling: TelesalesReferee) -> bool:
    return ruling.outcome is not None and ruling.outcome.success


def test_the_discounted_mean_is_that_of_section_5_1():
    assert discounted([1.0, 0.0], 0.9) == pytest.approx(1 / 1.9)
    assert discounted([0.5, 0.5, 0.5], 0.9) == pytest.approx(0.5)
    assert discounted([], 0.9) == 0.0
    assert WEIGHTS.combine([1.0, 1.0], 1.0) == pytest.approx(1.0)
    assert WEIGHTS.combine([1.0], 0.0) == pytest.approx(0.2)


@pytest.mark.parametrize("weights", [(0.2, 0.7, 0.9), (-0.2, 1.2, 0.9), (0.2, 0.8, 0.0)])
def test_weights_that_are_none_are_refused(weights):
    turn, episode, gamma = weights
    with pytest.raises(ValueError):
        TurnWeights(turn=turn, episode=episode, gamma=gamma)


@pytest.mark.parametrize("role", ["sales", "customer"])
def test_rewards_are_in_range_and_turn_scores_are_quarters(role):
    for rulings in CALLS.values():
        for ruling in rulings:
            found = score(ruling, role)
            assert 0.0 <= found.value <= 1.0
            assert {s * 4 % 1 for s in found.detail["turn_scores"]} == {0.0}
            assert found.detail["judge"] == STAND_IN


def test_each_own_turn_is_scored_once_and_the_pick_up_line_is_not():
    for ruling in CALLS["competent"]:
        for role in ("sales", "customer"):
            own = [t for t in ruling.turns if t.role == role and "scripted" not in t.flags]
            assert len(score(ruling, role).detail["turn_scores"]) == len(own)


def test_the_agent_is_paid_for_a_confirmed_add():
    paid = {won(ruling): [] for ruling in CALLS["competent"]}
    for ruling in CALLS["competent"]:
        paid[won(ruling)].append(score(ruling, "sales").value)
    assert min(paid[True]) > 0.9
    assert max(paid[False]) < 0.6


def test_the_customer_is_indifferent_to_the_outcome():
    values = {True: [], False: []}
    for ruling in CALLS["competent"]:
        values[won(ruling)].append(score(ruling, "customer").value)
    assert len(values[True]) > 10
    assert len(values[False]) > 10
    assert abs(np.mean(values[True]) - np.mean(values[False])) < 0.1


def test_cheats_are_paid_less():
    assert mean("competent", "sales") > 0.45
    for cheat in ("liar", "polite", "spammer"):
        assert mean(cheat, "sales") < 0.2


def test_a_realistic_customer_scores_high_against_anybody_who_tells_the_truth():
    for name in ("competent", "polite", "spammer"):
        assert mean(name, "customer") > 0.9


def told(scenario: Scenario, lines: list[tuple[str, str, Behaviour, float]]) -> TelesalesReferee:
    """A call out of (agent's words, reply, behaviour, change of willingness)."""
    ruling = TelesalesReferee(scenario, max_agent_turns=len(lines))
    state = ruling.turns[0].private["customer"]["state"]
    before = State(**state)
    for words, reply, behaviour, change in lines:
        ruling.play(ruling.check("sales", words, "stop"))
        if ruling.to_move is None:
            break
        after = before.model_copy(update={"willingness": round(before.willingness + change, 2)})
        text = write_record(behaviour, Stage.EXPLORATION, before, after, reply)
        turn = ruling.check("customer", text, "stop")
        assert turn.valid, turn.error_code
        ruling.play(turn)
        before = after
    return ruling


def someone(low: float, high: float) -> Scenario:
    return next(
        s
        for s in PEOPLE
        if low <= s.private["customer"]["initial_state"]["willingness"] <= high
        and s.private["sales"]["vehicle"]["price"] is not None
    )


def test_a_customer_who_says_yes_to_nothing_is_not_realistic():
    scenario = someone(0.2, 0.4)
    pushover = told(scenario, [("加个微信吧。", "行，那你加我吧。", Behaviour.AGREE_WECHAT, 0.15)])
    found = score(pushover, "customer")
    assert found.detail["episode"] == 0.0
    assert found.value < 0.2


def test_scores_that_rise_for_no_reason_do_not_bear_out_a_yes():
    scenario = someone(0.2, 0.34)
    lines = [("您好。", "嗯。", Behaviour.HESITATE, 0.15)] * 2
    lines += [("加个微信吧。", "行，那你加我吧。", Behaviour.AGREE_WECHAT, 0.1)]
    assert score(told(scenario, lines), "customer").detail["episode"] == 0.0


def test_a_customer_who_hangs_up_on_a_good_answer_is_not_realistic():
    scenario = someone(0.68, 1.0)
    price = scenario.private["sales"]["vehicle"]["price"]
    calm = [
        (
            "我是小李，您之前在平台看过这台车，来电是想跟您聊聊。",
            "这车多少钱？",
            Behaviour.ASK_QUESTION,
            0.0,
        ),
        (f"标价{price}元，车源页上能看到。", "车停在哪？", Behaviour.ASK_QUESTION, 0.13),
        (
            f"车在{scenario.private['sales']['car_city']}，检测报告里写着。",
            "挂了。",
            Behaviour.HANG_UP,
            0.0,
        ),
    ]
    assert score(told(scenario, calm), "customer").detail["episode"] == 0.0
    pushed = [("加个微信吧。", "不说了，再见。", Behaviour.HANG_UP, -0.2)]
    assert score(told(scenario, pushed), "customer").detail["episode"] > 0.0


def test_a_customer_who_talks_like_a_seller_has_changed_sides():
    scenario = someone(0.4, 0.6)
    plain = [("您好。", "你哪位？", Behaviour.GREETING, 0.0)]
    swapped = [
        ("您好。", "您好，我是平台顾问，给您打电话是想介绍这台车。", Behaviour.GREETING, 0.0)
    ]
    first, second = (score(told(scenario, lines), "customer") for lines in (plain, swapped))
    assert first.detail["turn_scores"] == [1.0]
    assert second.detail["turn_scores"] == [0.75]


def test_a_fabrication_costs_half_and_never_less_than_nothing():
    honest = next(ruling for ruling in CALLS["competent"] if won(ruling))
    lead = honest.scenario.private["sales"]
    lie = f"车停在{'天津' if lead['car_city'] != '天津' else '重庆'}。"
    outcome = honest.outcome
    assert outcome is not None
    turns = list(honest.turns)
    last = max(i for i, turn in enumerate(turns) if turn.role == "sales")
    turns[last] = replace(turns[last], payload={**turns[last].payload, "words": lie})
    case = Case.of(honest.scenario, "sales", turns, outcome)
    found = asyncio.run(SalesRuleJudge(weights=WEIGHTS).score(case))
    assert isinstance(found, Scored)
    assert found.detail["fabrications"] == 1
    assert found.detail["episode"] == 0.5
    assert all(score(r, "sales").detail["episode"] >= 0.0 for r in CALLS["liar"])


def test_what_is_not_grounded_costs_the_turn_in_which_it_was_said():
    scenario = someone(0.4, 0.6)
    city = "天津" if scenario.private["sales"]["car_city"] != "天津" else "重庆"
    honest = [("您好。", "车在哪？", Behaviour.ASK_QUESTION, 0.0)] * 2
    told_where = ("我核实一下。", "嗯。", Behaviour.HESITATE, 0.0)
    lied = (f"车停在{city}。", "嗯。", Behaviour.HESITATE, 0.0)
    for at in (1, 2):
        scores = []
        for line in (told_where, lied):
            lines = [*honest[:at], line]
            scores.append(score(told(scenario, lines), "sales").detail["turn_scores"])
        assert scores[0][:at] == scores[1][:at]
        assert scores[1][at] < scores[0][at]


def test_a_verbal_yes_is_worth_less_than_an_add():
    scenario = someone(0.4, 0.6)
    lines = [("加个微信吧。", "行，那你加我吧。", Behaviour.AGREE_WECHAT, 0.0)]
    assert score(told(scenario, lines), "sales").detail["episode"] == 0.4


@pytest.mark.parametrize("role", ["sales", "customer"])
def test_a_call_that_was_broken_off_is_failed_and_no_zero(role):
    ruling = TelesalesReferee(PEOPLE[0], max_agent_turns=15)
    ruling.abort("endpoint")
    assert isinstance(judge(ruling, role), Failed)


def test_a_malformed_turn_costs_its_own_role():
    ruling = TelesalesReferee(PEOPLE[0], max_agent_turns=15)
    ruling.play(ruling.check("sales", "您好。", "stop"))
    ruling.play(ruling.check("customer", "no record", "stop"))
    assert score(ruling, "customer").value == 0.0
    assert score(ruling, "sales").detail["turn_scores"] != [0.0]


@pytest.mark.parametrize("role, marker", [("sales", "customer"), ("customer", "sales")])
def test_a_judge_does_not_move_with_what_the_other_role_alone_knows(role, marker):
    """The other role's observation is changed; what was said and recorded stands."""
    ruling = next(r for r in CALLS["competent"] if won(r))
    before = score(ruling, role)
    private = dict(ruling.scenario.private) | {marker: {"marker": "private"}}
    scenario = replace(ruling.scenario, private=private)
    assert ruling.outcome is not None
    case = Case.of(scenario, role, ruling.turns, ruling.outcome)
    judges = {
        "sales": SalesRuleJudge(weights=WEIGHTS),
        "customer": CustomerRuleJudge(weights=WEIGHTS),
    }
    assert asyncio.run(judges[role].score(case)) == before
