"""Metrics of calls: Success@n, what is missing, and what is undefined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.domains.base import Outcome, Scenario
from ibrl_jax.domains.telesales.after_call import AUDIT
from ibrl_jax.domains.telesales.metrics import Result, summarise
from ibrl_jax.domains.telesales.referee import HALLUCINATION, INSTRUCTING, INVENTION


def outcome(success: bool = False, reason: str = "hang_up", **facts: Any) -> Outcome:
    filled: dict[str, Any] = {
        "turns": 7,
        "agent_turns": 3,
        "calls": [],
        "verbal_yes": success,
        "state_start": {"willingness": 0.4, "trust": 0.5, "patience": 0.6},
        "state_end": {"willingness": 0.5, "trust": 0.5, "patience": 0.3},
        "flags": {},
    }
    return Outcome(
        end_reason="confirmed" if success else reason, success=success, facts=filled | facts
    )


def result(profile: str, *args: Any, **facts: Any) -> Result:
    scenario = Scenario(id=profile, cluster=profile, public={}, private={})
    return Result.of(scenario, outcome(*args, **facts))


def calls(**wins: int) -> list[Result]:
    """Three calls of each profile, so many of which are successes."""
    return [result(name, n < k) for name, k in wins.items() for n in range(3)]


def test_section_5_2_success_at_n_counts_profiles_with_at_least_n_of_three() -> None:
    found = summarise(calls(a=3, b=2, c=1, d=0), conversations=3)
    assert found.success_at == {1: 0.75, 2: 0.5, 3: 0.25}
    assert found.success == pytest.approx(6 / 12)
    assert found.success_at_bounds == {n: (at, at) for n, at in found.success_at.items()}
    assert (found.profiles, found.profiles_planned, found.coverage) == (4, 4, 1.0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_success_at_n_is_nested(wins: list[int]) -> None:
    results = [result(str(i), n < k) for i, k in enumerate(wins) for n in range(3)]
    at = summarise(results, conversations=3).success_at
    values = [share for n in (1, 2, 3) if (share := at[n]) is not None]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    assert sum(values) * len(wins) == pytest.approx(sum(wins))


def test_a_missing_conversation_takes_its_profile_out_and_is_no_failure() -> None:
    results = calls(a=3, b=0)
    results[5] = result("b", False, "aborted")
    found = summarise(results, conversations=3)
    assert found.success_at == {1: 1.0, 2: 1.0, 3: 1.0}
    assert found.success_at_bounds == {1: (0.5, 1.0), 2: (0.5, 0.5), 3: (0.5, 0.5)}
    assert (found.profiles, found.profiles_planned) == (1, 2)
    assert found.coverage == pytest.approx(5 / 6)
    assert found.success == pytest.approx(3 / 5)
    assert found.end_reasons == {"aborted": 1, "confirmed": 3, "hang_up": 2}
    # one that never came at all is missing as well
    fewer = summarise(calls(a=3)[:2], conversations=3, asked=3)
    assert (fewer.success_at[1], fewer.coverage) == (None, pytest.approx(2 / 3))
    assert fewer.success_at_bounds == {1: (1.0, 1.0), 2: (1.0, 1.0), 3: (0.0, 1.0)}
    none_came = summarise([], conversations=2, asked=6)
    assert none_came.success_at_bounds == {1: (0.0, 1.0), 2: (0.0, 1.0)}


def test_deltas_are_end_minus_start() -> None:
    found = summarise([result("a")], conversations=1)
    assert found.delta_willingness == pytest.approx(0.1)
    assert found.delta_trust == pytest.approx(0.0)
    assert found.delta_patience == pytest.approx(-0.3)


def test_hallucination_is_over_audited_calls_alone() -> None:
    results = [
        result("a", **{HALLUCINATION: True}),
        result("b", **{HALLUCINATION: False}),
        result("c"),
    ]
    found = summarise(results, conversations=1)
    assert (found.hallucination, found.audited) == (0.5, 2)
    assert summarise([result("c")], conversations=1).hallucination is None


def audited(fabrication: bool | None, checked: int, mismatched: int, **rest: Any) -> dict[str, Any]:
    label = None if fabrication is None else {"hit": fabrication}
    labels = {"checked": list(range(checked)), "mismatched": list(range(mismatched))}
    return {AUDIT: {"fabrication": label, "leak": label, "labels": labels, **rest}}


def test_every_check_has_the_calls_that_it_answered_for_its_denominator() -> None:
    results = [
        result("a", **audited(True, 3, 1), **{HALLUCINATION: True, INVENTION: False}),
        result("b", **audited(False, 2, 0), **{HALLUCINATION: False, INVENTION: True}),
        result(
            "c",
            **audited(None, 0, 0, labels=None, dropped=["x", "y"], unanswered={"audit": "timeout"}),
            **{HALLUCINATION: None, INVENTION: None},
        ),
        result("d"),
    ]
    found = summarise(results, conversations=1)
    assert (found.hallucination, found.invention, found.audited) == (0.5, 0.5, 2)
    assert (found.fabrication, found.leak, found.labelled) == (0.5, 0.5, 2)
    assert (found.label_agreement, found.labels_checked) == (pytest.approx(4 / 5), 5)
    assert (found.dropped, found.unanswered) == (2, {"timeout": 1})
    nothing = summarise([result("d")], conversations=1)
    assert (nothing.fabrication, nothing.label_agreement, nothing.labels_checked) == (None, None, 0)


def test_instructing_turns_are_counted_by_role_over_the_calls_that_were_looked_at() -> None:
    results = [
        result("a", **{INSTRUCTING: {"sales": 2, "customer": 1}}),
        result("b", **{INSTRUCTING: {"sales": 0, "customer": 0}}),
        result("c"),
    ]
    found = summarise(results, conversations=1)
    assert found.instructing == {"sales": 2, "customer": 1}
    assert (found.instructing_calls, found.instructing_known) == (1, 2)
    assert found.instructing_a_call == 1.5
    assert summarise([result("c")], conversations=1).instructing_a_call is None


def test_malformed_ends_are_counted_by_role_and_code() -> None:
    scenario = Scenario(id="a", cluster="a", public={}, private={})
    bad = Outcome(
        end_reason="malformed",
        success=False,
        facts=dict(outcome().facts) | {"error_code": "not_json"},
        offender="customer",
    )
    found = summarise([Result.of(scenario, bad)], conversations=1)
    assert found.failures == {"customer": {"not_json": 1}}
    assert found.success == 0.0  # a result, unlike an aborted call


def test_nothing_gives_none_and_too_much_is_an_error() -> None:
    empty = summarise([], conversations=3, asked=0)
    assert (empty.success, empty.coverage, empty.success_at[1]) == (None, None, None)
    with pytest.raises(ValueError, match="4 calls of profile a"):
        summarise([result("a")] * 4, conversations=3)
    with pytest.raises(ValueError, match="2 results of 1"):
        summarise([result("a"), result("b")], conversations=1, asked=1)
