"""Drawing tokens: the right distribution, its log-probability, and independent keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ibrl_jax.errors import UserError
from ibrl_jax.sampler.sampling import Temperature, TopK, TopP, draw

R, V = 20_000, 12
LOGITS = np.random.default_rng(0).normal(size=V).astype(np.float32) * 1.5


@functools.partial(jax.jit, static_argnums=0)
def drawn(strategy, logits, keys, positions, temperatures):
    return draw(strategy, logits, keys, positions, temperatures)


def many(strategy, temperature, key=(1, 2)):
    """R draws at R positions with one key."""
    return drawn(
        strategy,
        np.broadcast_to(LOGITS, (R, V)),
        np.broadcast_to(np.asarray(key, np.uint32), (R, 2)),
        np.arange(R),
        np.full(R, temperature, np.float32),
    )


def softmax(x):
    e = np.exp(x - x.max(), dtype=np.float64)
    return e / e.sum()


def truncated(kept, temperature):
    return softmax(np.where(kept, LOGITS / temperature, -np.inf))


def first(n):
    """The n largest."""
    return np.isin(np.arange(V), np.argsort(-LOGITS)[:n])


def nucleus(p, temperature):
    probs = softmax(LOGITS / temperature)
    order = np.argsort(-probs)
    count = int(np.searchsorted(np.cumsum(probs[order]), p)) + 1
    return first(count)


CASES = [
    (Temperature(), 1.0, first(V)),
    (Temperature(), 0.6, first(V)),
    (TopK(3), 0.8, first(3)),
    (TopK(100), 1.0, first(V)),
    (TopP(0.7), 1.0, nucleus(0.7, 1.0)),
    (TopP(0.9), 0.5, nucleus(0.9, 0.5)),
    (TopP(1.0), 1.0, first(V)),
    (TopP(1e-6), 1.0, first(1)),
]


@pytest.mark.parametrize(("strategy", "temperature", "kept"), CASES)
def test_tokens_follow_the_distribution_whose_log_probability_is_recorded(
    strategy, temperature, kept
):
    probs = truncated(kept, temperature)
    ids, logps = map(np.asarray, many(strategy, temperature))
    np.testing.assert_allclose(logps, np.log(probs[ids]), atol=1e-5)
    counts = np.bincount(ids, minlength=V)
    assert counts[~kept].sum() == 0
    if kept.sum() > 1:
        assert stats.chisquare(counts[kept], R * probs[kept]).pvalue > 1e-3


def test_temperature_zero_is_the_argmax_with_its_log_probability_at_one():
    ids, logps = map(np.asarray, many(Temperature(), 0.0))
    assert (ids == LOGITS.argmax()).all()
    np.testing.assert_allclose(logps, np.log(softmax(LOGITS).max()), atol=1e-6)


def test_ties_and_nans_give_ids_of_the_vocabulary():
    logits = np.stack([np.zeros(V), np.full(V, np.nan)]).astype(np.float32)
    keys, positions = np.zeros((2, 2), np.uint32), np.zeros(2, np.int32)
    ids, _ = drawn(Temperature(), logits, keys, positions, np.zeros(2, np.float32))
    assert ids[0] == 0
    assert 0 <= ids[1] < V


def test_a_draw_depends_on_its_key_and_position_alone():
    ids, _ = map(np.asarray, many(Temperature(), 1.0))
    other, _ = map(np.asarray, many(Temperature(), 1.0, key=(1, 3)))
    chance = (softmax(LOGITS) ** 2).sum()
    assert np.mean(ids == other) == pytest.approx(chance, abs=0.02)
    assert np.mean(ids[1:] == ids[:-1]) == pytest.approx(chance, abs=0.02)
    some = np.array([5, 17_000, 3])
    again, _ = drawn(
        Temperature(),
        jnp.broadcast_to(LOGITS, (3, V)),
        np.array([[1, 2]] * 3, np.uint32),
        some,
        np.array([1.0, 1.0, 1.0], np.float32),
    )
    np.testing.assert_array_equal(again, ids[some])


@pytest.mark.parametrize("make", [lambda: TopK(0), lambda: TopP(0.0), lambda: TopP(1.1)])
def test_impossible_strategies_are_refused(make):
    with pytest.raises(UserError, match="top_"):
        make()


@pytest.mark.parametrize("strategy", [Temperature(), TopK(40)])
def test_a_vocabulary_of_several_pieces_is_drawn_from_alike(strategy):
    """300 tokens are three pieces, the last not full; most of them have a chance in each case."""
    size = 300
    logits = np.random.default_rng(1).normal(size=size).astype(np.float32) * 2
    kept = np.isin(np.arange(size), np.argsort(-logits)[: getattr(strategy, "k", size)])
    probs = softmax(np.where(kept, logits.astype(np.float64), -np.inf))
    ids, logps = drawn(
        strategy,
        np.broadcast_to(logits, (R, size)),
        np.broadcast_to(np.array([5, 6], np.uint32), (R, 2)),
        np.arange(R),
        np.ones(R, np.float32),
    )
    np.testing.assert_allclose(logps, np.log(probs[ids]), atol=1e-5)
    counts = np.bincount(ids, minlength=size)
    assert counts[~kept].sum() == 0
    often = R * probs >= 5
    seen = [*counts[often], counts[~often].sum()]
    want = [*(R * probs[often]), R * probs[~often].sum()]
    if not want[-1]:
        seen, want = seen[:-1], want[:-1]
    assert len(want) > 30
    assert stats.chisquare(seen, want).pvalue > 1e-3


def test_a_token_without_a_chance_is_never_drawn():
    """One token of some piece has all of it, whatever the number that is drawn."""
    logits = np.full((500, 300), -np.inf, np.float32)
    at = np.random.default_rng(2).integers(300, size=500)
    logits[np.arange(500), at] = 3.0
    keys = np.broadcast_to(np.array([1, 2], np.uint32), (500, 2))
    ids, logps = drawn(Temperature(), logits, keys, np.arange(500), np.ones(500, np.float32))
    np.testing.assert_array_equal(ids, at)
    np.testing.assert_allclose(logps, 0.0, atol=1e-6)
