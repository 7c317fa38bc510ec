"""What a pass leaves out weighs in nothing: columns of padding, tokens that nobody trains on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.rl.cut import cut_to_need, indices, places


def chosen(rows, lengths, share, mask="own"):
    """(columns, places) of the program that runs; places None: log-probs are asked for everywhere.

    Branches of a switch agree in what they return, so each tells its numbers.
    """

    def work(cut, at):
        return jnp.asarray([cut.ids.shape[1], -1 if at is None else at.shape[1]])

    columns, asked = np.asarray(cut_to_need(work, rows, lengths, share, mask)).tolist()
    return columns, None if asked < 0 else asked


def rows_of(toy, *views):
    """A micro-batch [n, 16] of a prompt of 2 and turns (own tokens, the counterpart's)."""
    made = [toy.row(rollout=i, turns=turns) for i, turns in enumerate(views)]
    return toy.batch(made, rows=len(made), micro=1, lengths=(16,))


@pytest.mark.parametrize(
    "views, lengths, share, mask, expected",
    [
        ([[(3, 3)]], (8, 12), 0.5, "own", (8, 4)),  # 8 columns, 3 of 4 places
        ([[(5, 1)]], (8, 12), 0.5, "own", (12, 6)),  # 8 columns, too many for 4 places
        ([[(3, 3)]], (8, 12), 0.5, "all", (12, 6)),  # the same 6 are trained on
        ([[(3, 3)], [(3, 5)]], (8, 12), 0.5, "own", (12, 6)),  # the longest row counts
        ([[(7, 1)]], (8, 12), 0.5, "own", (16, None)),  # nowhere room for 7
        ([[(7, 7)]], (8, 16), 0.5, "own", (16, 8)),  # the whole length, listed
        ([[(7, 7)]], (8, 16), 1.0, "own", (16, None)),
        ([[(5, 1)]], (8, 12), 1.0, "own", (8, None)),
        ([[(5, 1)]], (), 0.5, "own", (16, None)),
        ([[(5, 1)]], (20,), 0.5, "own", (16, None)),  # longer than there are columns
    ],
)
def test_the_least_program_that_holds_all_rows_runs(toy, views, lengths, share, mask, expected):
    assert chosen(rows_of(toy, *views), lengths, share, mask) == expected


def test_indices_are_those_of_each_row_and_then_none(toy):
    mask = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]], bool)
    np.testing.assert_array_equal(indices(jnp.asarray(mask), 3), [[1, 3, 4], [4] * 3, [0, 1, 2]])


def test_a_share_of_a_length_is_at_least_one_token_and_at_most_all():
    assert [places(10, share) for share in (0.01, 0.35, 1.0)] == [1, 4, 10]


@pytest.mark.parametrize("mask", ["own", "all"])
@pytest.mark.parametrize("mode", ["tokens", "sequences"])
def test_updates_and_reference_log_probs_are_those_of_the_whole(toy, mode, mask):
    """Of own tokens one micro-batch has few, one fewer than half of 12, and one more than that."""
    views = [[(1, 1)], [(2, 1)], [(2, 3)], [(2, 1), (2, 2)], [(9, 1)], [(3, 2), (6, 0)]]
    made = [toy.row((-1) ** i * (1 + i), rollout=i, turns=turns) for i, turns in enumerate(views)]
    batch, hyper, seen = toy.batch(made, rows=6), toy.hyper(), []

    def score(params, frozen, ids, positions, segments, temperature, at):
        shape = (ids.shape[1], None if at is None else at.shape[1])
        jax.debug.callback(lambda: seen.append(shape))
        return toy.score(params, frozen, ids, positions, segments, temperature, at)

    results = []
    for settings in (dict(score=score, lengths=(6, 12), share=0.5), {}):
        learner = toy.learner(normalise=mode, mask=mask, **settings)
        logp = learner.reference_logp(toy.params(3), None, batch, 1.0)
        batch = batch.replace(reference_logp=logp)
        state, metrics = learner.update(learner.init(toy.params()), None, batch, hyper)
        results.append(jax.tree.map(np.asarray, (state.params, metrics)))
    jax.effects_barrier()
    expected = {"own": {(6, 3), (12, 6), (16, None)}, "all": {(6, 3), (16, None)}}
    assert set(seen) == expected[mask]
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
