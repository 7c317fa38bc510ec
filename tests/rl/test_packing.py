"""Views that share a row learn what they would learn each in a row of its own."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import init_params
from ibrl_jax.models.presets import preset
from ibrl_jax.models.score import score
from ibrl_jax.rl.batches import BatchSettings, build, to_micro
from tests.trainer.conftest import quick_compile

MODES = ("tokens", "sequences", "constant")
SHARED = BatchSettings(lengths=(24,), rows=8, micro_batch=2, pad_id=0, places=3)


def some_rows(toy):
    """Views of 7 to 15 tokens; one of a group without a signal."""
    rows = toy.rows(7)
    rows[3] = dataclasses.replace(rows[3], credit=toy.credit(0.0, degenerate=True))
    return rows


def apart_and_packed(toy):
    rows = some_rows(toy)
    apart, packed = build(rows, dataclasses.replace(SHARED, places=1)), build(rows, SHARED)
    assert apart is not None
    assert packed is not None
    assert (packed.segment_ids.max(axis=1) > 1).any()
    return apart, packed


def gradient_of(learner, params, batch, hyper):
    """(gradient, metrics) of an update, from the first moment: mu = (1 - b1) g."""
    state, metrics = learner.update(learner.init(params), None, batch, hyper)
    mu = optax.tree.get(state.opt_state, "mu")
    return jax.tree.map(lambda m: np.asarray(m) / 0.1, mu), metrics


def assert_the_same(one, two, of_largest):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=of_largest * max(np.abs(y).max(), 1e-3))


def test_each_view_is_whole_with_positions_and_credit_of_its_own(toy):
    rows, (_, packed) = some_rows(toy), apart_and_packed(toy)
    left = {row.rollout: row for row in rows}
    for b, place in zip(*np.nonzero(packed.weight), strict=True):
        here = packed.segment_ids[b] == place + 1
        (row,) = [r for r in left.values() if np.array_equal(r.view.ids, packed.ids[b, here])]
        del left[row.rollout]
        np.testing.assert_array_equal(packed.positions[b, here], np.arange(here.sum()))
        np.testing.assert_array_equal(packed.loss_mask[b, here], row.view.loss_mask)
        np.testing.assert_array_equal(packed.behaviour_logp[b, here], row.view.behaviour_logp)
        assert packed.advantage[b, place] == np.float32(row.credit.advantage)
        assert packed.degenerate[b, place] == row.credit.degenerate
    assert not left


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 4))
def test_no_row_is_overfull_and_the_order_of_arrival_does_not_matter(toy, lengths, places):
    rows = [toy.row(rollout=g, turns=[(n, 0)]) for g, n in enumerate(lengths)]
    fits = dataclasses.replace(SHARED, places=places)
    one, two = build(rows, fits), build(rows[::-1], fits)
    assert one is not None
    assert toy.same(one, two)
    assert one.segment_ids.max() <= places
    assert (one.segment_ids > 0).sum() == sum(n + 2 for n in lengths)
    used = (one.segment_ids > 0).sum(axis=1)
    assert (np.diff(used[used > 0]) >= 0).all()  # rows of like length lie together
    assert not used[np.count_nonzero(used) :].any()  # and blank ones come last


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pulled", [True, False])
def test_loss_and_gradient_are_those_of_a_row_each(toy, mode, pulled):
    apart, packed = apart_and_packed(toy)
    learner = toy.learner(normalise=mode, kl_on_degenerate=pulled)
    hyper = toy.hyper(kl=0.3)
    one, said = gradient_of(learner, toy.params(), apart, hyper)
    two, says = gradient_of(learner, toy.params(), packed, hyper)
    assert_the_same(two, one, 1e-6)
    assert_the_same(says, said, 1e-6)


def test_packed_micro_batches_may_come_with_their_axis(toy):
    """As they do on a mesh: [M, b, T] and [M, b, S]."""
    _, packed = apart_and_packed(toy)
    learner, hyper = toy.learner(normalise="sequences"), toy.hyper()
    one = learner.update(learner.init(toy.params()), None, packed, hyper)
    two = learner.update(learner.init(toy.params()), None, to_micro(packed, 2), hyper)
    assert toy.same(one, two)


def test_reference_log_probs_are_those_of_a_row_each(toy):
    apart, packed = apart_and_packed(toy)
    learner = toy.learner()

    def known(batch):
        logp = np.asarray(learner.reference_logp(toy.params(), None, batch, 0.8))
        return np.sort(logp[batch.loss_mask])

    np.testing.assert_allclose(known(packed), known(apart), atol=1e-6)
    assert known(apart).all()


@pytest.mark.parametrize("name", ["qwen3_micro", "qwen3_5_micro"])
def test_a_network_learns_from_packed_views_what_it_does_from_single_ones(toy, name):
    config = preset(name, vocab_size=16)
    kinds = tuple(dict.fromkeys(config.period))  # one layer of each kind
    config = dataclasses.replace(config, layers=len(kinds), period=kinds)

    def scored(trained, frozen, ids, positions, segment_ids, temperature, at):
        model, tokens = Decoder(config, None), (ids, positions, segment_ids)
        return score(model, trained, frozen, *tokens, temperature, 32, at)

    learner = toy.learner(score=scored, normalise="sequences")
    params = init_params(config, 0)
    results = []
    with quick_compile():
        for batch in apart_and_packed(toy):
            ((gradient, sums),) = learner.gradient(params, None, batch, toy.hyper(), 1)
            results.append((gradient, sums.metrics()))
    assert_the_same(results[1][0], results[0][0], 1e-5)
    for key, value in results[1][1].items():
        assert float(value) == pytest.approx(float(results[0][1][key]), rel=1e-6, abs=2e-6), key
