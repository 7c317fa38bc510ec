"""The domain: rewards, prompts, seats, settings."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibrl_jax.domains.base import Domain, Outcome, Scenario
from ibrl_jax.domains.dond import fuzz
from ibrl_jax.domains.dond.domain import DealOrNoDeal, DondSettings
from ibrl_jax.domains.dond.grammar import Action, ErrorCode
from ibrl_jax.domains.dond.prompts import load_prompt
from ibrl_jax.domains.dond.referee import EndReason
from ibrl_jax.domains.dond.scenarios import make_scenario, swapped
from ibrl_jax.domains.dond.scoring import ROLES, board, other
from ibrl_jax.errors import UserError

BASE: dict[str, Any] = {
    "horizon_turns": 8,
    "select_rule": "any_try",
    "close": "either",
    "penalty_malformed": 0.1,
    "prompt": "full",
    "data_dir": None,
    "test_mode": "test200x5",
    "max_count": 4,
    "split_seed": 0,
    "split_fractions": (0.8, 0.1, 0.1),
}
SCENARIO = make_scenario((2, 2, 1), (1, 3, 2), (4, 1, 0))


def build(**changes: Any) -> DealOrNoDeal:
    return DealOrNoDeal(DondSettings(**(BASE | changes)))


DOMAIN = build()


def random_dialogue(seed: int, scenario: Scenario = SCENARIO) -> Any:
    rng = random.Random(seed)
    referee = DOMAIN.referee(scenario, rng.choice(ROLES))
    while (role := referee.to_move) is not None:
        text = fuzz.random_turn(rng, referee.turns, board(scenario)[0])
        turn = referee.check(role, text, "stop")
        if turn.valid or rng.random() < 0.1:
            referee.play(turn)
    return referee


def test_the_domain_satisfies_the_protocol():
    domain: Domain = DOMAIN
    assert (domain.name, domain.roles) == ("dond", ("agent0", "agent1"))
    assert domain.referee(SCENARIO, "agent1").to_move == "agent1"


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6))
def test_swapping_the_seats_of_a_finished_dialogue_swaps_the_rewards(seed):
    played = random_dialogue(seed)
    mirror: Any = DOMAIN.referee(swapped(SCENARIO), other(played.turns[0].role))
    for turn in played.turns:
        mirror.play(replace(turn, role=other(turn.role)))
    assert mirror.outcome.end_reason == played.outcome.end_reason
    for role in ROLES:
        assert DOMAIN.reward(mirror.outcome, role) == DOMAIN.reward(played.outcome, other(role))
    assert mirror.outcome.facts["pareto"] == played.outcome.facts["pareto"]


def test_rewards_are_own_points_the_penalty_or_nothing():
    seen = set()
    for seed in range(400):
        outcome = random_dialogue(seed).outcome
        for role in ROLES:
            reward = DOMAIN.reward(outcome, role)
            if outcome.success:
                assert reward == outcome.facts["points"][role] / 10
            else:
                assert reward == (-0.1 if outcome.offender == role else 0.0)
        seen.add(outcome.end_reason)
    assert {"deal", "disagree", "malformed", "turn_limit"} <= seen


def test_an_aborted_dialogue_is_paid_nothing_not_even_zero():
    referee = DOMAIN.referee(SCENARIO, "agent0")
    referee.abort("time-out")
    assert isinstance(referee.outcome, Outcome)
    with pytest.raises(ValueError, match="no reward"):
        DOMAIN.reward(referee.outcome, "agent0")


@pytest.mark.parametrize("prompt", ["full", "short"])
def test_no_prompt_holds_the_other_sides_values(prompt):
    marks = {role: [f"{role}-mark{j}" for j in range(3)] for role in ROLES}
    planted = Scenario(
        id="s",
        cluster="s",
        public={"counts": [2, 2, 1]},
        private={role: {"counts": [2, 2, 1], "values": marks[role]} for role in ROLES},
    )
    domain = build(prompt=prompt)
    for role in ROLES:
        text = domain.prompt(planted, role)
        assert all(mark in text for mark in marks[role])
        assert not any(mark in text for mark in marks[other(role)])
        assert other(role) not in text


def test_an_equal_side_gets_an_equal_prompt_in_either_seat():
    assert DOMAIN.prompt(SCENARIO, "agent0") == DOMAIN.prompt(swapped(SCENARIO), "agent1")


def test_prompts_end_with_the_private_input_and_share_all_that_stands_before_it():
    spoken = "item0 count 2 value 1 item1 count 2 value 3 item2 count 1 value 2"
    for name in ("full", "short"):
        domain = build(prompt=name)
        first = domain.prompt(SCENARIO, "agent0")
        assert first.endswith(spoken)
        rules = load_prompt(name).text.split("{", 1)[0]
        assert first.startswith(rules)
        assert domain.prompt(SCENARIO, "agent1").startswith(rules)
    assert "<input> 2 1 2 3 1 2 </input>" in DOMAIN.prompt(SCENARIO, "agent0")


def test_the_full_prompt_keeps_every_rule_number_and_tag():
    text = load_prompt("full").text
    for k in range(1, 11):
        assert f"\n{k}. " in text
    for part in (
        "<try> item0=N item1=N item2=N <try>",
        "<selection> item0=N item1=N item2=N <selection>",
        "<disagree>",
        "<input>",
        "count0 value0 count1 value1 count2 value2",
        "n0 * value0 + n1 * value1 + n2 * value2",
    ):
        assert part in text


def test_the_short_prompt_says_its_rules_in_under_thirty_plain_words():
    rules = load_prompt("short").text.split("{")[0].split()
    assert len(rules) < 30
    assert all(word.isalpha() or word in ("<try>", "<selection>", "<disagree>") for word in rules)


def test_a_users_prompt_is_read_from_his_folder_and_checked(tmp_path):
    file = tmp_path / "role.txt"
    file.write_text('Say {"x": 1} or {}. Yours: {input} ({parsed})')
    text = build(prompt=str(tmp_path)).prompt(SCENARIO, "agent1")
    assert text.startswith('Say {"x": 1} or {}. Yours: 2 4 2 1 1 0 (item0 count 2 value 4')
    file.write_text("Yours: {input}")
    with pytest.raises(UserError, match=r"role\.txt lacks the placeholder \{parsed\}"):
        build(prompt=str(tmp_path))
    file.write_text("{parsed} {values}")
    with pytest.raises(UserError, match=r"role\.txt has the unknown placeholder \{values\}"):
        build(prompt=str(tmp_path))
    file.write_bytes(b"{parsed} \xff")
    with pytest.raises(UserError, match=r"role\.txt is no UTF-8 text"):
        build(prompt=str(tmp_path))
    with pytest.raises(UserError, match=r"role\.txt does not exist; use full, short"):
        build(prompt=str(tmp_path / "none"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"horizon_turns": 2}, r"dond\.horizon_turns is 2"),
        ({"select_rule": "first_try"}, r"dond\.select_rule .*any_try, last_try"),
        ({"close": "slash"}, r"dond\.close .*either, literal"),
        ({"test_mode": "all"}, r"dond\.test_mode .*test200x5, rows1000"),
        ({"penalty_malformed": -0.1}, r"dond\.penalty_malformed .*0 or more"),
        ({"max_count": 9}, r"dond\.max_count"),
        ({"data_dir": "/nowhere/at/all"}, r"dond\.data_dir /nowhere/at/all is not a folder"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, message):
    with pytest.raises(UserError, match=message):
        build(**changes)


def test_an_unknown_split_or_family_is_named():
    with pytest.raises(UserError, match="splits are train, val, test"):
        DOMAIN.scenarios("dev")
    with pytest.raises(UserError, match="'tough'.*conceder.*held-out ones fair"):
        DOMAIN.scripted("tough", SCENARIO, "agent0", np.random.default_rng(0))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_fuzzed_dialogues_keep_every_invariant(seed):
    fuzz.main(60, seed)


def test_the_fuzzer_reaches_every_action_code_and_ending():
    tally = fuzz.main(25_000, 1)
    assert set(tally.actions) == set(Action)
    assert set(tally.codes) == set(ErrorCode)
    assert set(tally.ends) == set(EndReason)
    assert tally.deals > 100
    assert "add up" in str(tally)
