"""The figures of a run, as SVG for the report.

Reward curves follow the paper's Figure 4: raw values light with markers, their exponential moving
average (alpha .2) solid. No figure needs a display.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ibrl_jax.reporting.runs import ema, iterations, series
from ibrl_jax.reporting.style import GRID, INK, MUTED, colour, house_style, inline_svg
from ibrl_jax.reporting.tables import Table

EMA_ALPHA = 0.2
"""Weight of the newest value, as in the paper's Figure 4."""

_MARKERS_UP_TO = 120  # iterations; beyond this the raw line says enough
_STAGES = ("prepare", "rollout", "compile", "update", "write", "save")

Metrics = Sequence[Mapping[str, Any]]


def reward_curves(metrics: Metrics, roles: Sequence[str]) -> str:
    """Mean reward of each role by iteration, raw and smoothed."""
    with house_style("reward"):
        figure, axes = _axes(9.2, 3.3)
        x = iterations(metrics)
        ends = []
        for i, role in enumerate(roles):
            raw = series(metrics, "roles", role, "reward")
            smooth = ema(raw, EMA_ALPHA)
            marker = "o" if len(x) <= _MARKERS_UP_TO else ""
            axes.plot(x, raw, color=colour(i), alpha=0.32, linewidth=1, marker=marker, markersize=3)
            axes.plot(x, smooth, color=colour(i), linewidth=2.2)
            if len(x) and np.isfinite(smooth[-1]):
                ends.append((float(smooth[-1]), role, colour(i)))
        axes.set_ylabel("mean reward")
        _whole_iterations(axes, x)
        _label_ends(axes, x, ends)
        return inline_svg(figure, f"Mean reward by iteration for {', '.join(roles)}")


def agreement_bars(table: Table) -> str | None:
    """The main measure of every policy with every counterpart, with intervals; None without any."""
    main = table.main
    policies = list(dict.fromkeys(row.policy for row in table.rows))
    seats = list(dict.fromkeys(row.role for row in table.rows if row.role is not None))
    shown = [
        column
        for i, column in enumerate(table.columns)
        if any((c := row.cells[i]) and c.number(main.key) is not None for row in table.rows)
    ]
    if not shown:
        return None
    with house_style("agreement"):
        figure, axes = _axes(9.2, 3.4)
        width = 0.8 / len(table.rows)
        crowded = len(table.rows) * len(shown) > 28
        for r, row in enumerate(table.rows):
            fill, alpha = _bar_colour(row.policy, row.role, policies, seats)
            labelled = False
            for c, column in enumerate(shown):
                cell = row.cells[list(table.columns).index(column)]
                value = cell.number(main.key) if cell else None
                if cell is None or value is None:
                    continue
                x = c + (r - (len(table.rows) - 1) / 2) * width
                axes.bar(
                    x,
                    100 * value,
                    width * 0.88,
                    color=fill,
                    alpha=alpha,
                    linewidth=0,
                    label=None if labelled else row.label,
                )
                labelled = True
                top = 100 * value
                if interval := cell.interval(main.key):
                    low, high = (100 * end for end in interval)
                    axes.plot([x, x], [low, high], color=INK, linewidth=1.1)
                    top = max(top, high)
                if not crowded:
                    axes.text(
                        x, top + 1.5, f"{100 * value:.0f}", ha="center", color=MUTED, fontsize=8
                    )
        axes.set_xticks(range(len(shown)), [_column_label(c.name, c.kind) for c in shown])
        axes.tick_params(axis="x", labelcolor=INK)
        axes.set_ylim(0, 112)
        axes.set_yticks([0, 25, 50, 75, 100])
        axes.set_ylabel(f"{main.title.lower()}, %")
        figure.legend(loc="outside upper left", ncols=min(4, len(table.rows)), handlelength=1)
        return inline_svg(figure, f"{main.title} with intervals by counterpart and policy")


def health_panels(metrics: Metrics, roles: Sequence[str]) -> list[tuple[str, str]]:
    """Small multiples of training health, (caption, SVG); one with no value at all is left out."""

    def per_role(*keys: str) -> Callable[[str], np.ndarray]:
        return lambda role: series(metrics, "roles", role, *keys)

    def clipped(role: str) -> np.ndarray:
        low, high = per_role("clip_low")(role), per_role("clip_high")(role)
        return 100 * (low + high)

    def degenerate(role: str) -> np.ndarray:
        groups = per_role("groups")(role)
        some = np.where(groups > 0, groups, np.nan)
        return 100 * per_role("degenerate_groups")(role) / some

    def failures(role: str) -> np.ndarray:
        counts = [sum((row.get("format_failures", {}).get(role) or {}).values()) for row in metrics]
        dialogues = series(metrics, "dialogues", "count")
        return 100 * np.array(counts, np.float64) / np.where(dialogues > 0, dialogues, np.nan)

    panels: list[tuple[str, Callable[[str], np.ndarray], bool]] = [
        ("KL to the role's start", per_role("kl"), False),
        ("Entropy, nats a token", per_role("entropy"), False),
        ("Gradient norm", per_role("grad_norm"), False),
        ("Clipped tokens, %", clipped, False),
        ("Spread of advantages", per_role("advantage_spread"), False),
        ("Groups without variance, %", degenerate, False),
        ("Malformed turns per 100 dialogues", failures, False),
        ("Largest sampler–trainer difference", per_role("sampler_trainer_max"), True),
    ]
    drawn = []
    for caption, values_of, logarithmic in panels:
        lines = [(i, role, values_of(role)) for i, role in enumerate(roles)]
        if not any(np.isfinite(values).any() for *_, values in lines):
            continue
        with house_style(caption):
            figure, axes = _axes(2.9, 1.65)
            x = iterations(metrics)
            for i, _, values in lines:
                known = np.isfinite(values)
                dashes = "-" if i < 1 else (0, (3, 1.5))
                axes.plot(x[known], values[known], color=colour(i), linewidth=1.4, linestyle=dashes)
                if known.sum() == 1:
                    axes.plot(x[known], values[known], "o", color=colour(i), markersize=4)
            if logarithmic and any((values > 0).any() for *_, values in lines):
                axes.set_yscale("log")
            else:
                axes.yaxis.set_major_locator(MaxNLocator(4))
            _whole_iterations(axes, x, label=False)
            drawn.append((caption, inline_svg(figure, f"{caption} by iteration")))
    return drawn


def stage_seconds(metrics: Metrics) -> str:
    """Seconds of each iteration by stage, stacked; what no stage accounts for is `other`."""
    total = series(metrics, "seconds", "total")
    stages = {stage: np.nan_to_num(series(metrics, "seconds", stage)) for stage in _STAGES}
    other = np.maximum(np.nan_to_num(total) - np.sum(list(stages.values()), axis=0), 0)
    return _stacked(
        "seconds", metrics, {**stages, "other": other}, "seconds an iteration", "Seconds by stage"
    )


def endings(metrics: Metrics) -> str | None:
    """How dialogues ended, as shares of each iteration's dialogues; None if it was not recorded."""
    reasons = list(dict.fromkeys(name for row in metrics for name in row.get("end_reasons", {})))
    if not reasons:
        return None
    counts = {name: np.nan_to_num(series(metrics, "end_reasons", name)) for name in sorted(reasons)}
    total = np.maximum(np.sum(list(counts.values()), axis=0), 1)
    common = sorted(counts, key=lambda name: -counts[name].sum())
    shares = {name.replace("_", " "): 100 * counts[name] / total for name in common[:5]}
    if common[5:]:
        shares["other"] = np.sum([100 * counts[name] / total for name in common[5:]], axis=0)
    return _stacked("endings", metrics, shares, "share of dialogues, %", "How dialogues ended")


def _stacked(
    salt: str, metrics: Metrics, layers: Mapping[str, np.ndarray], ylabel: str, description: str
) -> str:
    with house_style(salt):
        figure, axes = _axes(4.6, 2.9)
        x = iterations(metrics)
        if len(x) == 1:
            bottom = 0.0
            for i, (name, values) in enumerate(layers.items()):
                axes.bar(x, values, 0.5, bottom, color=_layer_colour(i, name), label=name)
                bottom += float(values[0])
        else:
            axes.stackplot(
                x,
                list(layers.values()),
                labels=list(layers),
                colors=[_layer_colour(i, name) for i, name in enumerate(layers)],
                edgecolor="none",
                alpha=0.85,
            )
            axes.set_xlim(x[0], x[-1])
        axes.set_ylim(bottom=0)
        axes.set_ylabel(ylabel)
        _whole_iterations(axes, x)
        figure.legend(
            loc="outside upper left", ncols=min(3, len(layers)), handlelength=1, columnspacing=1.2
        )
        return inline_svg(figure, f"{description}: {', '.join(layers)}")


def _axes(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def _whole_iterations(axes: Axes, x: np.ndarray, label: bool = True) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    if len(x) == 1:
        axes.set_xlim(x[0] - 1, x[0] + 1)
    else:
        axes.margins(x=0.01)
    if label:
        axes.set_xlabel("iteration")


def _label_ends(axes: Axes, x: np.ndarray, ends: list[tuple[float, str, str]]) -> None:
    """Names beside the lines' ends, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    gap, last = 0.075 * (high - low), -np.inf
    for y, text, ink in sorted(ends):
        last = max(y, last + gap)
        axes.annotate(
            f"{text}  {y:.2f}",
            (x[-1], last),
            xytext=(9, 0),
            textcoords="offset points",
            color=ink,
            va="center",
            fontweight="bold",
            annotation_clip=False,
        )
    axes.set_ylim(low, max(high, last))


def _bar_colour(
    policy: str, role: str | None, policies: list[str], seats: list[str]
) -> tuple[str, float]:
    """Up to two policies: colour by seat, the first pale. More: colour by policy, seats by tint."""
    p, s = policies.index(policy), seats.index(role) if role in seats else 0
    if len(policies) <= 2 and seats:
        return colour(s), 0.38 if p == 0 and len(policies) == 2 else 1.0
    return colour(p), 1.0 - 0.4 * s / max(1, len(seats) - 1)


def _layer_colour(index: int, name: str) -> str:
    return GRID if name == "other" else colour(index)


def _column_label(name: str, kind: str) -> str:
    return f"{name}\n{kind}" if kind and kind != name else name
