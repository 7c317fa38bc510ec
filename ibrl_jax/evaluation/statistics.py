"""Statistics of the tables: clustered odds ratios, Holm, bootstrap, kappa (paper, section 5.2).

One row is one conversation and the outcome is its failure. An arm is compared with the reference by

    logit P(fail) = b0 + b1 [the row is the arm's],        odds ratio = exp(b1)

fitted by generalised estimating equations: independence working correlation, sandwich errors over
clusters (TeleSales: the profile; Deal-or-No-Deal: the unordered scenario). Under working
independence one fit a pair gives exactly the ratios and errors of one fit over all arms, and an arm
without a finite ratio spoils no other.

A fit that returns a number is not yet a result. The `status` of a comparison says what it is, and
its `note` holds the warning that tables print beside it:

    estimated      ratio, interval and p of the GEE
    few clusters   the same with bias-reduced errors: an arm has under FEW_CLUSTERS clusters
    separated      an arm without a failure or without a success, so no finite ratio exists: the
                   Haldane-corrected ratio stands as a bound, p is of a permutation over clusters
    no variation   both arms without a failure, both without a success, or clusters all alike
    refused        under MIN_CLUSTERS clusters in an arm: nothing is estimated
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtr, ndtri

from ibrl_jax.errors import UserError

MIN_CLUSTERS = 2
"""Under this many clusters in an arm there is no error to estimate."""

FEW_CLUSTERS = 40
"""Under this many clusters in an arm sandwich errors are too small; bias-reduced ones are used."""

Status = Literal["estimated", "few clusters", "separated", "no variation", "refused"]

_CHUNK = 2_000_000  # cells of a [resamples, clusters] block


@dataclass(frozen=True, kw_only=True)
class StatisticsSettings:
    """How intervals and tests are computed.

    confidence: of every interval, in (0, 1). resamples: of the bootstrap. permutations: of the
    separated arms' test. seed: of both; equal settings give equal numbers.
    """

    confidence: float
    resamples: int
    permutations: int
    seed: int

    def __post_init__(self) -> None:
        if not 0.0 < self.confidence < 1.0:
            raise UserError(
                f"statistics.confidence is {self.confidence}; it must lie between 0 and 1."
            )
        for name in ("resamples", "permutations"):
            if getattr(self, name) < 1:
                raise UserError(
                    f"statistics.{name} is {getattr(self, name)}; at least 1 is needed."
                )


@dataclass(frozen=True, kw_only=True)
class Arm:
    """The scored conversations of one policy: `fails` [N] of 0 and 1, `clusters` [N] of labels.

    A missing conversation has no row here; it shows in the coverage of its table.
    """

    name: str
    fails: np.ndarray
    clusters: np.ndarray


@dataclass(frozen=True, kw_only=True)
class OddsRatio:
    """Odds of failure of `policy` over those of `reference`.

    `interval` is None where no finite one exists; `p` is None where no p exists; `p_holm` and
    `family` (the number of p-values that the correction counted) are set by `corrected`.
    """

    policy: str
    reference: str
    status: Status
    odds_ratio: float | None
    interval: tuple[float, float] | None
    p: float | None
    rates: tuple[float, float]
    rows: tuple[int, int]
    clusters: tuple[int, int]
    note: str
    p_holm: float | None = None
    family: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with a percentile interval over clusters; `low`, `high` are None when none exists."""

    mean: float | None
    low: float | None
    high: float | None
    rows: int
    clusters: int
    note: str


@dataclass(frozen=True, kw_only=True)
class Kappa:
    """Cohen's kappa of a square table; `value` and `interval` are None where it is undefined."""

    value: float | None
    interval: tuple[float, float] | None
    agreement: float
    n: int
    note: str


def compare(
    reference: Arm, arms: Sequence[Arm], settings: StatisticsSettings
) -> tuple[OddsRatio, ...]:
    """One family: every arm against the reference, Holm-corrected over the p-values that exist.

    Raises UserError for an outcome that is not 0 or 1 (NaN included) or lengths that differ.
    """
    return corrected([odds_ratio(reference, arm, settings) for arm in arms])


def corrected(found: Sequence[OddsRatio]) -> tuple[OddsRatio, ...]:
    """The comparisons of one family with Holm's correction over the p-values that exist."""
    adjusted, family = holm([result.p for result in found])
    return tuple(
        replace(result, p_holm=p, family=family) for result, p in zip(found, adjusted, strict=True)
    )


def odds_ratio(reference: Arm, arm: Arm, settings: StatisticsSettings) -> OddsRatio:
    """One comparison, not yet corrected for its family."""
    for one in (reference, arm):
        _check(one.name, one.fails, one.clusters, binary=True)
    clusters = (len(np.unique(arm.clusters)), len(np.unique(reference.clusters)))
    counts = np.array(
        [[a.fails.sum(), a.fails.size - a.fails.sum()] for a in (arm, reference)], np.float64
    )  # [arm, (fail, success)]
    rows = (int(arm.fails.size), int(reference.fails.size))
    rates = tuple(float(r) for r in counts[:, 0] / np.maximum(rows, 1))

    def result(
        status: Status,
        note: str,
        *,
        ratio: float | None = None,
        interval: tuple[float, float] | None = None,
        p: float | None = None,
    ) -> OddsRatio:
        return OddsRatio(
            policy=arm.name,
            reference=reference.name,
            status=status,
            odds_ratio=ratio,
            interval=interval,
            p=p,
            rates=(rates[0], rates[1]),
            rows=rows,
            clusters=clusters,
            note=note,
        )

    if min(clusters) < MIN_CLUSTERS:
        return result(
            "refused",
            f"{min(clusters)} cluster in an arm; {MIN_CLUSTERS} or more are needed for an error",
        )
    if (counts.sum(axis=0) == 0).any():
        return result("no variation", "every conversation of both arms ended alike")
    if (counts == 0).any():
        (a, b), (c, d) = counts + 0.5
        return result(
            "separated",
            "an arm without a failure or a success: the Haldane-corrected ratio is a bound, "
            f"p by {settings.permutations} permutations over clusters",
            ratio=float(a * d / (b * c)),
            p=permutation_p(reference, arm, settings),
        )
    few = min(clusters) < FEW_CLUSTERS
    b1, error = _gee(reference, arm, "bias_reduced" if few else "robust")
    if not np.isfinite(error) or error < 1e-7:
        return result(
            "no variation",
            "clusters do not differ, so the ratio has no error",
            ratio=float(np.exp(b1)),
        )
    reach = ndtri(0.5 + settings.confidence / 2) * error
    note = ""
    if few:
        note = f"only {min(clusters)} clusters (under {FEW_CLUSTERS}): bias-reduced errors"
    return result(
        "few clusters" if few else "estimated",
        note,
        ratio=float(np.exp(b1)),
        interval=(float(np.exp(b1 - reach)), float(np.exp(b1 + reach))),
        p=float(2 * ndtr(-abs(b1) / error)),
    )


def holm(ps: Sequence[float | None]) -> tuple[list[float | None], int]:
    """Holm's step-down correction over the p-values that exist, and how many (m) they are.

    p_(i) becomes the running maximum of min(1, (m - i + 1) p_(i)): [.01, .04, .03] gives
    [.03, .06, .06].
    """
    known = sorted((float(p), i) for i, p in enumerate(ps) if p is not None and not np.isnan(p))
    adjusted: list[float | None] = [None] * len(ps)
    running = 0.0
    for rank, (p, i) in enumerate(known):
        running = max(running, min(1.0, (len(known) - rank) * p))
        adjusted[i] = running
    return adjusted, len(known)


def permutation_p(reference: Arm, arm: Arm, settings: StatisticsSettings) -> float:
    """Two-sided p of the difference in failure rate, exchanging whole clusters between the arms.

    A cluster that both arms met swaps its two sides with probability 1/2; clusters that only one
    arm met are dealt anew among the arms. p = (1 + as extreme) / (1 + permutations), so never 0.
    """
    names, owner = np.unique(
        np.concatenate([arm.clusters, reference.clusters]), return_inverse=True
    )
    split = arm.fails.size
    fails = np.stack(
        [
            np.bincount(owner[:split], arm.fails, len(names)),
            np.bincount(owner[split:], reference.fails, len(names)),
        ]
    )  # [arm, C]
    sizes = np.stack(
        [
            np.bincount(owner[:split], minlength=len(names)),
            np.bincount(owner[split:], minlength=len(names)),
        ]
    )
    shared = (sizes > 0).all(axis=0)
    single = np.flatnonzero(~shared)
    held = int((sizes[0, single] > 0).sum())  # single clusters that are the arm's

    rng = np.random.default_rng(settings.seed)
    observed = abs(fails[0].sum() / sizes[0].sum() - fails[1].sum() / sizes[1].sum())
    extreme, left, block = 0, settings.permutations, max(1, _CHUNK // len(names))
    while left:
        count = min(block, left)
        first = rng.random((count, len(names))) < 0.5  # [P, C]: sides swapped
        if single.size:
            deal = rng.random((count, single.size)).argsort(axis=1) < held
            first[:, single] = deal != (sizes[0, single] > 0)
        swap = first.astype(np.float64)
        f = fails[0].sum() + swap @ (fails[1] - fails[0])
        n = sizes[0].sum() + swap @ (sizes[1] - sizes[0]).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.abs(f / n - (fails.sum() - f) / (sizes.sum() - n))
        extreme += int(np.count_nonzero(gap >= observed - 1e-12))
        left -= count
    return (1 + extreme) / (1 + settings.permutations)


def bootstrap_mean(
    values: np.ndarray,
    clusters: np.ndarray,
    settings: StatisticsSettings,
    weights: np.ndarray | None = None,
) -> Interval:
    """Mean of `values` [N], weighted by `weights` [N], with a bootstrap over whole clusters.

    A mean over agreed dialogues only is `weights = agreed`: the denominator is then resampled too.
    """
    weights = np.ones(values.size) if weights is None else weights
    _check("the bootstrap", values, clusters, binary=False)
    names, top, bottom = cluster_sums([(values * weights, weights, clusters)])
    if bottom[0].sum() == 0:
        return Interval(
            mean=None, low=None, high=None, rows=0, clusters=len(names), note="nothing to average"
        )
    mean = float(top[0].sum() / bottom[0].sum())
    return _interval(mean, _resampled(top, bottom, settings)[0], weights, len(names), settings)


def bootstrap_difference(
    arm: tuple[np.ndarray, np.ndarray],
    reference: tuple[np.ndarray, np.ndarray],
    settings: StatisticsSettings,
) -> Interval:
    """Mean of an arm less that of the reference; each is (values [N], clusters [N]).

    Both arms are resampled together: a drawn cluster brings its rows of either arm, so what makes a
    scenario hard for both cancels.
    """
    for values, clusters in (arm, reference):
        _check("the bootstrap", values, clusters, binary=False)
    triples = [(v, np.ones(v.size), c) for v, c in (arm, reference)]
    names, top, bottom = cluster_sums(triples)
    rows = np.concatenate([weights for _, weights, _ in triples])
    if (bottom.sum(axis=1) == 0).any():
        return Interval(
            mean=None, low=None, high=None, rows=0, clusters=len(names), note="an arm has no rows"
        )
    means = top.sum(axis=1) / bottom.sum(axis=1)
    drawn = _resampled(top, bottom, settings)
    return _interval(float(means[0] - means[1]), drawn[0] - drawn[1], rows, len(names), settings)


def kappa(table: np.ndarray, settings: StatisticsSettings) -> Kappa:
    """Cohen's kappa of counts [K, K], rows one rater's categories and columns the other's.

    The interval is that of the normal approximation, cut at -1 and 1, where kappa ends. Undefined
    when both raters used one and the same category throughout: agreement by chance is
    certain then.
    """
    from statsmodels.stats.inter_rater import cohens_kappa

    table = np.asarray(table, np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.sum() == 0:
        raise UserError(f"kappa needs a square table of counts, not one of shape {table.shape}.")
    n, agreement = table.sum(), float(np.trace(table) / table.sum())
    chance = float((table.sum(axis=0) * table.sum(axis=1)).sum() / n**2)
    if np.isclose(chance, 1.0):
        return Kappa(
            value=None,
            interval=None,
            agreement=agreement,
            n=int(n),
            note="undefined: one category only",
        )
    found: Any = cohens_kappa(table)
    reach = ndtri(0.5 + settings.confidence / 2) * found.std_kappa
    return Kappa(
        value=float(found.kappa),
        interval=(max(float(found.kappa - reach), -1.0), min(float(found.kappa + reach), 1.0)),
        agreement=agreement,
        n=int(n),
        note="",
    )


def kappa_of_ratings(
    first: Sequence[Any], second: Sequence[Any], settings: StatisticsSettings
) -> Kappa:
    """Kappa of two raters' labels of the same items, in the same order."""
    if len(first) != len(second):
        raise UserError(
            f"kappa got {len(first)} ratings of one rater and {len(second)} of another."
        )
    labels: Mapping[Any, int] = {
        label: i for i, label in enumerate(dict.fromkeys([*first, *second]))
    }
    table = np.zeros((len(labels), len(labels)))
    np.add.at(table, ([labels[a] for a in first], [labels[b] for b in second]), 1)
    return kappa(table, settings)


def _check(name: str, values: np.ndarray, clusters: np.ndarray, *, binary: bool) -> None:
    if values.shape != clusters.shape or values.ndim != 1:
        raise UserError(
            f"{name} has outcomes of shape {values.shape} and clusters of shape {clusters.shape}; "
            "both must be [N]."
        )
    bad = int(np.count_nonzero(~np.isfinite(values.astype(np.float64))))
    if bad:
        raise UserError(
            f"{name} has {bad} of {values.size} outcomes that are not numbers; a missing "
            "conversation must be left out and counted in the coverage."
        )
    if binary and not np.isin(values, (0, 1)).all():
        raise UserError(f"{name} has outcomes other than 0 and 1; a failure is 1, a success 0.")


def _gee(reference: Arm, arm: Arm, covariance: str) -> tuple[float, float]:
    """b1 and its standard error."""
    from statsmodels.genmod.cov_struct import Independence
    from statsmodels.genmod.families import Binomial
    from statsmodels.genmod.generalized_estimating_equations import GEE

    fails = np.concatenate([reference.fails, arm.fails]).astype(np.float64)
    is_arm = np.repeat([0.0, 1.0], [reference.fails.size, arm.fails.size])
    _, groups = np.unique(np.concatenate([reference.clusters, arm.clusters]), return_inverse=True)
    model = GEE(
        fails,
        np.stack([np.ones_like(is_arm), is_arm], axis=1),  # [N, 2]
        groups=groups,
        family=Binomial(),
        cov_struct=Independence(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an error that is NaN is handled above
        fit: Any = model.fit(cov_type=covariance)
        return float(fit.params[1]), float(fit.bse[1])


def cluster_sums(
    arms: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums by cluster of arms that are quotients: (top [N], bottom [N], clusters [N]) each.

    Returns the cluster labels of all arms together, [C], and both sums, [arms, C].
    """
    names, owner = np.unique(np.concatenate([c for *_, c in arms]), return_inverse=True)
    cuts = np.split(owner, np.cumsum([c.size for *_, c in arms])[:-1])
    top = [np.bincount(o, t, len(names)) for o, (t, _, _) in zip(cuts, arms, strict=True)]
    bottom = [np.bincount(o, b, len(names)) for o, (_, b, _) in zip(cuts, arms, strict=True)]
    return names, np.stack(top), np.stack(bottom)


def percentiles(
    drawn: np.ndarray, settings: StatisticsSettings
) -> tuple[tuple[float, float] | None, str]:
    """The interval in which the middle `confidence` of resampled values [R] lies.

    With it a note on resamples that had no value (NaN), which are left out; None without any value.
    """
    kept = drawn[np.isfinite(drawn)]
    if not kept.size:
        return None, "no resample had rows"
    tail = 50 * (1 - settings.confidence)
    low, high = (float(x) for x in np.percentile(kept, [tail, 100 - tail]))
    lost = drawn.size - kept.size
    return (low, high), f"{lost} of {drawn.size} resamples had no rows" if lost else ""


def _resampled(top: np.ndarray, bottom: np.ndarray, settings: StatisticsSettings) -> np.ndarray:
    """Means [arms, R] of R draws of C clusters with replacement; NaN where a draw has no weight."""
    rng = np.random.default_rng(settings.seed)
    size = top.shape[1]
    means, left, block = [], settings.resamples, max(1, _CHUNK // size)
    while left:
        count = min(block, left)
        drawn = rng.integers(0, size, (count, size), dtype=np.int32)  # [R, C]
        with np.errstate(invalid="ignore", divide="ignore"):
            means.append(top[:, drawn].sum(axis=-1) / bottom[:, drawn].sum(axis=-1))
        left -= count
    return np.concatenate(means, axis=1)


def _interval(
    mean: float, drawn: np.ndarray, weights: np.ndarray, clusters: int, settings: StatisticsSettings
) -> Interval:
    rows = int(np.count_nonzero(weights))
    if clusters < MIN_CLUSTERS:
        return Interval(
            mean=mean, low=None, high=None, rows=rows, clusters=clusters, note="one cluster only"
        )
    found, note = percentiles(drawn, settings)
    low, high = found or (None, None)
    notes = [note] if note else []
    if found and low == high:
        notes.append("clusters do not differ, so the interval has no width")
    return Interval(
        mean=mean, low=low, high=high, rows=rows, clusters=clusters, note="; ".join(notes)
    )
