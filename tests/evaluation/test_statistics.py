"""Clustered statistics against the printed figures of the paper, and where no figure exists."""

from typing import Any

import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.statistics import (
    Arm,
    StatisticsSettings,
    bootstrap_difference,
    bootstrap_mean,
    compare,
    holm,
    kappa,
    kappa_of_ratings,
    odds_ratio,
    percentiles,
    permutation_p,
)

SETTINGS = StatisticsSettings(confidence=0.95, resamples=2000, permutations=2000, seed=0)

# Success@1, 2, 3 in per cent of 500 profiles, successes of 1,500, odds ratio, Holm p.
REFERENCES = {
    "4B": ("IB-RL 4B", (53.4, 13.6, 1.6), 343),
    "9B": ("IB-RL 9B", (89.6, 63.2, 23.8), 883),
}
TABLE_1 = [
    ("4B", "SFT", (4.8, 0.0, 0.0), 24, 18.23, "<.001"),
    ("4B", "SFT user", (37.2, 7.6, 0.4), 226, 1.67, "<.001"),
    ("4B", "DS user", (22.4, 4.8, 0.0), 136, 2.97, "<.001"),
    ("9B", "SFT", (62.8, 22.2, 4.8), 449, 3.35, "<.001"),
    ("9B", "SFT user", (78.8, 39.6, 10.4), 644, 1.90, "<.001"),
    ("9B", "DS user", (84.6, 54.4, 19.6), 793, 1.28, "<.01"),
    ("9B", "pool of 3", (64.2, 25.4, 5.0), 473, 3.11, "<.001"),
    ("9B", "Qwen-122B", (71.8, 30.4, 6.0), 541, 2.54, "<.001"),
    ("9B", "GLM-5.2", (85.4, 56.4, 20.2), 810, 1.22, "<.02"),
    ("9B", "DS V4 Pro", (83.6, 51.6, 15.4), 753, 1.42, "<.001"),
]


def profiles(name: str, success_at: tuple[float, ...], seed: int) -> Arm:
    """Three conversations of each of 500 profiles whose Success@1..3 are those printed."""
    fails = np.ones((500, 3))
    for n, percent in enumerate(success_at):
        fails[: round(5 * percent), n] = 0
    order = np.random.default_rng(seed).permutation(500)
    return Arm(name=name, fails=fails.ravel(), clusters=np.repeat(order, 3))


def arm(name: str, fails, clusters=None) -> Arm:
    fails = np.asarray(fails, np.float64)
    return Arm(
        name=name,
        fails=fails,
        clusters=np.arange(fails.size) if clusters is None else np.asarray(clusters),
    )


@pytest.mark.parametrize(("scale", "name", "success_at", "won", "ratio", "p"), TABLE_1)
def test_printed_odds_ratio_of_table_1_is_reproduced(scale, name, success_at, won, ratio, p):
    ref_name, ref_success, ref_won = REFERENCES[scale]
    reference, policy = profiles(ref_name, ref_success, 1), profiles(name, success_at, 2)
    assert (policy.fails == 0).sum() == won
    assert (reference.fails == 0).sum() == ref_won
    found = odds_ratio(reference, policy, SETTINGS)
    assert found.status == "estimated"
    assert found.odds_ratio is not None
    assert round(found.odds_ratio, 2) == ratio
    assert found.p is not None
    assert found.p < float(p[1:])


def test_printed_odds_ratios_are_not_those_of_success_at_1():
    reference, policy = (
        arm(name, np.repeat([0, 1], [round(5 * s), 500 - round(5 * s)]))
        for name, s in (("IB-RL", 53.4), ("SFT", 4.8))
    )
    found = odds_ratio(reference, policy, SETTINGS)
    assert found.odds_ratio is not None
    assert round(found.odds_ratio, 2) == 22.73


def test_pairwise_fits_give_the_ratio_and_error_of_one_fit_over_all_arms():
    import statsmodels.api as sm

    arms = [profiles("ref", (89.6, 63.2, 23.8), 1)] + [
        profiles(n, s, i) for i, (_, n, s, *_) in enumerate(TABLE_1[3:6], 2)
    ]
    columns = np.repeat(np.eye(4), 1500, axis=0)
    columns[:, 0] = 1
    joint: Any = sm.GEE(
        np.concatenate([a.fails for a in arms]),
        columns,
        groups=np.concatenate([a.clusters for a in arms]),
        family=sm.families.Binomial(),
    ).fit()
    for i, other in enumerate(arms[1:], 1):
        found = odds_ratio(arms[0], other, SETTINGS)
        low, high = np.exp(joint.conf_int()[i])
        assert found.odds_ratio == pytest.approx(np.exp(joint.params[i]), rel=1e-6)
        assert found.interval == pytest.approx((low, high), rel=1e-6)


def test_clusters_widen_the_interval_over_independent_rows():
    rng = np.random.default_rng(0)
    alike = np.repeat(rng.integers(0, 2, 60), 5)
    other = np.repeat(rng.integers(0, 2, 60), 5)
    labels = np.repeat(np.arange(60), 5)
    rows = odds_ratio(arm("a", alike), arm("b", other), SETTINGS)
    grouped = odds_ratio(arm("a", alike, labels), arm("b", other, labels), SETTINGS)
    assert rows.odds_ratio == pytest.approx(grouped.odds_ratio)
    assert rows.interval
    assert grouped.interval
    assert grouped.interval[1] / grouped.interval[0] > 1.5 * rows.interval[1] / rows.interval[0]


@pytest.mark.parametrize("rate", [0, 1])
def test_separated_arm_gets_a_bound_and_a_permutation_p_and_no_interval(rate):
    reference = arm("ref", np.tile([0, 1], 50))
    found = odds_ratio(reference, arm("a", np.full(100, rate)), SETTINGS)
    assert found.status == "separated"
    bound = (0.5 * 50.5) / (100.5 * 50.5)
    assert found.odds_ratio == pytest.approx(1 / bound if rate else bound)
    assert found.interval is None
    assert found.p == pytest.approx(1 / 2001)


@pytest.mark.parametrize("rate", [0, 1])
def test_two_arms_without_variation_have_no_ratio_and_no_p(rate):
    found = odds_ratio(arm("ref", np.full(80, rate)), arm("a", np.full(80, rate)), SETTINGS)
    assert (found.status, found.odds_ratio, found.p) == ("no variation", None, None)


def test_clusters_that_do_not_differ_have_no_error():
    labels, half = np.repeat(np.arange(50), 2), np.tile([0, 1], 50)
    found = odds_ratio(arm("ref", half, labels), arm("a", half, labels), SETTINGS)
    assert found.status == "no variation"
    assert found.odds_ratio == pytest.approx(1.0)
    assert found.p is None


def test_fewer_than_two_clusters_are_refused():
    one = arm("a", [0, 1, 1, 0], [7, 7, 7, 7])
    found = odds_ratio(arm("ref", np.tile([0, 1], 50)), one, SETTINGS)
    assert (found.status, found.odds_ratio, found.p) == ("refused", None, None)


def test_fewer_than_forty_clusters_warn_and_widen_the_errors():
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 2, (2, 39 * 3)).astype(float)
    labels = np.repeat(np.arange(39), 3)
    few = odds_ratio(arm("ref", a, labels), arm("a", b, labels), SETTINGS)
    assert few.status == "few clusters"
    assert "only 39 clusters" in few.note
    more = np.r_[labels, np.full(3, 39)]
    a, b = np.r_[a, [0, 1, 0]], np.r_[b, [0, 1, 0]]
    enough = odds_ratio(arm("ref", a, more), arm("a", b, more), SETTINGS)
    assert enough.status == "estimated"
    assert few.interval
    assert enough.interval
    assert np.ptp(np.log(few.interval)) > np.ptp(np.log(enough.interval))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.5, 2])
def test_outcome_that_is_neither_zero_nor_one_is_an_error(bad):
    with pytest.raises(UserError, match="policy-x"):
        odds_ratio(arm("ref", [0, 1, 0]), arm("policy-x", [0, 1, bad]), SETTINGS)


def test_holm_reproduces_the_worked_example_and_leaves_out_what_does_not_exist():
    assert holm([0.01, 0.04, 0.03])[0] == pytest.approx([0.03, 0.06, 0.06])
    adjusted, family = holm([0.01, None, 0.04, float("nan"), 0.03])
    assert family == 3
    assert adjusted[1] is None
    assert adjusted[3] is None
    assert [adjusted[i] for i in (0, 2, 4)] == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == ([1.0, 1.0], 2)
    assert holm([None]) == ([None], 0)


def test_family_counts_only_the_comparisons_that_have_a_p():
    rng = np.random.default_rng(0)
    full = np.ones(100)
    some = arm("some", rng.integers(0, 2, 100))
    by_name = {r.policy: r for r in compare(arm("ref", full), [arm("same", full), some], SETTINGS)}
    assert by_name["same"].p_holm is None
    assert by_name["some"].p_holm == by_name["some"].p
    assert {r.family for r in by_name.values()} == {1}


def test_permutation_is_uniform_when_the_arms_do_not_differ():
    rng = np.random.default_rng(5)
    few = StatisticsSettings(confidence=0.95, resamples=1, permutations=199, seed=0)
    labels = np.repeat(np.arange(30), 2)
    ps = []
    for _ in range(300):
        hard = rng.random(30)[labels]
        a, b = (rng.random((2, 60)) < hard).astype(float)
        ps.append(permutation_p(arm("ref", a, labels), arm("a", b, labels), few))
    assert 0.02 < np.mean(np.array(ps) <= 0.1) < 0.16


def test_permutation_deals_clusters_that_only_one_arm_met():
    apart = permutation_p(
        arm("ref", np.zeros(20), np.arange(20)), arm("a", np.ones(20), np.arange(20, 40)), SETTINGS
    )
    assert apart == pytest.approx(1 / 2001)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2, (2, 20)).astype(float)
    alike = permutation_p(arm("ref", a, np.arange(20)), arm("a", b, np.arange(20, 40)), SETTINGS)
    assert alike > 0.05


def test_bootstrap_interval_has_the_width_of_the_cluster_means():
    rng = np.random.default_rng(1)
    means = rng.normal(0.5, 0.2, 400)
    found = bootstrap_mean(np.repeat(means, 4), np.repeat(np.arange(400), 4), SETTINGS)
    assert found.mean == pytest.approx(means.mean())
    assert found.low is not None
    assert found.high is not None
    half = 1.96 * means.std() / 20
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.08)
    assert (found.rows, found.clusters, found.note) == (1600, 400, "")


def test_bootstrap_over_agreed_dialogues_resamples_its_denominator():
    agreed = np.tile([1.0, 1.0, 0.0], 100)
    values = np.where(agreed, np.random.default_rng(0).random(300), 0.0)
    found = bootstrap_mean(values, np.repeat(np.arange(100), 3), SETTINGS, weights=agreed)
    assert found.mean == pytest.approx(values.sum() / 200)
    assert found.rows == 200
    none = bootstrap_mean(values, np.arange(300), SETTINGS, weights=np.zeros(300))
    assert none.mean is None
    assert none.note == "nothing to average"


def test_bootstrap_of_a_difference_cancels_what_both_arms_share():
    rng = np.random.default_rng(2)
    hard = rng.normal(0, 1, 200)
    labels = np.arange(200)
    a, b = hard + 0.5, hard + rng.normal(0, 0.05, 200)
    together = bootstrap_difference((a, labels), (b, labels), SETTINGS)
    apart = bootstrap_difference((a, labels), (b, labels + 1000), SETTINGS)
    assert together.mean == pytest.approx(apart.mean) == pytest.approx((a - b).mean())
    assert together.low
    assert together.high
    assert apart.low
    assert apart.high
    assert apart.high - apart.low > 5 * (together.high - together.low)


def test_bootstrap_is_seeded_and_says_where_no_interval_exists():
    values, labels = np.random.default_rng(0).random(50), np.repeat(np.arange(10), 5)
    assert bootstrap_mean(values, labels, SETTINGS) == bootstrap_mean(values, labels, SETTINGS)
    one = bootstrap_mean(values, np.zeros(50), SETTINGS)
    assert (one.low, one.high, one.note) == (None, None, "one cluster only")
    flat = bootstrap_mean(np.ones(50), labels, SETTINGS)
    assert (flat.low, flat.high) == (1.0, 1.0)
    assert "no width" in flat.note
    with pytest.raises(UserError, match="left out"):
        bootstrap_mean(np.r_[values[:-1], np.nan], labels, SETTINGS)


def test_kappas_of_table_13_are_reproduced():
    annotators = [[82, 13], [11, 94]]  # A by B
    simulator_a = [[85, 6], [10, 99]]
    simulator_b = [[84, 7], [9, 100]]
    for table, value in ((annotators, 0.7592), (simulator_a, 0.8393), (simulator_b, 0.8390)):
        found = kappa(np.array(table), SETTINGS)
        assert found.value is not None
        assert round(found.value, 4) == value
    assert kappa(np.array(annotators), SETTINGS).agreement == 0.88
    assert kappa(np.array(simulator_a), SETTINGS).agreement == 0.92


def test_kappa_with_one_category_is_undefined():
    found = kappa_of_ratings(["yes"] * 5, ["yes"] * 5, SETTINGS)
    assert found.value is None
    assert "one category" in found.note
    assert kappa_of_ratings([1, 0, 1], [1, 0, 1], SETTINGS).value == 1.0
    with pytest.raises(UserError, match="2 ratings"):
        kappa_of_ratings([1, 0], [1], SETTINGS)


@pytest.mark.parametrize("change", [{"confidence": 1.0}, {"resamples": 0}, {"permutations": 0}])
def test_settings_without_a_meaning_are_refused(change):
    good = {"confidence": 0.95, "resamples": 10, "permutations": 10, "seed": 0}
    with pytest.raises(UserError, match=next(iter(change))):
        StatisticsSettings(**(good | change))


def test_percentiles_leave_out_resamples_without_a_value_and_say_how_many() -> None:
    settings = StatisticsSettings(confidence=0.9, resamples=1, permutations=1, seed=0)
    drawn = np.array([np.nan, *range(101), np.inf])
    interval, note = percentiles(drawn, settings)
    assert interval == pytest.approx((5.0, 95.0))
    assert note == "2 of 103 resamples had no rows"
    assert percentiles(np.full(4, np.nan), settings) == (None, "no resample had rows")
