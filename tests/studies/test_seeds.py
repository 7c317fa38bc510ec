"""Contrasts with the seed as the unit, on data whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.studies.seeds import Arm, Sums, contrast

SETTINGS = StatisticsSettings(confidence=0.95, resamples=2000, permutations=100, seed=0)


def sums(values: list[float], known: list[float] | None = None) -> Sums:
    top = np.array(values, np.float64)
    clusters = np.array([f"s{i}" for i in range(len(values))])
    return Sums(top, np.ones(len(values)) if known is None else np.array(known), clusters)


def constant(by_seed: dict[int, float]) -> dict[int, Sums]:
    return {seed: sums([value] * 8) for seed, value in by_seed.items()}


def test_the_contrast_is_the_mean_over_seeds_of_differences_and_counts_signs() -> None:
    a = constant({0: 0.9, 1: 0.5, 2: 0.7})
    b = constant({0: 0.6, 1: 0.6, 2: 0.5, 3: 0.0})
    found = contrast([Arm(1.0, a), Arm(-1.0, b)], SETTINGS)
    assert found.by_seed == pytest.approx({0: 0.3, 1: -0.1, 2: 0.2})
    assert found.mean == pytest.approx(0.4 / 3)
    assert (found.above, found.below) == (2, 1)


def test_the_t_interval_is_that_of_the_textbook() -> None:
    a = constant({0: 1.0, 1: 2.0, 2: 3.0})
    found = contrast([Arm(1.0, a)], SETTINGS)
    reach = 4.302652729911275 * 1.0 / 3**0.5  # t of .975 with 2 degrees of freedom
    assert found.t_interval == pytest.approx((2.0 - reach, 2.0 + reach))


def test_without_spread_within_seeds_the_bootstrap_is_over_seeds_alone() -> None:
    a = constant({seed: float(seed % 2) for seed in range(40)})
    found = contrast([Arm(1.0, a)], SETTINGS)
    assert found.interval is not None
    low, high = found.interval
    spread = 1.96 * 0.5 / 40**0.5
    assert low == pytest.approx(0.5 - spread, abs=0.04)
    assert high == pytest.approx(0.5 + spread, abs=0.04)


def test_what_makes_a_scenario_hard_for_both_policies_cancels() -> None:
    hard = [0.0, 0.2, 0.4, 0.6, 0.8]
    a = {seed: sums([x + 0.1 for x in hard]) for seed in (0, 1)}
    b = {seed: sums(hard) for seed in (0, 1)}
    found = contrast([Arm(1.0, a), Arm(-1.0, b)], SETTINGS)
    assert found.interval == pytest.approx((0.1, 0.1))
    assert found.verdict == 1


def test_dialogues_within_seeds_widen_the_interval_though_seeds_agree() -> None:
    a = {seed: sums([0.0, 1.0] * 10) for seed in range(3)}
    found = contrast([Arm(1.0, a)], SETTINGS)
    assert found.interval is not None
    assert found.interval[0] < 0.45 < 0.55 < found.interval[1]
    assert found.t_interval == pytest.approx((0.5, 0.5))


def test_what_a_scenario_does_at_every_seed_is_not_averaged_away_over_seeds() -> None:
    """All seeds the same: 20 scenarios tell as much as at one seed, 1/4 of variance over 20."""
    a = {seed: sums([0.0, 1.0] * 10) for seed in range(25)}
    found = contrast([Arm(1.0, a)], SETTINGS)
    assert found.interval is not None
    reach = 1.96 * (0.25 / 20) ** 0.5
    assert found.interval == pytest.approx((0.5 - reach, 0.5 + reach), abs=0.03)


def test_the_interval_holds_the_truth_as_often_as_it_says_where_scenarios_matter() -> None:
    """Seeds and scenarios each shift a difference of two methods, which is 0 on average."""
    rng = np.random.default_rng(5)
    few = StatisticsSettings(confidence=0.9, resamples=300, permutations=1, seed=1)
    held = 0
    for _ in range(100):
        shift = 0.1 * rng.normal(size=(12, 1)) + 0.5 * rng.normal(size=30)  # [S, C]
        drawn = shift + 0.2 * rng.normal(size=shift.shape)
        found = contrast([Arm(1.0, {s: sums(list(row)) for s, row in enumerate(drawn)})], few)
        assert found.interval is not None
        held += found.interval[0] < 0 < found.interval[1]
    assert held >= 82


def test_a_seed_without_a_scenario_has_the_others(caplog: pytest.LogCaptureFixture) -> None:
    a = {0: sums([0.2, 0.4, 0.9]), 1: Sums(*(x[:2] for x in sums([0.2, 0.4])))}
    found = contrast([Arm(1.0, a)], SETTINGS)
    assert found.by_seed == pytest.approx({0: 0.5, 1: 0.3})
    assert found.note.endswith("resamples had no rows"), "those that drew the third scenario alone"


def test_a_mean_over_some_dialogues_only_is_a_quotient() -> None:
    a = {seed: sums([0.6, 0.8, 0.0], [1.0, 1.0, 0.0]) for seed in (0, 1)}
    assert contrast([Arm(1.0, a)], SETTINGS).mean == pytest.approx(0.7)


def test_a_seed_without_anything_to_average_is_left_out_and_told() -> None:
    a = {0: sums([1.0]), 1: sums([0.0], [0.0]), 2: sums([0.5])}
    found = contrast([Arm(1.0, a)], SETTINGS)
    assert set(found.by_seed) == {0, 2}
    assert found.note == "1 seeds have an arm with nothing to average"


@pytest.mark.parametrize("seeds", [{}, {3: 0.4}])
def test_one_seed_says_nothing_of_the_method(seeds: dict[int, float]) -> None:
    found = contrast([Arm(1.0, constant(seeds))], SETTINGS)
    assert (found.interval, found.t_interval, found.verdict) == (None, None, None)
    assert found.mean == (0.4 if seeds else None)
    assert "fewer than two seeds" in found.note


def test_a_difference_of_falls_is_a_contrast_of_four_arms() -> None:
    parts = [constant({0: x, 1: x}) for x in (0.8, 0.9, 0.4, 0.95)]
    found = contrast(
        [Arm(c, part) for c, part in zip((1.0, -1.0, -1.0, 1.0), parts, strict=True)], SETTINGS
    )
    assert found.mean == pytest.approx(0.45)
    assert found.verdict == 1


def test_a_word_needs_both_intervals_to_leave_0_out() -> None:
    """Two seeds of one sign: the bootstrap over them cannot reach 0, Student's t does."""
    found = contrast([Arm(coefficient=1.0, seeds=constant({0: 0.1, 1: 0.3}))], SETTINGS)
    assert found.interval is not None
    assert found.interval[0] > 0
    assert found.t_interval is not None
    assert found.t_interval[0] < 0
    assert found.verdict == 0
    sure = contrast([Arm(coefficient=1.0, seeds=constant({0: 0.2, 1: 0.21, 2: 0.19}))], SETTINGS)
    assert sure.verdict == 1
