"""Cells of a study: what is a dialogue's, what is a whole scenario's, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ibrl_jax.evaluation.outcomes import OutcomeRow
from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.studies.declare import Measured
from ibrl_jax.studies.pooled import interval
from ibrl_jax.studies.results import Bounds, Cell, _cells, pooled
from tests.studies.fakes import DESIGN

AT = tuple(
    Measured(key=f"success@{n}", title=f"Success@{n}", form="percent", of="success", at_least=n)
    for n in (1, 2)
)
SOLD = replace(
    DESIGN,
    measures=(Measured(key="success", title="Success", form="percent"), *AT),
    judged=("success",),
)


def calls(won: dict[str, Sequence[bool | None]], counterpart: str = "x") -> list[OutcomeRow]:
    """Calls with each profile: won, lost, or broken off (None)."""
    return [
        OutcomeRow(
            policy="agent",
            column="A",
            kind="held-out",
            counterpart=counterpart,
            seat="sales",
            first="sales",
            scenario=profile,
            cluster=profile,
            seed=seed,
            end_reason="aborted" if success is None else "confirmed" if success else "hang_up",
            aborted=success is None,
            retries=0,
            values={} if success is None else {"success": float(success)},
        )
        for profile, outcomes in won.items()
        for seed, success in enumerate(outcomes)
    ]


def cell(rows: list[OutcomeRow]) -> Cell:
    return _cells(rows, SOLD)["agent", "A"]


def test_success_at_n_is_of_profiles_all_of_whose_calls_ended() -> None:
    found = cell(
        calls({"a": [True, True], "b": [False, True], "c": [False, False], "d": [True, None]})
    )
    assert found.value("success") == 4 / 7
    assert [found.value(m.key) for m in AT] == [2 / 3, 1 / 3]  # of a, b and c
    assert found.clusters[np.isfinite(found.values["success@1"])].tolist() == ["a", "b", "c"]


def test_bounds_count_what_is_missing_as_lost_and_as_won() -> None:
    found = cell(calls({"a": [True, None], "b": [None, None], "c": [False, True]}))
    assert found.bounds["success"] == Bounds(2, 5, 6)
    assert found.bounds["success@1"] == Bounds(2, 3, 3)
    assert found.bounds["success@2"] == Bounds(0, 2, 3)
    assert found.value("success@1") == 1.0  # of c alone


def test_a_profile_counts_anew_with_each_counterpart_and_seed() -> None:
    one = cell(calls({"a": [True, None]}) + calls({"a": [False, False]}, counterpart="y"))
    assert (one.value("success@1"), one.bounds["success@1"]) == (0.0, Bounds(1, 1, 2))
    both = pooled([one, cell(calls({"a": [True, True]}))])
    assert (both.value("success@1"), both.bounds["success@1"]) == (0.5, Bounds(2, 2, 3))


def test_nothing_that_ended_has_bounds_and_no_value() -> None:
    found = cell(calls({"a": [None, None]}))
    assert found.value("success@1") is None
    assert found.bounds["success@1"] == Bounds(0, 1, 1)
    assert found.bounds["success"] == Bounds(0, 2, 2)


def test_the_interval_of_success_at_n_is_over_profiles() -> None:
    settings = StatisticsSettings(confidence=0.95, resamples=400, permutations=10, seed=0)
    many = cell(calls({f"p{i}": [i % 4 == 0, i % 2 == 0] for i in range(40)}))
    found = interval(many, AT[0], settings)
    assert (found.mean, found.rows, found.clusters) == (0.5, pytest.approx(40), 40)
    assert found.low is not None
    assert found.high is not None
    spread = 1.96 * np.sqrt(0.25 / 40)
    assert found.high - found.low == pytest.approx(2 * spread, rel=0.25)
