"""Returns of a learner against each counterpart that it was drawn, in training (the paper's Table
4): sums over all iterations out of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ibrl_jax.reporting.figures import EMA_ALPHA
from ibrl_jax.reporting.runs import ema
from ibrl_jax.reporting.style import colour, house_style
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Part, Piece
from ibrl_jax.studies.figures import mean_over_seeds
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.tables import markdown

Metrics = Sequence[Mapping[str, Any]]


def returns_of(label: str) -> Part:
    """Total return, episodes and mean return against each counterpart of a run, by its label."""

    def part(results: Results) -> Piece:
        seeds = results.metrics.get(label, {})
        found = {seed: _summed(_speakers(metrics)) for seed, metrics in seeds.items()}
        names = sorted({name for by_name in found.values() for name in by_name})
        lines, rows = [], []
        for name in names:
            sums = {seed: by_name[name] for seed, by_name in found.items() if name in by_name}
            total = sum(value for value, _ in sums.values())
            episodes = sum(count for _, count in sums.values())
            means = {seed: value / count for seed, (value, count) in sums.items() if count}
            lines.append(
                [
                    name,
                    f"{total:,.2f}",
                    f"{episodes:,}",
                    _mean(total, episodes),
                    f"{min(means.values()):.2f} to {max(means.values()):.2f}" if means else "–",
                    f"{len(means)}/{len(results.seeds)}",
                ]
            )
            rows += [
                {
                    "row": name,
                    "seed": seed,
                    "total_return": value,
                    "episodes": count,
                    "mean_return": value / count if count else None,
                }
                for seed, (value, count) in sums.items()
            ]
        if not rows:
            return Piece(markdown=f"{label} has not begun, so there are no returns.\n")
        head = ["Counterpart", "Total return", "Episodes", "Mean return", "Over seeds", "Seeds"]
        text = markdown(head, lines)
        text += (
            f"\n\nOf {label}, in training: sums over all iterations and seeds; *over seeds*: the "
            "least and the greatest mean return.\n"
        )
        return Piece(markdown=text, rows=rows, data=rows, figure=_drawn(results, seeds, names))

    return part


def printed_returns(results: Results) -> Piece:
    """The paper's Table 4."""
    del results
    lines = [
        [name, f"{row.total_return:,.2f}", f"{row.episodes:,}", f"{row.mean_return:.2f}"]
        for name, row in paper.TABLE4.items()
    ]
    head = ["Counterpart", "Total return", "Episodes", "Mean return"]
    text = f"The paper's Table 4 (TeleSales, 9B):\n\n{markdown(head, lines)}\n\n"
    text += "Rewards of two domains, or of two judges, cannot be set beside one another.\n"
    data = {
        name: {
            "total_return": row.total_return,
            "episodes": row.episodes,
            "mean_return": row.mean_return,
        }
        for name, row in paper.TABLE4.items()
    }
    return Piece(markdown=text, data=data)


def _speakers(metrics: Metrics) -> Iterable[Mapping[str, Mapping[str, float]]]:
    """By iteration: what was earned against whom, over all seats that nobody trains."""
    for row in metrics:
        together: dict[str, dict[str, float]] = {}
        for by_name in row.get("speakers", {}).values():
            for name, sums in by_name.items():
                into = together.setdefault(name, {"return": 0.0, "episodes": 0})
                into["return"] += sums["return"]
                into["episodes"] += sums["episodes"]
        yield together


def _summed(
    by_iteration: Iterable[Mapping[str, Mapping[str, float]]],
) -> dict[str, tuple[float, int]]:
    found: dict[str, tuple[float, int]] = {}
    for row in by_iteration:
        for name, sums in row.items():
            value, count = found.get(name, (0.0, 0))
            found[name] = (value + sums["return"], count + int(sums["episodes"]))
    return found


def _drawn(results: Results, seeds: Mapping[int, Metrics], names: Sequence[str]) -> Figure:
    """Mean return against each counterpart by iteration: light each seed's average, thick that of
    their mean."""
    longest = max(map(len, seeds.values()))
    with house_style(results.study.name):
        figure = Figure(figsize=(6.4, 3.4))
        axes = figure.subplots()
        for i, name in enumerate(names):
            values = np.full((len(seeds), longest), np.nan)
            for s, metrics in enumerate(seeds.values()):
                for k, row in enumerate(_speakers(metrics)):
                    if (sums := row.get(name)) and sums["episodes"]:
                        values[s, k] = sums["return"] / sums["episodes"]
            x = np.arange(longest)
            for one in values:
                axes.plot(x, ema(one, EMA_ALPHA), color=colour(i), linewidth=0.7, alpha=0.45)
            smooth = ema(mean_over_seeds(values), EMA_ALPHA)
            axes.plot(x, smooth, color=colour(i), linewidth=2.2, label=name)
        axes.set_xlabel("iteration")
        axes.set_ylabel("mean return against")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1.4)
    return figure


def _mean(total: float, episodes: int) -> str:
    return f"{total / episodes:.2f}" if episodes else "–"
