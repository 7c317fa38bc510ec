"""A rule-based reward is scored, or it has failed for a reason; it never becomes a zero."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest

from ibrl_jax.domains.base import Outcome, Role, Scenario
from ibrl_jax.rewards.rules import RuleJudge
from ibrl_jax.rewards.types import Case, Failed, Judge, Scored


def score(reward: Callable[[Outcome, Role], float], outcome: Outcome, role: str) -> Scored | Failed:
    scenario = Scenario(id="s", cluster="c", public={}, private={"agent0": 1, "agent1": 2})
    judge: Judge = RuleJudge(reward=reward)
    return asyncio.run(judge.score(Case.of(scenario, role, [], outcome)))


def points(outcome: Outcome, role: Role) -> float:
    return outcome.facts["points"][role]


def test_each_role_is_paid_by_the_rules() -> None:
    outcome = Outcome(
        end_reason="agreement", success=True, facts={"points": {"agent0": 7, "agent1": 0}}
    )
    assert score(points, outcome, "agent0") == Scored(value=7.0)
    assert score(points, outcome, "agent1") == Scored(value=0.0)


@pytest.mark.parametrize("reason", ["aborted", "aborted: timeout"])
def test_a_dialogue_without_a_result_is_failed_with_its_reason(reason: str) -> None:
    outcome = Outcome(end_reason=reason, success=False, facts={"abort": "endpoint 'sim': timeout"})
    result = score(lambda outcome, role: 0.0, outcome, "agent0")
    assert result == Failed(reason=reason, detail={"abort": "endpoint 'sim': timeout"})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_finite_number_is_failed(value: float) -> None:
    outcome = Outcome(end_reason="agreement", success=True)
    result = score(lambda outcome, role: value, outcome, "agent1")
    assert result == Failed(reason=f"the reward of agent1 is {value}")


# ------------------------------------------------------------------------- what a judge sees


def test_a_case_holds_nothing_of_the_other_roles_private_part() -> None:
    outcome = Outcome(
        end_reason="deal",
        success=True,
        offender="agent1",
        facts={
            "points": {"agent0": "own0", "agent1": "own1"},
            "one_sided": {"agent1": "own1"},
            "detail": {"deep": {"agent0": "own0", "agent1": "own1"}, "turns": "public"},
            "best": "joint",
            "turns": "public",
            "flags": {},
            "items": None,
        },
        joint=("best",),
    )
    private = {"agent0": "own0", "agent1": "own1"}
    scenario = Scenario(id="s", cluster="c", public={"topic": "public"}, private=private)
    for role, other in (("agent0", "own1"), ("agent1", "own0")):
        case = Case.of(scenario, role, [], outcome)
        assert other not in repr(case)
        assert "joint'" not in repr(case.outcome.facts)
        own = private[role]
        assert case.observation == own
        assert case.outcome.facts == {
            "points": {role: own},
            "one_sided": {"agent1": own} if role == "agent1" else {},
            "detail": {"deep": {role: own}, "turns": "public"},
            "turns": "public",
            "flags": {},
            "items": None,
        }
        assert (case.outcome.end_reason, case.outcome.success) == ("deal", True)
    assert outcome.facts["points"] == {"agent0": "own0", "agent1": "own1"}
