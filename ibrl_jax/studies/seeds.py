"""Statistics with the seed as the unit: is a *method* better, and not only this one policy?

A seed is a start and a training of its own, and dialogues of one policy tell nothing of another.
What is asked is a contrast of means, at each seed and then over seeds:

    d_s = sum_a c_a m_(a,s),      m_(a,s) = sum_n top_(a,s,n) / sum_n bottom_(a,s,n)
    d   = mean_s d_s

Interval: seeds are drawn with replacement, and within each drawn seed whole clusters of scenarios,
all arms together. With few seeds such an interval is too narrow, so that of Student's t over the
d_s stands beside it, and how many of them have each sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from ibrl_jax.evaluation.statistics import StatisticsSettings


class Sums(NamedTuple):
    """What a mean is of, a dialogue at a time: two [n] and their clusters [n]."""

    top: np.ndarray
    bottom: np.ndarray
    clusters: np.ndarray


class Arm(NamedTuple):
    """A coefficient, and what it multiplies, by seed."""

    coefficient: float
    seeds: Mapping[int, Sums]


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A contrast at each seed, its mean over them, and how sure that is.

    `interval` is of the bootstrap over seeds and clusters, `t_interval` of Student's t over seeds;
    both are None with fewer than two seeds.
    """

    by_seed: Mapping[int, float]
    mean: float | None
    interval: tuple[float, float] | None
    t_interval: tuple[float, float] | None
    note: str = ""

    @property
    def above(self) -> int:
        """Seeds at which it is above 0."""
        return sum(value > 0 for value in self.by_seed.values())

    @property
    def below(self) -> int:
        return sum(value < 0 for value in self.by_seed.values())

    @property
    def verdict(self) -> int | None:
        """1 or -1: both intervals lie above or below 0; 0: one holds 0; None: there is none.

        Few seeds make the bootstrap's too narrow, and seeds that differ little make t's so.
        """
        if self.interval is None or self.t_interval is None:
            return None
        low = min(self.interval[0], self.t_interval[0])
        high = max(self.interval[1], self.t_interval[1])
        return 1 if low > 0 else -1 if high < 0 else 0


def contrast(arms: Sequence[Arm], settings: StatisticsSettings) -> Contrast:
    """The contrast of some arms, at the seeds at which all of them have something to average."""
    shared = sorted(set.intersection(*(set(arm.seeds) for arm in arms)))
    seeds = [s for s in shared if all(arm.seeds[s].bottom.sum() > 0 for arm in arms)]
    weights = np.array([arm.coefficient for arm in arms], np.float64)
    sums = [_by_cluster([arm.seeds[seed] for arm in arms]) for seed in seeds]
    values = [
        float(weights @ (top.sum(axis=1) / bottom.sum(axis=1))) for top, bottom in sums
    ]  # [S]
    notes = []
    if len(seeds) < len(shared):
        notes.append(f"{len(shared) - len(seeds)} seeds have an arm with nothing to average")
    if len(seeds) < 2:
        notes.append("fewer than two seeds, so nothing is said about the method")
        mean = values[0] if values else None
        return Contrast(
            by_seed=dict(zip(seeds, values, strict=True)),
            mean=mean,
            interval=None,
            t_interval=None,
            note="; ".join(notes),
        )
    drawn = _drawn(sums, weights, settings)
    kept = drawn[np.isfinite(drawn)]
    if kept.size < drawn.size:
        notes.append(f"{drawn.size - kept.size} of {drawn.size} resamples had no rows")
    tail = 50 * (1 - settings.confidence)
    low, high = (float(x) for x in np.percentile(kept, [tail, 100 - tail]))
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    reach = float(stdtrit(len(values) - 1, 0.5 + settings.confidence / 2)) * error
    return Contrast(
        by_seed=dict(zip(seeds, values, strict=True)),
        mean=mean,
        interval=(low, high),
        t_interval=(mean - reach, mean + reach),
        note="; ".join(notes),
    )


def _by_cluster(arms: Sequence[Sums]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the arms by cluster, both [A, C]."""
    _, owner = np.unique(np.concatenate([arm.clusters for arm in arms]), return_inverse=True)
    count = int(owner.max()) + 1
    cuts = np.split(owner, np.cumsum([len(arm.clusters) for arm in arms])[:-1])
    top = [np.bincount(o, arm.top, count) for o, arm in zip(cuts, arms, strict=True)]
    bottom = [np.bincount(o, arm.bottom, count) for o, arm in zip(cuts, arms, strict=True)]
    return np.stack(top), np.stack(bottom)


def _drawn(
    sums: Sequence[tuple[np.ndarray, np.ndarray]], weights: np.ndarray, settings: StatisticsSettings
) -> np.ndarray:
    """The contrast in each resample of seeds and of clusters within them, [R]."""
    rng = np.random.default_rng(settings.seed)
    picks = rng.integers(0, len(sums), (settings.resamples, len(sums)))  # [R, S]
    values = np.empty(picks.shape)
    for index, (top, bottom) in enumerate(sums):
        where = picks == index
        size = top.shape[1]
        drawn = rng.multinomial(size, np.full(size, 1 / size), int(where.sum()))  # [n, C]
        with np.errstate(invalid="ignore", divide="ignore"):
            values[where] = (drawn @ top.T) / (drawn @ bottom.T) @ weights
    return values.mean(axis=1)
