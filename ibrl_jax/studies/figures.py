"""Figures of studies, in the house's style: bars with every seed on them, and curves of reward."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ibrl_jax.reporting.figures import EMA_ALPHA
from ibrl_jax.reporting.runs import ema, series
from ibrl_jax.reporting.style import INK, LIGHT, colour, house_style
from ibrl_jax.studies import pooled
from ibrl_jax.studies.declare import Measured, Piece
from ibrl_jax.studies.results import Results

Metrics = Sequence[Mapping[str, Any]]


def bars(results: Results) -> Piece:
    """A panel a judged measure: each run's policies in each column, with intervals over scenarios
    and a dot for each seed."""
    design = results.design
    rows = [row for row in design.rows if _any(results, row)]
    if not rows:
        return Piece()
    measures = [m for m in design.measures if m.key in design.judged]
    with house_style(results.study.name):
        height = 2.9 * len(measures) + 0.7
        figure = Figure(figsize=(max(7.2, 1.6 + 0.28 * len(rows) * len(design.shown)), height))
        panels = figure.subplots(len(measures), 1, squeeze=False)[:, 0]
        for axes, measure in zip(panels, measures, strict=True):
            _bars(axes, results, rows, measure)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1)
    return Piece(figure=figure)


def _any(results: Results, row: str) -> bool:
    return any(results.cell((row,), column) is not None for column in results.design.shown)


def _bars(axes: Axes, results: Results, rows: Sequence[str], measure: Measured) -> None:
    width = 0.84 / len(rows)
    factor = 100 if measure.form == "percent" else 1
    for r, row in enumerate(rows):
        labelled = False
        for c, column in enumerate(results.design.shown):
            cell = results.cell((row,), column)
            found = pooled.interval(cell, measure, results.statistics) if cell else None
            if found is None or found.mean is None:
                continue
            x = c + (r - (len(rows) - 1) / 2) * width
            label = None if labelled else row
            fade = 1.0 if r < 6 else 0.5
            value = factor * found.mean
            axes.bar(x, value, width * 0.9, color=colour(r), alpha=fade, linewidth=0, label=label)
            labelled = True
            if found.low is not None and found.high is not None:
                ends = [factor * found.low, factor * found.high]
                axes.plot([x, x], ends, color=INK, linewidth=1)
            values = pooled.by_seed(results, (row,), column, measure).values()
            spots = [factor * value for value in values]
            axes.plot([x] * len(spots), spots, "o", color=INK, markersize=2.2, alpha=0.55)
    axes.set_xticks(range(len(results.design.shown)), list(results.design.shown))
    axes.tick_params(axis="x", labelcolor=INK)
    axes.set_ylabel(measure.title.lower() + (", %" if measure.form == "percent" else ""))
    axes.set_ylim(bottom=0 if measure.form != "signed" else None)


def reward_curves(results: Results) -> Piece:
    """A panel a run: each role's mean reward by iteration, raw and its moving average.

    Thin lines: the average of each seed. Light: the raw mean over seeds. Thick: its average.
    """
    runs = [run for run in results.design.runs if results.metrics.get(run.label)]
    if not runs:
        return Piece(markdown="No run has begun, so there are no curves.\n")
    across = min(4, len(runs))
    down = -(-len(runs) // across)
    with house_style(results.study.name):
        figure = Figure(figsize=(2.9 * across + 0.6, 2.7 * down + 0.4))
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, run in zip(panels, runs, strict=False):
            seeds = results.metrics[run.label]
            for r, role in enumerate(_roles(seeds)):
                _curve(axes, seeds, role, colour(r))
            axes.set_title(run.label, fontsize=9, color=INK, loc="left")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        for axes in panels[len(runs) :]:
            axes.set_visible(False)
        for axes in panels[::across]:
            axes.set_ylabel("mean reward")
        for axes in panels[(down - 1) * across : len(runs)]:
            axes.set_xlabel("iteration")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=4, handlelength=1.4)
    return Piece(figure=figure)


def _roles(seeds: Mapping[int, Metrics]) -> list[str]:
    """The roles that were paid, in order."""
    rows = [row for metrics in seeds.values() for row in metrics[:1]]
    return list(dict.fromkeys(role for row in rows for role in row.get("roles", {})))


def by_iteration(seeds: Mapping[int, Metrics], role: str) -> np.ndarray:
    """A role's mean reward, [S, K]: NaN after the end of a seed that is shorter, or unpaid."""
    found = [series(metrics, "roles", role, "reward") for metrics in seeds.values()]
    longest = max(map(len, found))
    return np.stack([np.pad(x, (0, longest - len(x)), constant_values=np.nan) for x in found])


def mean_over_seeds(values: np.ndarray) -> np.ndarray:
    """Mean [K] of those of [S, K] that are there; NaN where none is."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _curve(axes: Axes, seeds: Mapping[int, Metrics], role: str, ink: str) -> None:
    values = by_iteration(seeds, role)
    if not np.isfinite(values).any():
        return
    x = np.arange(values.shape[1])
    for one in values:
        known = np.isfinite(one)
        smooth = ema(one, EMA_ALPHA)
        axes.plot(x[known], smooth[known], color=ink, linewidth=0.7, alpha=0.45)
    raw = mean_over_seeds(values)
    axes.plot(x, raw, color=ink, linewidth=0.9, alpha=0.3)
    axes.plot(x, ema(raw, EMA_ALPHA), color=ink, linewidth=2.2, label=role)


def as_svg(figure: Figure) -> bytes:
    """A figure as a file of its own, on the light page; equal data give equal bytes."""
    out = io.BytesIO()
    meta = {"Date": None, "Creator": None}
    with house_style("study"):
        figure.savefig(out, format="svg", metadata=meta, facecolor=LIGHT["surface"])
    return out.getvalue()


def as_png(figure: Figure) -> bytes:
    """The same as pixels, 160 an inch."""
    out = io.BytesIO()
    with house_style("study"):
        figure.savefig(
            out, format="png", dpi=160, metadata={"Software": None}, facecolor=LIGHT["surface"]
        )
    return out.getvalue()
