"""Tokens a second and medians of rows."""

from __future__ import annotations

import pytest

from ibrl_jax.reporting.stages import medians, tokens_per_second


def row(rollout: float, saved: float = 0.0, batch: int = 600) -> dict:
    return {
        "dialogues": {"tokens": 300},
        "roles": {"a": {"batch_tokens": batch}, "b": {"updated": False}},
        "seconds": {"rollout": rollout, "update": 2.0, "within": {"saved": saved}},
    }


def test_tokens_are_sampled_a_second_of_all_that_dialogues_took() -> None:
    assert tokens_per_second(row(1.0)) == pytest.approx({"rollout": 300, "update": 300})
    assert tokens_per_second(row(1.0, saved=2.0))["rollout"] == pytest.approx(100)


def test_a_stage_without_tokens_has_no_rate() -> None:
    assert set(tokens_per_second(row(1.0, batch=0))) == {"rollout"}
    assert tokens_per_second({"seconds": {"total": 1.0}}) == {}


def test_a_median_is_over_the_rows_that_have_the_figure() -> None:
    found = medians(
        [{"a": 1.0, "within": {"b": 4.0}}, {"a": 3.0}, {"a": 2.0, "within": {"c": 5.0}}]
    )
    assert found == {"a": 2.0, "b": 4.0, "c": 5.0}
