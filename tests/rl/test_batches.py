"""Rows are what was sampled, in an order of their own, and padding is nothing."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef, Segment
from ibrl_jax.domains.base import Outcome, Scenario
from ibrl_jax.errors import UserError
from ibrl_jax.rl.advantages import Credits
from ibrl_jax.rl.batches import BatchSettings, abstract_batch, build, rows_of, to_micro

FITS = BatchSettings(lengths=(8, 16, 32), rows=8, micro_batch=4, pad_id=5, places=1)


def test_own_turns_of_4_5_6_tokens_have_a_mask_of_15(toy):
    made = toy.batch([toy.row(turns=[(4, 3), (5, 2), (6, 0)])], lengths=(32,))
    assert made.loss_mask.sum() == 15
    assert (made.segment[made.loss_mask] == Segment.OWN).all()


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), max_size=3), max_size=8))
def test_rows_hold_the_views_and_nothing_else(toy, dialogues):
    rows = [toy.row(float(g), rollout=g, turns=turns) for g, turns in enumerate(dialogues)]
    made = build(rows, FITS)
    if not any(dialogues):
        assert made is None
        return
    assert made is not None
    assert made.ids.shape == (8, made.ids.shape[1])
    assert made.ids.shape[1] in FITS.lengths
    assert made.ids.shape[1] == min(
        n for n in FITS.lengths if n >= max(len(r.view.ids) for r in rows)
    )
    # Rows of like length lie together; equal ones keep the order of their identity.
    for b, r in enumerate(sorted(rows, key=lambda r: (len(r.view.ids), r.rollout))):
        n = len(r.view.ids)
        np.testing.assert_array_equal(made.ids[b, :n], r.view.ids)
        np.testing.assert_array_equal(made.loss_mask[b, :n], r.view.loss_mask)
        np.testing.assert_array_equal(made.behaviour_logp[b, :n], r.view.behaviour_logp)
        np.testing.assert_array_equal(made.segment[b, :n], r.view.segment)
        assert (made.segment_ids[b] == np.arange(made.ids.shape[1]).__lt__(n)).all()
        assert not made.loss_mask[b, n:].any()
        assert (made.ids[b, n:] == FITS.pad_id).all()
        assert made.advantage[b] == r.rollout
        assert made.weight[b] == 1
    assert not made.weight[len(rows) :].any()
    assert not made.loss_mask[len(rows) :].any()


def test_row_order_does_not_depend_on_who_finished_first(toy):
    rows = [
        toy.row(i / 7, draw=d, rollout=g) for i, (d, g) in enumerate([("b", 0), ("a", 1), ("a", 0)])
    ]
    one, two = toy.batch(rows), toy.batch(rows[::-1])
    assert toy.same(one, two)
    np.testing.assert_allclose(one.advantage[:3], [2 / 7, 1 / 7, 0])


def test_the_pad_token_may_be_one_of_the_texts_own(toy):
    row = toy.row()
    made = toy.batch([row], pad_id=int(row.view.ids[-1]))
    assert made.segment_ids[0].sum() == len(row.view.ids)


def test_a_view_longer_than_every_bucket_is_named(toy):
    with pytest.raises(UserError, match=r"agent0 in draw d, rollout 3, has 42 tokens.*is 32"):
        build([toy.row(rollout=3, turns=[(20, 20)])], FITS)


def test_no_rows_and_rows_without_a_sampled_token_are_skipped(toy):
    assert build([], FITS) is None
    assert build([toy.row(turns=[(0, 5)])], FITS) is None


def test_too_many_rows_a_double_seat_and_a_sampled_first_token_are_refused(toy):
    with pytest.raises(ValueError, match="9 rows for a batch of 8"):
        build([toy.row(rollout=g) for g in range(9)], FITS)
    with pytest.raises(ValueError, match="two rows"):
        build([toy.row(), toy.row()], FITS)
    with pytest.raises(ValueError, match="first token"):
        build([toy.row(prompt=0)], FITS)


def test_micro_batches_are_the_same_rows_in_the_same_order(toy):
    made = toy.batch(toy.rows())
    micro = to_micro(made, 4)
    assert micro.ids.shape == (2, 4, 16)
    assert micro.advantage.shape == (2, 4)
    np.testing.assert_array_equal(micro.ids.reshape(8, 16), made.ids)
    with pytest.raises(ValueError, match="micro-batches of 3"):
        to_micro(made, 3)


def test_abstract_batches_have_the_shapes_and_dtypes_of_real_ones(toy):
    made = toy.batch(toy.rows())
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), made)
    assert abstract_batch(8, 16) == shapes


def trajectory(view, rollout=0):
    return Trajectory(
        scenario=Scenario(id="s", cluster="s", public={}, private={}),
        draw="d",
        rollout=rollout,
        first="agent0",
        matchup=frozenset({"agent0"}),
        speakers={},
        turns=(),
        views={"agent0": view},
        outcome=Outcome(end_reason="agreed", success=True),
        rewards={},
        retries={},
    )


def test_only_credited_seats_of_the_role_become_rows(toy):
    credits = Credits(seats={("agent0", "d", 1): toy.credit(2.0)}, stats={})
    played = [trajectory(toy.view(), 0), trajectory(toy.view(), 1)]
    (row,) = rows_of(played, credits, "agent0")
    assert (row.rollout, row.credit.advantage) == (1, 2.0)
    assert rows_of(played, credits, "agent1") == []


def test_a_past_policys_tokens_are_never_a_row(toy):
    credits = Credits(seats={("agent0", "d", 0): toy.credit(1.0)}, stats={})
    past = PolicyRef(id="agent0", seat="past", version=3)
    view = dataclasses.replace(toy.view(), policy=past)
    with pytest.raises(ValueError, match="no view of a live seat"):
        rows_of([trajectory(view)], credits, "agent0")


@pytest.mark.parametrize(
    "bad",
    [dict(lengths=()), dict(lengths=(8, 8)), dict(lengths=(0, 8)), dict(rows=6), dict(places=0)],
)
def test_a_bad_setting_is_named(bad):
    with pytest.raises(UserError, match=f"batch.{next(iter(bad))}"):
        BatchSettings(**(dict(lengths=(8,), rows=8, micro_batch=4, pad_id=0, places=1) | bad))
