"""The token loss: right figures, right gradients, and blind to whatever is masked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.errors import UserError
from ibrl_jax.rl.losses import LossSums, grpo, k3, token_weights, truncated_importance

MODES = ("tokens", "sequences", "constant")
k3_and_slope = jax.jit(jax.value_and_grad(k3))
ACTS = dict(kl=0.0, entropy_bonus=0.0, clip_low=0.2, clip_high=0.2)


def run(toy, batch, logp, entropy=None, *, coefficients=ACTS, **settings):
    entropy = jnp.zeros_like(logp) if entropy is None else entropy
    return grpo(logp, entropy, batch, settings=toy.loss_settings(**settings), **coefficients)


def gradient(toy, batch, logp, **kw):
    """d(loss sum)/d(logp) [B, T]."""
    return jax.grad(lambda x: run(toy, batch, x, **kw).loss)(jnp.asarray(logp))


@pytest.mark.parametrize("mode, value", [("tokens", 1.0), ("sequences", 2.0), ("constant", 0.25)])
def test_lengths_1_and_3_with_token_losses_4_and_0(toy, mode, value):
    made = toy.batch(
        [toy.row(-4.0, rollout=0, turns=[(1, 2)]), toy.row(0.0, rollout=1, turns=[(3, 2)])]
    )
    sums = run(toy, made, jnp.asarray(made.behaviour_logp), normalise=mode)
    assert sums.metrics()["loss"] == pytest.approx(value)
    assert sums.metrics()["tokens"] == 4


def test_weights_follow_the_table(toy):
    trained = jnp.array([[0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], bool)
    weight = jnp.array([1.0, 1.0, 1.0, 0.0])
    expected = {
        "tokens": (trained[:3] * 1.0, 3.0),
        "sequences": (trained[:3] * jnp.array([[0.5], [1.0], [0.0]]), 2.0),
        "constant": (trained[:3] / 8.0, 2.0),
    }
    for mode, (w, c) in expected.items():
        got_w, got_c = token_weights(
            trained, jnp.ones((4, 4), int), weight, toy.loss_settings(normalise=mode)
        )
        np.testing.assert_allclose(got_w[:3], w)
        assert not got_w[3].any()
        assert got_c == c


@pytest.mark.parametrize("junk", [np.nan, 1e9, -np.inf])
@pytest.mark.parametrize("mask", ["own", "all"])
def test_what_is_masked_may_hold_anything(toy, junk, mask):
    made = toy.batch(toy.rows())
    coefficients = dict(kl=0.5, entropy_bonus=0.1, clip_low=0.2, clip_high=0.2)
    trained = made.loss_mask if mask == "own" else made.loss_mask | (made.segment == 2)
    logp = np.where(trained, made.behaviour_logp + 0.1, 0.0).astype(np.float32)
    entropy = np.where(trained, 1.3, 0.0).astype(np.float32)
    dirty = made.replace(
        behaviour_logp=np.where(made.loss_mask, made.behaviour_logp, junk),
        reference_logp=np.where(trained, made.reference_logp, junk),
        advantage=np.where(made.weight > 0, made.advantage, junk),
    )

    def value(batch, logp, entropy):
        return run(toy, batch, logp, entropy, coefficients=coefficients, mask=mask)

    clean_sums = value(made, logp, entropy)
    dirty_logp, dirty_entropy = np.where(trained, logp, junk), np.where(trained, entropy, junk)
    dirty_sums = value(dirty, dirty_logp, dirty_entropy)
    assert toy.same(clean_sums, dirty_sums)
    grads = jax.grad(lambda x, h: value(dirty, x, h).loss, argnums=(0, 1))
    clean_grads = jax.grad(lambda x, h: value(made, x, h).loss, argnums=(0, 1))(logp, entropy)
    for got, want in zip(grads(dirty_logp, dirty_entropy), clean_grads, strict=True):
        np.testing.assert_array_equal(got, want)
        assert not np.asarray(got)[~trained].any()
        assert np.asarray(got)[trained].all()


@given(st.floats(-100, 100, width=32), st.floats(-100, 0, width=32))
def test_k3_is_never_negative_zero_only_at_equality_and_finite(difference, logp):
    reference = np.float32(logp) + np.float32(difference)
    value, slope = k3_and_slope(jnp.float32(logp), jnp.float32(reference))
    d = float(reference - np.float32(logp))
    assert np.isfinite(value)
    assert np.isfinite(slope)
    assert value >= 0
    if d == 0:
        assert value == 0
    elif abs(d) > 1e-15:  # below, its square is no fp32 number
        assert value > 0


@pytest.mark.parametrize("d", [-100.0, -3.0, -0.021, -0.019, -1e-4, 1e-6, 1e-3, 0.019, 0.021, 5.0])
def test_k3_and_its_gradient_are_exact_to_fp32(d):
    value, slope = k3_and_slope(jnp.float32(0.0), jnp.float32(d))
    d = float(np.float32(d))
    assert float(value) == pytest.approx(
        np.expm1(d) - d if abs(d) > 0.1 else d**2 / 2 + d**3 / 6 + d**4 / 24 + d**5 / 120, rel=3e-5
    )
    assert float(slope) == pytest.approx(-np.expm1(d), rel=3e-5)


def test_k3_at_a_difference_of_100_still_pulls_the_policy_up_to_the_reference():
    value, slope = k3_and_slope(jnp.float32(-100.0), jnp.float32(0.0))
    assert np.isfinite(value)
    assert slope < -1e8


def test_reference_counts_through_kl_alone(toy):
    made = toy.batch(toy.rows())
    far = made.replace(reference_logp=made.reference_logp - 1.0)
    logp = jnp.asarray(made.behaviour_logp)
    with_kl = ACTS | dict(kl=0.02)
    assert run(toy, made, logp).loss == run(toy, far, logp).loss
    assert (
        run(toy, made, logp, coefficients=with_kl).loss
        != run(toy, far, logp, coefficients=with_kl).loss
    )
    equal = made.replace(reference_logp=made.behaviour_logp)
    assert run(toy, equal, logp, coefficients=with_kl).sums["kl"] == 0.0


@pytest.mark.parametrize(
    "advantage, ratio, clipped",
    [
        (1.0, 1.5, "clip_high"),
        (1.0, 0.5, None),
        (-1.0, 0.5, "clip_low"),
        (-1.0, 1.5, None),
        (1.0, 1.25, None),
        (-1.0, 0.85, "clip_low"),
        (0.0, 9.0, None),
    ],
)
def test_the_clip_stops_a_gradient_only_where_it_would_go_on_too_far(
    toy, advantage, ratio, clipped
):
    made = toy.batch([toy.row(advantage, turns=[(3, 2)])])
    logp = jnp.asarray(made.behaviour_logp + np.log(ratio), jnp.float32)
    ends = ACTS | dict(clip_low=0.1, clip_high=0.3)
    sums = run(toy, made, logp, coefficients=ends)
    for name in ("clip_low", "clip_high"):
        assert sums.metrics()[name] == (1.0 if name == clipped else 0.0)
    slopes = np.asarray(gradient(toy, made, logp, coefficients=ends))[made.loss_mask]
    np.testing.assert_allclose(slopes, 0.0 if clipped else -ratio * advantage, rtol=1e-5)
    value = {"clip_high": 1.3, "clip_low": 0.9}[clipped] if clipped else ratio
    assert sums.metrics()["loss"] == pytest.approx(-value * advantage, rel=1e-5)


@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_a_log_ratio_of_100_is_finite(toy, gap):
    made = toy.batch(toy.rows())
    logp = jnp.asarray(made.behaviour_logp + np.float32(gap))
    assert np.isfinite(run(toy, made, logp).loss)
    assert np.isfinite(gradient(toy, made, logp)).all()


def test_entropy_bonus_lowers_the_loss_by_its_coefficient(toy):
    made = toy.batch(toy.rows())
    logp, entropy = jnp.asarray(made.behaviour_logp), jnp.full(made.ids.shape, 2.0)
    plain = run(toy, made, logp, entropy).metrics()
    bonus = run(toy, made, logp, entropy, coefficients=ACTS | dict(entropy_bonus=0.1)).metrics()
    assert bonus["loss"] - plain["loss"] == pytest.approx(-0.2, abs=1e-5)
    assert bonus["entropy"] == pytest.approx(2.0)


@pytest.mark.parametrize("mode", MODES)
def test_kl_on_degenerate_rows_is_a_setting_and_they_count_either_way(toy, mode):
    made = toy.batch([toy.row(1.0, rollout=0), toy.row(0.0, rollout=1, degenerate=True)])
    made = made.replace(reference_logp=made.behaviour_logp - 1.0)
    logp = jnp.asarray(made.behaviour_logp)
    pull = ACTS | dict(kl=1.0, entropy_bonus=0.1)
    felt, spared = (
        gradient(toy, made, logp, coefficients=pull, normalise=mode, kl_on_degenerate=flag)
        for flag in (True, False)
    )
    np.testing.assert_array_equal(felt[0], spared[0])
    assert np.asarray(felt[1])[made.loss_mask[1]].all()
    assert not np.asarray(spared[1]).any()
    counts = [
        run(toy, made, logp, normalise=mode, kl_on_degenerate=flag).count for flag in (True, False)
    ]
    assert counts[0] == counts[1]


def test_a_member_on_its_groups_mean_is_not_a_degenerate_row(toy):
    made = toy.batch([toy.row(0.0, degenerate=False)])
    made = made.replace(reference_logp=made.behaviour_logp - 1.0)
    slopes = gradient(
        toy, made, made.behaviour_logp, coefficients=ACTS | dict(kl=1.0), kl_on_degenerate=False
    )
    assert np.asarray(slopes)[made.loss_mask].all()


def test_mask_own_trains_on_no_word_of_the_counterpart_and_mask_all_does(toy):
    made = toy.batch([toy.row(2.0, turns=[(2, 3), (2, 3)])])
    theirs = (made.segment == 2) & (made.segment_ids > 0)
    logp = made.behaviour_logp - np.float32(0.5) * np.asarray(theirs)
    own = np.asarray(gradient(toy, made, logp))
    both = np.asarray(gradient(toy, made, logp, mask="all"))
    assert not own[theirs].any()
    np.testing.assert_allclose(both[theirs], -2.0)  # ratio 1, gradient -A
    np.testing.assert_array_equal(own[made.loss_mask], both[made.loss_mask])
    assert not both[~theirs & ~made.loss_mask].any()  # template and padding are nobody's
    assert run(toy, made, logp, mask="all").tokens == 10
    assert run(toy, made, logp, mask="all").peaks == run(toy, made, logp).peaks


def test_sampler_trainer_difference_is_over_own_sampled_tokens(toy):
    made = toy.batch(toy.rows())
    gap = np.where(made.loss_mask, 0.01, 5.0).astype(np.float32)
    b, t = np.argwhere(made.loss_mask)[3]
    gap[b, t] = -0.25
    metrics = run(toy, made, jnp.asarray(made.behaviour_logp + gap), mask="all").metrics()
    assert metrics["logp_gap_max"] == pytest.approx(0.25, rel=1e-5)
    assert metrics["ratio_deviation_max"] == pytest.approx(1 - np.exp(-0.25), rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mask", ["own", "all"])
def test_sums_of_parts_are_the_sums_of_the_whole(toy, mode, mask):
    made = toy.batch(toy.rows())
    logp = jnp.asarray(made.behaviour_logp + 0.1)
    whole = run(toy, made, logp, normalise=mode, mask=mask)
    parts = LossSums.zeros()
    for b in range(0, 8, 2):
        piece = jax.tree.map(lambda x, b=b: x[b : b + 2], made)
        parts = parts.merge(run(toy, piece, logp[b : b + 2], normalise=mode, mask=mask))
    for got, want in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("mask", ["own", "all"])
def test_padding_is_known_by_segment_ids_whatever_else_it_holds(toy, mask):
    made = toy.batch(toy.rows())
    padding = made.segment_ids == 0
    dirty = made.replace(
        segment=np.where(padding, 2, made.segment), loss_mask=made.loss_mask | padding
    )
    logp = jnp.asarray(made.behaviour_logp + 0.1)
    assert toy.same(run(toy, made, logp, mask=mask), run(toy, dirty, logp, mask=mask))


def test_no_rows_are_a_loss_of_zero(toy):
    made = toy.batch(toy.rows())
    empty = made.replace(weight=np.zeros_like(made.weight))
    metrics = run(toy, empty, jnp.asarray(made.behaviour_logp)).metrics()
    assert metrics["loss"] == metrics["tokens"] == metrics["logp_gap_max"] == 0.0
    assert all(np.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize(
    "bad", [dict(normalise="mean"), dict(normalise="constant", constant=0.0), dict(mask="none")]
)
def test_a_bad_setting_is_named(toy, bad):
    with pytest.raises(UserError, match=list(bad)[-1]):
        toy.loss_settings(**bad)


def test_importance_weighs_the_clipped_objective_and_nothing_else(toy):
    made = toy.batch(toy.rows())
    coefficients = dict(kl=0.5, entropy_bonus=0.1, clip_low=0.2, clip_high=0.2)
    logp = jnp.asarray(np.where(made.loss_mask, made.behaviour_logp + 0.1, 0.0), jnp.float32)

    def both(importance, **changes):
        batch = made.replace(importance=importance)
        return gradient(toy, batch, logp, coefficients=coefficients | changes), run(
            toy, batch, logp, coefficients=coefficients | changes
        )

    weights = np.random.default_rng(0).uniform(0.2, 2.0, made.ids.shape).astype(np.float32)
    objective = dict(kl=0.0, entropy_bonus=0.0)
    plain, _ = both(made.importance, **objective)
    weighed, _ = both(weights, **objective)
    np.testing.assert_allclose(weighed, plain * weights, rtol=1e-6)
    assert np.count_nonzero(plain) == made.loss_mask.sum()
    pull_alone, said = both(made.importance)
    pull_weighed, says = both(weights)
    np.testing.assert_allclose(pull_weighed - weighed, pull_alone - plain, atol=1e-6)
    assert toy.same(says.sums, said.sums)


def test_importance_is_a_fixed_weight_and_read_on_trained_tokens_alone(toy):
    made = toy.batch(toy.rows())
    junk = made.replace(importance=np.where(made.loss_mask, made.importance, np.nan))
    logp = jnp.asarray(made.behaviour_logp)
    assert toy.same(run(toy, made, logp), run(toy, junk, logp))
    slope = jax.grad(lambda i: run(toy, made.replace(importance=i), logp).loss)(made.importance)
    assert not np.asarray(slope).any()


def test_truncated_importance_is_the_ratio_held_below_a_limit():
    proximal = jnp.log(jnp.array([0.5, 0.5, 0.5, 1.0, 0.0]))
    behaviour = jnp.log(jnp.array([0.5, 0.25, 0.1, 1e-30, 0.5]))
    weights = truncated_importance(proximal, behaviour, 3.0)
    np.testing.assert_allclose(weights, [1.0, 2.0, 3.0, 3.0, 0.0], rtol=1e-6)
    assert float(weights[2]) == 3.0  # to the bit: a limit that was reached can be counted
    slope = jax.grad(lambda x: truncated_importance(x, behaviour[:2], 3.0).sum())(proximal[:2])
    assert not np.asarray(slope).any()
