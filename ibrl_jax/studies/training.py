"""The parts of a study on training itself: what each run had, and where its curves went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ibrl_jax.reporting.figures import EMA_ALPHA
from ibrl_jax.reporting.progress import duration
from ibrl_jax.reporting.runs import ema
from ibrl_jax.studies.declare import Piece, Row
from ibrl_jax.studies.figures import by_iteration, mean_over_seeds
from ibrl_jax.studies.plan import PlannedRun
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.tables import markdown

_LAST = 10
"""Iterations over which the end of a curve is averaged."""


def what_runs_had(results: Results) -> Piece:
    """Dialogues, updates and seconds of every run's policies: a role that takes turns with another
    has fewer updates from as many dialogues."""
    lines, rows = [], []
    for run in results.design.runs:
        planned = [p for p in results.plan.runs if p.run is run]
        for row in (row for row in run.rows if row.policy != "start"):
            had = [found for p in planned if (found := _had(results, p, row)) is not None]
            if not had:
                continue
            rows += [{"row": row.label, **found} for found in had]
            keys = ("iterations", "dialogues", "updates")
            cells = [_range([found[key] for found in had]) for key in keys]
            seconds = duration(float(np.mean([found["seconds"] for found in had])))
            lines.append([row.label, *cells, seconds, f"{len(had)}/{len(planned)}"])
    if not lines:
        return Piece(markdown="No run has begun.\n")
    head = ["Policy", "Iterations", "Dialogues", "Updates", "Training, mean", "Seeds"]
    text = markdown(head, lines)
    text += "\n\nThe time is that of all of the run's roles, up to where the policy was taken.\n"
    return Piece(markdown=text, rows=rows, data=rows)


def _had(results: Results, planned: PlannedRun, row: Row) -> dict[str, Any] | None:
    """What a policy had when it was taken; None if its run is not there."""
    metrics = results.metrics.get(planned.run.label, {}).get(planned.seed)
    taken = round(row.at * planned.config.iterations)
    if not metrics or len(metrics) < taken:
        return None
    upto = metrics[:taken]
    return {
        "seed": planned.seed,
        "iterations": len(upto),
        "dialogues": sum(m["dialogues"]["count"] for m in upto),
        "updates": sum(bool(m["roles"][row.policy].get("updated")) for m in upto),
        "seconds": sum(m["seconds"]["total"] for m in upto),
    }


def _range(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def curve_table(results: Results) -> Piece:
    """Each role's reward at the beginning, at its least and best and at the end, and whether it
    decays.

    A seed *decays* where its last ten iterations are on average below its first ten.
    """
    lines, rows, ends = [], [], []
    for run in results.design.runs:
        seeds = results.metrics.get(run.label, {})
        for role in _paid(seeds):
            values = by_iteration(seeds, role)
            first = [float(_known(x)[:_LAST].mean()) for x in values]
            last = [float(_known(x)[-_LAST:].mean()) for x in values]
            decays = sum(b < a for a, b in zip(first, last, strict=True))
            smooth = ema(mean_over_seeds(values), EMA_ALPHA)
            least, best = int(np.nanargmin(smooth)), int(np.nanargmax(smooth))
            lines.append(
                [
                    run.label,
                    role,
                    f"{np.mean(first):+.3f}",
                    f"{smooth[least]:+.3f} at {least}",
                    f"{smooth[best]:+.3f} at {best}",
                    f"{np.mean(last):+.3f} ({min(last):+.3f} to {max(last):+.3f})",
                    f"{decays} of {len(last)}",
                ]
            )
            told = {"row": run.label, "role": role}
            for seed, a, b in zip(seeds, first, last, strict=True):
                ends.append({**told, "seed": seed, "first": a, "last": b})
            rows.append(
                {
                    **told,
                    "first": float(np.mean(first)),
                    "least": float(smooth[least]),
                    "least_at": least,
                    "best": float(smooth[best]),
                    "best_at": best,
                    "last": float(np.mean(last)),
                    "seeds_that_decay": decays,
                    "seeds": len(last),
                }
            )
    if not lines:
        return Piece(markdown="No run has begun, so there are no curves.\n")
    head = ["Run", "Role", f"First {_LAST}", "Least average", "Best average"]
    head += [f"Last {_LAST} (least to greatest seed)", "Seeds that decay"]
    text = markdown(head, lines)
    text += (
        f"\n\nMean reward; least and best are of the moving average (alpha {EMA_ALPHA:g}) of the "
        f"mean over seeds. A seed decays where its last {_LAST} iterations are below its first "
        f"{_LAST}. The rewards of two runs are of different counterparts, so it is their course "
        "that tells something, not their height.\n"
    )
    curves = {
        run.label: {
            role: {
                str(seed): [None if np.isnan(v) else round(float(v), 6) for v in x]
                for seed, x in zip(seeds, by_iteration(seeds, role), strict=True)
            }
            for role in _paid(seeds)
        }
        for run in results.design.runs
        if (seeds := results.metrics.get(run.label))
    }
    data = {"courses": rows, "ends": ends, "rewards": curves}
    return Piece(markdown=text, rows=[*rows, *ends], data=data)


def _paid(seeds: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[str]:
    """The roles that have a reward at every seed."""
    roles = dict.fromkeys(r for m in seeds.values() for row in m[:1] for r in row["roles"])
    return [r for r in roles if all(np.isfinite(x).any() for x in by_iteration(seeds, r))]


def _known(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
