"""How much of a policy's training return its deployment loses: mismatch, and its decomposition.

For a fixed policy, the same scenarios and the same end of a dialogue, with R its reward,

    J_train - J_deploy = E_train[R] - E_deploy[R]                                 direct
                       = E_train[R (1 - w)] = Cov_train(R, 1 - w)

    log w = sum over the counterpart's tokens of log p_deploy - log p_train

since E_train[w] = 1 where all that the deployed counterpart may say the training one may say too.
The direct estimate is the one that counts: dialogues against either counterpart. What importance
weights say of it, from the training dialogues alone, is printed in three forms,

    IS               mean R (1 - w)
    self-normalised  mean R - sum(w R) / sum(w)
    covariance       mean R (1 - w) - mean R * mean(1 - w)

and withheld where few dialogues carry the weights (effective sample size (sum w)^2 / sum w^2 under
`LEAST_ESS`) or their mean is no 1 (over `MOST_ERRORS` clustered standard errors away).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.statistics import (
    MIN_CLUSTERS,
    Interval,
    StatisticsSettings,
    bootstrap_difference,
    bootstrap_mean,
    percentiles,
)

LEAST_ESS = 50.0
"""Under this effective sample size nothing is estimated from weights."""

MOST_ERRORS = 3.0
"""A mean weight that is further from 1, in its standard errors, refutes the weights."""


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Returns against either counterpart, and their difference, each with its interval."""

    train: Interval
    deploy: Interval
    mismatch: Interval

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A form of the decomposition: its value and a percentile interval over clusters."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Decomposition:
    """The mismatch by importance weights.

    `forms` is empty where `refused` says why. `effective` is the effective sample size of `rows`
    dialogues, `mean_weight` has the standard error `weight_error`, `largest_share` is the share of
    all weight that one dialogue has; `log_weights` are the least, median and greatest log w.
    """

    forms: dict[str, Estimate]
    refused: tuple[str, ...]
    effective: float
    mean_weight: float
    weight_error: float | None
    largest_share: float
    log_weights: tuple[float, float, float]
    rows: int
    clusters: int

    def as_json(self) -> dict[str, Any]:
        """None stands for a number that is too large for one."""
        values = asdict(self)
        for key in ("mean_weight", "weight_error"):
            number = values[key]
            values[key] = number if number is not None and np.isfinite(number) else None
        return values


def direct(
    train: tuple[np.ndarray, np.ndarray],
    deploy: tuple[np.ndarray, np.ndarray],
    settings: StatisticsSettings,
) -> Direct:
    """The mismatch by dialogues against both; each side is (rewards [N], clusters [N]).

    Clusters are drawn for both together, so what makes a scenario hard for both cancels.

    Raises:
        UserError: a reward is no number.
    """
    return Direct(
        train=bootstrap_mean(*train, settings),
        deploy=bootstrap_mean(*deploy, settings),
        mismatch=bootstrap_difference(train, deploy, settings),
    )


def decompose(
    rewards: np.ndarray,
    log_weights: np.ndarray,
    clusters: np.ndarray,
    settings: StatisticsSettings,
) -> Decomposition:
    """The mismatch from training dialogues alone.

    Args:
        rewards: R [N], of the policy.
        log_weights: log w [N], summed over the counterpart's tokens, stop tokens included, in the
            distributions that were really sampled from.
        clusters: labels [N].

    Raises:
        UserError: shapes differ, there is no dialogue, or a reward or a weight is no number; -inf
            is one (what the deployed counterpart never says).
    """
    if not rewards.shape == log_weights.shape == clusters.shape or rewards.ndim != 1:
        raise UserError(
            f"the mismatch has rewards of shape {rewards.shape}, log weights of "
            f"{log_weights.shape} and clusters of {clusters.shape}; all must be [N]"
        )
    if not rewards.size:
        raise UserError("the mismatch needs a dialogue against the training counterpart")
    rewards, log_weights = rewards.astype(np.float64), log_weights.astype(np.float64)
    if not np.isfinite(rewards).all() or np.isnan(log_weights).any() or (log_weights > 1e300).any():
        raise UserError(
            "a reward or a log weight of the mismatch is not a number; a dialogue without a result "
            "must be left out and counted in the coverage"
        )
    names, owner = np.unique(clusters, return_inverse=True)
    scaled = np.exp(log_weights - max(log_weights.max(), -1e300))  # w / max w: never overflows
    effective = float(scaled.sum() ** 2 / max((scaled**2).sum(), 1e-300))
    with np.errstate(over="ignore"):
        w = np.exp(log_weights)
        mean = float(w.mean())
    error = _clustered_error(w, owner, len(names))
    refused = _refusals(effective, mean, error, rewards.size, len(names))
    least, median, most = np.quantile(np.maximum(log_weights, -1e300), [0.0, 0.5, 1.0])
    return Decomposition(
        forms={} if refused else _forms(rewards, w, owner, len(names), settings),
        refused=refused,
        effective=effective,
        mean_weight=mean,
        weight_error=error,
        largest_share=float(scaled.max() / max(scaled.sum(), 1e-300)),
        log_weights=(float(least), float(median), float(most)),
        rows=int(rewards.size),
        clusters=len(names),
    )


def _refusals(
    effective: float, mean: float, error: float | None, rows: int, clusters: int
) -> tuple[str, ...]:
    """Why nothing is estimated; empty where nothing speaks against it."""
    found = []
    if clusters < MIN_CLUSTERS:
        found.append(f"{clusters} cluster; {MIN_CLUSTERS} or more are needed")
    if effective < LEAST_ESS:
        found.append(
            f"the weights leave {effective:.1f} of {rows} dialogues (effective sample size), "
            f"fewer than {LEAST_ESS:.0f}"
        )
    if not np.isfinite(mean):
        found.append("the mean weight is too large for a number")
    elif error is not None and abs(mean - 1) > MOST_ERRORS * error:
        found.append(
            f"the mean weight is {mean:.3g}, {abs(mean - 1) / max(error, 1e-300):.1f} standard "
            f"errors from 1, more than {MOST_ERRORS:.0f}"
        )
    return tuple(found)


def _clustered_error(w: np.ndarray, owner: np.ndarray, clusters: int) -> float | None:
    """Standard error of the mean of w [N], robust to dependence within clusters; None of one."""
    if clusters < MIN_CLUSTERS:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.bincount(owner, w - w.mean(), clusters)  # [C]
        error = np.sqrt((sums**2).sum() * clusters / (clusters - 1)) / w.size
    return float(error) if np.isfinite(error) else float("inf")


def _forms(
    rewards: np.ndarray,
    w: np.ndarray,
    owner: np.ndarray,
    clusters: int,
    settings: StatisticsSettings,
) -> dict[str, Estimate]:
    """Each form over all dialogues, and over resamples of whole clusters."""
    parts = np.stack(
        [np.ones_like(w), rewards, w, w * rewards]
    )  # [4, N]; their sums give every form
    sums = np.stack([np.bincount(owner, part, clusters) for part in parts])  # [4, C]
    rng = np.random.default_rng(settings.seed)
    counts = rng.multinomial(clusters, np.full(clusters, 1 / clusters), settings.resamples)
    drawn = _of_sums(sums @ counts.T)  # [R] each
    found = {}
    for name, value in _of_sums(sums.sum(axis=1)).items():
        interval, _ = percentiles(drawn[name], settings)
        low, high = interval or (np.nan, np.nan)
        found[name] = Estimate(value=float(value), low=low, high=high)
    return found


def _of_sums(sums: np.ndarray) -> dict[str, np.ndarray]:
    """The forms from sums [4, ...] of 1, R, w and w R."""
    count, r, w, wr = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, weight, both = r / count, w / count, wr / count
        return {
            "IS": mean - both,
            "self-normalised": mean - both / weight,
            "covariance": mean - both - mean * (1 - weight),
        }
