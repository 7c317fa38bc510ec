"""The heat map of a cross-play matrix: success, and the value of the policy in the first seat."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from ibrl_jax.reporting.style import INK, LIGHT, MUTED, house_style

_SCALE = LinearSegmentedColormap.from_list("house", [LIGHT["page"], LIGHT["series-0"]])
_CROWDED = 12
"""From this many policies on a side entries have no numbers, which would not be read."""

_ROOM = 7
"""Letters of a label that fit over a column; longer ones are turned."""


def draw(matrix: Mapping[str, Any], folder: Path) -> None:
    """Writes `crossplay.svg` and `crossplay.png` into a folder."""
    figure = heat_map(matrix)
    with house_style("crossplay"):
        figure.savefig(folder / "crossplay.svg", metadata={"Date": None, "Creator": None})
        figure.savefig(
            folder / "crossplay.png",
            dpi=160,
            facecolor=LIGHT["surface"],
            metadata={"Software": None},
        )


def heat_map(matrix: Mapping[str, Any]) -> Figure:
    """Rows sit in the first seat, columns in the second; an entry that was not played is empty."""
    first, second = matrix["first"], matrix["second"]
    side = 0.62 * max(len(first), len(second), 3)
    longest = max(map(len, (*first, *second)), default=0)
    with house_style("crossplay"):
        margin = 0.4 + 0.085 * longest
        figure = Figure(figsize=(2 * (side + margin) + 0.6, side + margin + 0.7))
        panels = figure.subplots(1, 2, squeeze=False)[0]
        for axes, name in zip(panels, ("success", "value"), strict=True):
            _panel(axes, matrix, name)
    return figure


def _panel(axes: Axes, matrix: Mapping[str, Any], name: str) -> None:
    first, second, measure = matrix["first"], matrix["second"], matrix[name]
    values = np.full((len(first), len(second)), np.nan)
    for entry in matrix["entries"]:
        if entry[name] is not None:
            values[first.index(entry["first"]), second.index(entry["second"])] = entry[name]
    low, high = _range(values, measure["form"])
    axes.imshow(values, cmap=_SCALE, vmin=low, vmax=high, aspect="equal")
    percent = measure["form"] == "percent"
    if max(len(first), len(second)) < _CROWDED:
        for (i, j), value in np.ndenumerate(values):
            if math.isfinite(value):
                dark = value > low + 0.6 * (high - low)
                text = f"{100 * value:.0f}" if percent else f"{value:.2f}"
                ink = LIGHT["surface"] if dark else INK
                axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=8)
    upright = max(map(len, second), default=0) > _ROOM
    axes.set_xticks(range(len(second)), second, rotation=90 if upright else 0)
    axes.set_yticks(range(len(first)), first)
    axes.tick_params(labelcolor=INK)
    axes.grid(visible=False)
    title = f"{measure['title']}, %" if percent else f"{measure['title']} of the first seat"
    axes.set_title(title, fontsize=9, color=INK, loc="left")
    axes.set_xlabel("in the second seat", color=MUTED)
    axes.set_ylabel(f"in the first seat ({matrix['first_seat']})", color=MUTED)


def _range(values: np.ndarray, form: str) -> tuple[float, float]:
    """Shares span 0 to 1; what has another unit spans what there is."""
    known = values[np.isfinite(values)]
    if form in ("percent", "share") or not known.size:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    return (low, high) if low < high else (low - 0.5, high + 0.5)
