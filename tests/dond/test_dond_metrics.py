"""Metrics against figures worked out by hand; what is undefined is None."""

import pytest

from ibrl_jax.domains.base import Outcome
from ibrl_jax.domains.dond.metrics import Result, by_seat, summarise
from ibrl_jax.domains.dond.scenarios import make_scenario
from ibrl_jax.domains.dond.scoring import ROLES, settle

SCENARIO = make_scenario((2, 2, 1), (1, 3, 2), (4, 1, 0))


def outcome(items=None, *, reason=None, offender=None, code=None, turns=5):
    facts = settle(SCENARIO, items) | {"turns": turns, "flags": {"thought": 1}}
    if code:
        facts["error_code"] = code
    reason = reason or ("deal" if items else "disagree")
    return Outcome(end_reason=reason, success=items is not None, facts=facts, offender=offender)


def result(*args, role="agent0", **kwargs):
    return Result.of(SCENARIO, outcome(*args, **kwargs), role)


def test_metrics_of_a_small_set_are_those_worked_out_by_hand():
    results = [
        result((0, 2, 1), turns=5),  # 8 + 8 of 16, Pareto-optimal
        result((2, 0, 0), role="agent1", turns=3),  # 2 + 2 of 16, not
        result(turns=8),  # no deal
        result(reason="turn_limit", turns=20),
    ]
    s = summarise(results)
    assert (s.asked, s.scored, s.coverage, s.agreed) == (4, 4, 1.0, 2)
    assert s.agreement == 0.5
    assert s.own_utility == pytest.approx((0.8 + 0.2) / 2)
    assert s.joint_value == pytest.approx((1.0 + 0.25) / 2)
    assert (s.pareto, s.pareto_count) == (0.5, 1)
    assert s.expected_utility == pytest.approx(0.25)
    assert (s.turns, s.turns_to_deal) == (9.0, 4.0)
    assert s.points == 10
    assert s.end_reasons == {"deal": 2, "disagree": 1, "turn_limit": 1}
    assert s.seats == {"agent0": 3, "agent1": 1}
    assert s.flags == {"thought": 4}


def test_both_seats_of_a_dialogue_share_all_but_points_and_blame():
    mine, theirs = (result((1, 2, 1), role=role) for role in ROLES)
    assert (mine.points, theirs.points, mine.joint) == (9, 4, 13)
    assert (mine.own_utility, theirs.own_utility) == (0.9, 0.4)
    assert mine.joint_value == theirs.joint_value == 13 / 16
    assert mine.pareto is theirs.pareto is True


def test_failures_of_format_are_told_apart_by_whose_they_are():
    bad = {"reason": "malformed", "offender": "agent1", "code": "bad_items"}
    s = summarise([result(**bad), result(role="agent1", **bad), result(role="agent1", **bad)])
    assert s.failures == {"own": {"bad_items": 2}, "counterpart": {"bad_items": 1}}
    assert s.agreement == 0.0


def test_what_is_undefined_is_none():
    empty = summarise([])
    assert (empty.coverage, empty.agreement, empty.own_utility, empty.joint_value) == (None,) * 4
    assert (empty.pareto, empty.expected_utility, empty.turns) == (None, None, None)
    never = summarise([result(), result()])
    assert (never.agreement, never.expected_utility) == (0.0, 0.0)
    assert (never.own_utility, never.joint_value, never.pareto, never.turns_to_deal) == (None,) * 4
    assert result().own_utility is None
    assert result().joint_value is None
    assert result().pareto is None


def test_an_aborted_dialogue_lowers_coverage_and_nothing_else():
    done = [result((0, 2, 1)), result()]
    aborted = result(reason="aborted", turns=1)
    s = summarise([*done, aborted])
    assert (s.asked, s.scored, s.coverage) == (3, 2, 2 / 3)
    assert (s.agreement, s.turns) == (0.5, 5.0)
    assert s.end_reasons["aborted"] == 1
    only = summarise([aborted])
    assert (only.coverage, only.agreement, only.expected_utility) == (0.0, None, None)


def test_missing_results_lower_coverage_and_surplus_ones_are_an_error():
    assert summarise([result()], asked=4).coverage == 0.25
    with pytest.raises(ValueError, match="2 results of 1"):
        summarise([result(), result()], asked=1)


def test_by_seat_splits_the_results():
    seats = by_seat([result((1, 2, 1)), result((1, 2, 1), role="agent1"), result(role="agent1")])
    assert {role: s.asked for role, s in seats.items()} == {"agent0": 1, "agent1": 2}
    assert (seats["agent0"].own_utility, seats["agent1"].own_utility) == (0.9, 0.4)
