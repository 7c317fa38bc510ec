"""Statistics with the seed as the unit: is a *method* better, and not only this one policy?

A seed is a start and a training of its own, and dialogues of one policy tell nothing of another.
What is asked is a contrast of means, at each seed and then over seeds:

    d_s = sum_a c_a m_(a,s),      m_(a,s) = sum_n top_(a,s,n) / sum_n bottom_(a,s,n)
    d   = mean_s d_s

Interval: seeds are drawn with replacement, and so are whole clusters of scenarios, the same ones at
all seeds and for all arms, since a scenario that suits one method does so at every seed and is not
averaged away over them. With few seeds such an interval is too narrow, so that of Student's t over
the d_s, which leaves the choice of scenarios out, stands beside it, and how many of them have each
sign.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from ibrl_jax.evaluation.statistics import StatisticsSettings, cluster_sums, percentiles


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
    both are None with fewer than two seeds. `note` says what was left out.
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
    top, bottom = _by_cluster([[arm.seeds[seed] for arm in arms] for seed in seeds])
    values = [float(weights @ means) for means in top.sum(axis=-1) / bottom.sum(axis=-1)]  # [S]
    by_seed = dict(zip(seeds, values, strict=True))
    notes = []
    if len(seeds) < len(shared):
        notes.append(f"{len(shared) - len(seeds)} seeds have an arm with nothing to average")
    if len(seeds) < 2:
        notes.append("fewer than two seeds, so nothing is said about the method")
        mean = values[0] if values else None
        return Contrast(
            by_seed=by_seed, mean=mean, interval=None, t_interval=None, note="; ".join(notes)
        )
    interval, note = percentiles(_drawn(top, bottom, weights, settings), settings)
    if note:
        notes.append(note)
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / len(values) ** 0.5
    reach = float(stdtrit(len(values) - 1, 0.5 + settings.confidence / 2)) * error
    return Contrast(
        by_seed=by_seed,
        mean=mean,
        interval=interval,
        t_interval=(mean - reach, mean + reach),
        note="; ".join(notes),
    )


def _by_cluster(seeds: Sequence[Sequence[Sums]]) -> tuple[np.ndarray, np.ndarray]:
    """Sums of each seed's arms by cluster, both [S, A, C]."""
    if not seeds:
        return np.empty((0, 0, 0)), np.empty((0, 0, 0))
    names, top, bottom = cluster_sums([arm for arms in seeds for arm in arms])
    shape = (len(seeds), len(seeds[0]), len(names))
    return top.reshape(shape), bottom.reshape(shape)


def _drawn(
    top: np.ndarray, bottom: np.ndarray, weights: np.ndarray, settings: StatisticsSettings
) -> np.ndarray:
    """The contrast in each resample of seeds and of clusters, [R]; NaN where an arm of a drawn seed
    has nothing to average. `top`, `bottom` [S, A, C]."""
    seeds, _, clusters = top.shape
    of_seeds, of_clusters = _draws(seeds, clusters, settings)
    tops, bottoms = (sums.reshape(-1, clusters) @ of_clusters for sums in (top, bottom))
    with np.errstate(invalid="ignore", divide="ignore"):
        values = (tops / bottoms).reshape(*top.shape[:2], -1)  # [S, A, R]
    by_seed = np.einsum("sar,a->sr", values, weights)
    return (np.where(of_seeds > 0, by_seed, 0.0) * of_seeds).sum(axis=0) / seeds


@lru_cache(maxsize=2)
def _draws(
    seeds: int, clusters: int, settings: StatisticsSettings
) -> tuple[np.ndarray, np.ndarray]:
    """How often each resample has each seed, [S, R], and each cluster, [C, R]."""
    rng = np.random.default_rng(settings.seed)
    of_seeds, of_clusters = (
        rng.multinomial(n, np.full(n, 1 / n), settings.resamples) for n in (seeds, clusters)
    )
    return of_seeds.T, np.ascontiguousarray(of_clusters.T, dtype=np.float64)
