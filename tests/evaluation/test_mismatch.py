"""The mismatch: known on a toy where all is known, and refused where weights cannot carry it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.mismatch import decompose, direct
from ibrl_jax.evaluation.statistics import StatisticsSettings

SETTINGS = StatisticsSettings(confidence=0.95, resamples=400, permutations=100, seed=0)
TRAIN, DEPLOY = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])
"""What either counterpart says in each of two turns: one of three words."""
PAID = np.array([1.0, 0.4, 0.0])
"""What the policy gets for each word, on the mean of two turns."""
TRUE = float(PAID @ (TRAIN - DEPLOY))


def played(p: np.ndarray, dialogues: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, log weights and clusters of two-turn dialogues against a counterpart."""
    words = np.random.default_rng(seed).choice(3, size=(dialogues, 2), p=p)
    log_w = np.log(DEPLOY[words] / TRAIN[words]).sum(axis=1)
    return PAID[words].mean(axis=1), log_w, np.arange(dialogues) // 4


def test_every_form_finds_the_known_difference() -> None:
    rewards, log_w, clusters = played(TRAIN, 20_000, 0)
    found = decompose(rewards, log_w, clusters, SETTINGS)
    assert found.refused == ()
    assert set(found.forms) == {"IS", "self-normalised", "covariance"}
    for estimate in found.forms.values():
        assert estimate.value == pytest.approx(TRUE, abs=0.02)
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.low < TRUE < estimate.high
    assert found.mean_weight == pytest.approx(1.0, abs=0.02)
    expected = 20_000 / float((DEPLOY**2 / TRAIN).sum()) ** 2  # N / E[w^2]
    assert found.effective == pytest.approx(expected, rel=0.03)


def test_direct_rollouts_find_it_too() -> None:
    train, deploy = played(TRAIN, 20_000, 1), played(DEPLOY, 20_000, 2)
    found = direct((train[0], train[2]), (deploy[0], deploy[2]), SETTINGS)
    assert found.mismatch.mean == pytest.approx(TRUE, abs=0.01)
    assert found.train.mean is not None
    assert found.deploy.mean is not None
    assert found.mismatch.mean == pytest.approx(found.train.mean - found.deploy.mean)
    assert found.mismatch.low is not None
    assert found.mismatch.high is not None
    assert found.mismatch.low < TRUE < found.mismatch.high


def test_the_forms_over_all_possible_dialogues_are_exact() -> None:
    """Weighted as the training counterpart speaks, all nine dialogues give the exact value."""
    words = np.array([(a, b) for a in range(3) for b in range(3)])
    often = np.rint(1000 * TRAIN[words].prod(axis=1)).astype(int)  # 1000 p is whole
    assert often.sum() == 1000
    words = np.repeat(words, often, axis=0)
    log_w = np.log(DEPLOY[words] / TRAIN[words]).sum(axis=1)
    rewards = PAID[words].mean(axis=1)
    found = decompose(rewards, log_w, np.arange(1000), SETTINGS)
    assert found.mean_weight == pytest.approx(1.0, abs=1e-12)
    for estimate in found.forms.values():
        assert estimate.value == pytest.approx(TRUE, abs=1e-12)


def test_equal_policies_have_weight_one_and_no_mismatch() -> None:
    rewards, _, clusters = played(TRAIN, 400, 3)
    found = decompose(rewards, np.zeros(400), clusters, SETTINGS)
    assert found.refused == ()
    assert found.mean_weight == 1.0
    assert found.weight_error == 0.0
    assert found.effective == 400.0
    assert all(e.value == e.low == e.high == 0.0 for e in found.forms.values())


def test_one_heavy_dialogue_is_refused() -> None:
    log_w = np.zeros(400)
    log_w[7] = 12.0
    found = decompose(np.ones(400), log_w, np.arange(400), SETTINGS)
    assert found.forms == {}
    assert found.effective < 2
    assert found.largest_share > 0.99
    assert "effective sample size" in found.refused[0]


def test_a_mean_weight_that_is_no_one_is_refused() -> None:
    """As when stop tokens are left out: every dialogue looks likelier than it is."""
    rewards, log_w, clusters = played(TRAIN, 2000, 4)
    found = decompose(rewards, log_w + 0.5, clusters, SETTINGS)
    assert found.effective > 50
    assert found.forms == {}
    assert "standard errors from 1" in found.refused[0]


def test_weights_beyond_all_numbers_are_refused_and_told_in_json() -> None:
    log_w = np.array([0.0, 900.0, -900.0, -np.inf])
    found = decompose(np.ones(4), log_w, np.arange(4), SETTINGS)
    assert found.forms == {}
    assert found.effective == pytest.approx(1.0)
    assert found.largest_share == pytest.approx(1.0)
    told = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert told["mean_weight"] is None


def test_what_the_deployed_counterpart_never_says_has_no_weight() -> None:
    log_w = np.where(np.arange(400) < 200, -np.inf, np.log(2.0))
    rewards = np.where(np.arange(400) < 200, 1.0, 0.25)
    found = decompose(rewards, log_w, np.arange(400), SETTINGS)
    assert found.forms["IS"].value == pytest.approx(0.625 - 0.25)


def test_clusters_widen_the_error_of_the_mean_weight() -> None:
    _, log_w, _ = played(TRAIN, 400, 5)
    log_w = np.repeat(log_w[:100], 4)  # four equal dialogues a scenario
    rewards = np.ones(400)
    alone = decompose(rewards, log_w, np.arange(400), SETTINGS).weight_error
    together = decompose(rewards, log_w, np.repeat(np.arange(100), 4), SETTINGS).weight_error
    assert alone is not None
    assert together == pytest.approx(2 * alone, rel=0.02)


@pytest.mark.parametrize(
    "rewards, log_w, clusters, what",
    [
        ([1.0], [0.0, 0.0], [0], "all must be"),
        ([], [], [], "needs a dialogue"),
        ([np.nan], [0.0], [0], "is not a number"),
        ([1.0], [np.nan], [0], "is not a number"),
        ([1.0], [np.inf], [0], "is not a number"),
    ],
)
def test_mistakes_are_one_sentence(rewards, log_w, clusters, what) -> None:
    with pytest.raises(UserError, match=what):
        decompose(np.array(rewards), np.array(log_w), np.array(clusters), SETTINGS)
