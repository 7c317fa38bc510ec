"""The bench's figure: what is done a second, by implementation and size, a panel a case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.results import Case, Results, Spread
from ibrl_jax.reporting.style import colour, house_style

NAMES = ("ours", "tunix", "transformers", "transformers, cache kept", "TRL", "TRL, one rollout")
"""In the order of their colours."""


def draw(results: Results, cases: Sequence[Case], folder: Path) -> None:
    """`bench.png` and `bench.svg`; nothing where no case was measured."""
    found = results.values["cases"]
    drawn = [case for case in cases if any(f"{case.name}/{size}" in found for size in case.sizes)]
    if not drawn:
        return
    with house_style("bench"):
        figure = Figure(figsize=(2.6 * len(drawn), 3.2))
        seen: dict[str, Any] = {}
        for axes, case in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn, strict=True):
            sizes = [size for size in case.sizes if f"{case.name}/{size}" in found]
            for at, size in enumerate(sizes):
                each = found[f"{case.name}/{size}"]["implementations"]
                names = [name for name in NAMES if name in each]
                width = 0.8 / len(names)
                for i, name in enumerate(names):
                    spread = Spread.of(each[name])
                    seen[name] = axes.bar(
                        at + (i - (len(names) - 1) / 2) * width,
                        spread.median,
                        width * 0.9,
                        yerr=np.array(
                            [[spread.median - spread.least], [spread.most - spread.median]]
                        ),
                        color=colour(NAMES.index(name)),
                        error_kw={"elinewidth": 0.8},
                    )
            axes.set_yscale("log")
            axes.set_xticks(range(len(sizes)), sizes)
            axes.set_title(case.title, fontsize=9)
            axes.set_ylabel(f"{case.unit} a second")
        figure.legend(seen.values(), seen.keys(), loc="outside lower center", ncols=len(seen))
        figure.savefig(folder / "bench.png", dpi=160, facecolor="white")
        figure.savefig(folder / "bench.svg", metadata={"Date": None})
