"""One palette and one typographic style for every figure and for the report's page.

Colours are told apart by people with any of the common colour-vision deficiencies, and no figure
relies on colour alone. Figures are drawn in the light theme; in an SVG that stands inside the
report each colour becomes a CSS variable, so that the same figure follows the page into its dark
theme.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

LIGHT = {
    "page": "#f7f6f3",
    "surface": "#fffffe",
    "ink": "#1d232b",
    "muted": "#667080",
    "grid": "#e5e3dd",
    "series-0": "#1b6ca8",
    "series-1": "#c4541a",
    "series-2": "#0b8072",
    "series-3": "#8a4f9e",
    "series-4": "#a37c00",
    "series-5": "#5b6573",
    "good": "#1a7f4e",
    "warn": "#a15c00",
    "bad": "#b3261e",
}
DARK = {
    "page": "#12151a",
    "surface": "#1a1f26",
    "ink": "#e8eaed",
    "muted": "#98a2b0",
    "grid": "#2d343e",
    "series-0": "#6cb4ee",
    "series-1": "#f29257",
    "series-2": "#45c4b0",
    "series-3": "#c990dd",
    "series-4": "#dcb64a",
    "series-5": "#aab4c2",
    "good": "#5fd398",
    "warn": "#f0b35c",
    "bad": "#ff8a80",
}
SERIES = tuple(LIGHT[f"series-{i}"] for i in range(6))
INK, MUTED, GRID = LIGHT["ink"], LIGHT["muted"], LIGHT["grid"]

_RC: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "xtick.major.size": 0,
    "ytick.color": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0,
}


@contextmanager
def house_style(salt: str) -> Iterator[None]:
    """Draw in the house style; equal data give an equal file. `salt` keeps ids of a page apart."""
    with mpl.rc_context({**_RC, "svg.hashsalt": salt}):
        yield


def colour(index: int) -> str:
    """The colour of the i-th role or policy; it repeats after six."""
    return SERIES[index % len(SERIES)]


def inline_svg(figure: Figure, description: str) -> str:
    """A figure as an SVG element of the report: no size of its own, the page's font, colours."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' id="(?!p[0-9a-f]{8,}|m[0-9a-f]{8,})[^"]*"', "", svg)
    svg = svg.replace("'DejaVu Sans'", "var(--font)")
    for name, value in LIGHT.items():
        svg = svg.replace(value, f"var(--{name}, {value})")
    view = re.search(r'viewBox="[^"]*"', svg)
    body = svg[svg.index(">") + 1 :]
    label = _attribute(description)
    return (
        f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {view[0] if view else ""} '
        f'role="img" aria-label="{label}">{body}'
    )


def css_variables(theme: dict[str, str]) -> str:
    """The palette as CSS declarations."""
    return " ".join(f"--{name}: {value};" for name, value in theme.items())


def _attribute(text: str) -> str:
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;")):
        text = text.replace(character, entity)
    return text
