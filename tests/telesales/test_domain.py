"""TeleSales as a domain: splits, who observes what, scripted calls, bad settings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ibrl_jax.domains.base import Domain, Outcome
from ibrl_jax.domains.telesales.customers import FAMILIES
from ibrl_jax.domains.telesales.domain import TeleSales, TelesalesSettings
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles, training_profiles
from ibrl_jax.domains.telesales.profiles.view import view
from ibrl_jax.domains.telesales.scenarios import make_scenario, view_of
from ibrl_jax.domains.telesales.sellers import SELLERS
from ibrl_jax.errors import UserError

SETTINGS = TelesalesSettings(
    language="zh",
    prompts_dir=None,
    prompt_length="full",
    seed=5,
    train_profiles=30,
    val_profiles=10,
    test_profiles=20,
    composition="sampled",
    stories="offline",
    max_agent_turns=15,
    score_step=0.01,
    conversations=3,
    test_file="",
)
TELESALES = TeleSales(SETTINGS)


def call(domain: TeleSales, seller: str, customer: str, scenario: Any, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    referee = domain.referee(scenario, "sales")
    players = {
        "sales": domain.scripted(seller, scenario, "sales", rng),
        "customer": domain.scripted(customer, scenario, "customer", rng),
    }
    while (role := referee.to_move) is not None:
        turn = referee.check(role, players[role].reply(referee.turns), "stop")
        assert turn.valid, (turn.error_code, turn.said)
        referee.play(turn)
    return referee


def test_it_is_a_domain_of_two_roles() -> None:
    domain: Domain = TELESALES
    assert (domain.name, domain.roles) == ("telesales", ("sales", "customer"))


def test_the_splits_are_disjoint_and_as_large_as_asked() -> None:
    splits = {name: TELESALES.scenarios(name) for name in ("train", "val", "test")}
    assert {name: len(s) for name, s in splits.items()} == {"train": 30, "val": 10, "test": 20}
    clusters = [s.cluster for split in splits.values() for s in split]
    assert len(set(clusters)) == 60
    for name, kind in (("train", "training"), ("val", "training"), ("test", "evaluation")):
        assert {s.private["customer"]["kind"] for s in splits[name]} == {kind}


def test_every_evaluation_profile_has_a_story() -> None:
    """Table 7: 500 of 500."""
    for scenario in TELESALES.scenarios("test"):
        story = scenario.private["customer"]["story"]
        assert story["story"]
        assert story["story"][:30] in TELESALES.adapter("simulator", "customer").system(
            scenario, "customer", ()
        )
    bare = TeleSales(replace(SETTINGS, stories="none")).scenarios("test")
    assert {s.private["customer"]["story"] for s in bare} == {None}


def test_the_same_settings_give_the_same_scenarios_byte_for_byte() -> None:
    again = TeleSales(SETTINGS)
    for split in ("train", "test"):
        texts = [
            json.dumps([dict(s.private) for s in d.scenarios(split)]) for d in (TELESALES, again)
        ]
        assert texts[0] == texts[1]


@pytest.mark.parametrize("split", ["train", "test"])
def test_no_observation_holds_what_its_side_does_not_know(split: str) -> None:
    for scenario in TELESALES.scenarios(split):
        sales, buyer = (json.dumps(scenario.private[r]) for r in ("sales", "customer"))
        for secret in ("concerns", "personality", "initial_state", "story", "difficulty"):
            assert secret not in sales
        for secret in ("vehicle", "owners", "service", "hard_factors", "case_control", "seed"):
            assert f'"{secret}"' not in buyer


@pytest.mark.parametrize(
    "profile",
    [*training_profiles(2, 10, "en"), *evaluation_profiles(2, 10, "sampled", "en")],
    ids=lambda p: p.id,
)
def test_rules_see_the_customer_of_a_scenario_as_that_of_its_profile(profile: Any) -> None:
    assert view_of(make_scenario(profile)) == view(profile)


# ------------------------------------------------------------------------- scripted calls


@pytest.mark.parametrize("language", ["zh", "en"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_scripted_calls_are_legal_from_the_first_turn_to_the_last(language, family) -> None:
    domain = TeleSales(replace(SETTINGS, language=language))
    reasons = set()
    for split in ("train", "test"):
        for seed, scenario in enumerate(domain.scenarios(split)[:15]):
            for seller in SELLERS:
                outcome = call(domain, seller, family, scenario, seed).outcome
                reasons.add(outcome.end_reason)
                assert outcome.success == (outcome.end_reason == "confirmed")
    assert {"confirmed", "hang_up"} <= reasons


@pytest.mark.parametrize("step", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_scores_start_and_stay_on_the_grid_that_the_settings_name(step, family) -> None:
    domain = TeleSales(replace(SETTINGS, score_step=step))
    seen = set()
    for split in ("train", "test"):
        for seed, scenario in enumerate(domain.scenarios(split)[:8]):
            seen |= set(scenario.private["customer"]["initial_state"].values())
            for turn in call(domain, "competent", family, scenario, seed).turns:
                own = turn.private.get("customer", {})
                seen |= {value for value in own.values() if isinstance(value, float)}
                seen |= set(own.get("state", {}).values())
    assert len(seen) > 8
    assert all(value == round(round(value / step) * step, 2) for value in seen)


def test_the_finest_grid_leaves_profiles_as_they_are() -> None:
    made = [make_scenario(p) for p in training_profiles(5, 40, "zh")]
    assert [*TELESALES.scenarios("train"), *TELESALES.scenarios("val")] == made


def test_a_tabulated_cell_holds_success_coverage_and_end_reasons() -> None:
    results = []
    for scenario in TELESALES.scenarios("test")[:6]:
        for seed in range(3):
            outcome = call(TELESALES, "competent", "rule_v1", scenario, seed).outcome
            results.append((scenario, outcome, "sales"))
    row = TELESALES.tabulate(results, planned=18)
    assert (row["n"], row["planned"], row["coverage"], row["profiles"]) == (18, 18, 1.0, 6)
    assert row["success@1"] >= row["success@2"] >= row["success@3"]
    assert row["success@1"] > 0
    assert sum(row["end_reasons"].values()) == 18
    means = [TELESALES.measures(*r) for r in results]
    assert np.mean([m["success"] for m in means if m]) == pytest.approx(row["success"])
    json.dumps(row)


def test_unknown_names_are_told_in_one_sentence() -> None:
    scenario, rng = TELESALES.scenarios("train")[0], np.random.default_rng(0)
    with pytest.raises(UserError, match="no scripted family 'nice' for customer.*rule_v1"):
        TELESALES.scripted("nice", scenario, "customer", rng)
    with pytest.raises(UserError, match="no scripted family 'rule_v1' for sales.*competent"):
        TELESALES.scripted("rule_v1", scenario, "sales", rng)
    with pytest.raises(UserError, match="no split 'dev'"):
        TELESALES.scenarios("dev")
    with pytest.raises(UserError, match="sales has no form 'simulator'; it has seller"):
        TELESALES.adapter("simulator", "sales")


# ------------------------------------------------------------------------- rewards


def outcome(reason: str, *, verbal_yes: bool = False, offender: str | None = None) -> Outcome:
    return Outcome(
        end_reason=reason,
        success=reason == "confirmed",
        facts={"verbal_yes": verbal_yes},
        offender=offender,
    )


@pytest.mark.parametrize(
    "ended, sales, buyer",
    [
        (outcome("confirmed", verbal_yes=True), 1.0, 1.0),
        (outcome("turn_limit", verbal_yes=True), 0.4, 1.0),
        (outcome("hang_up"), 0.0, 1.0),
        (outcome("malformed", verbal_yes=True, offender="sales"), 0.0, 1.0),
        (outcome("malformed", verbal_yes=True, offender="customer"), 0.4, 0.0),
    ],
)
def test_the_agent_is_paid_for_the_outcome_and_the_customer_is_indifferent_to_it(
    ended: Outcome, sales: float, buyer: float
) -> None:
    assert TELESALES.reward(ended, "sales") == sales
    assert TELESALES.reward(ended, "customer") == buyer


def test_an_aborted_call_has_no_reward_and_no_measure() -> None:
    scenario = TELESALES.scenarios("train")[0]
    referee = TELESALES.referee(scenario, "customer")
    referee.abort("gone")
    assert referee.outcome is not None
    with pytest.raises(ValueError, match="no reward"):
        TELESALES.reward(referee.outcome, "sales")
    assert TELESALES.measures(scenario, referee.outcome, "sales") is None


# ------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "change, says",
    [
        ({"language": "fr"}, "config.telesales.language is 'fr'; it must be one of zh, en."),
        ({"composition": "paper"}, "one of sampled, paper_exact."),
        ({"stories": "llm"}, "one of offline, none."),
        ({"prompt_length": "long"}, "one of full, short."),
        ({"max_agent_turns": 0}, "config.telesales.max_agent_turns is 0; it must be 1 or more."),
        ({"test_profiles": 0}, "config.telesales.test_profiles is 0"),
        ({"prompts_dir": "/nowhere/at/all"}, "which is no folder"),
    ],
)
def test_settings_that_cannot_be_used_are_told_in_one_sentence(change: Any, says: str) -> None:
    with pytest.raises(UserError) as error:
        TeleSales(replace(SETTINGS, **change))
    assert says in str(error.value)
