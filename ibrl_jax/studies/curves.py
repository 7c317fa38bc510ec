"""Parts whose axis is training: what checkpoints do, and what the paper reads off its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ibrl_jax.evaluation.statistics import Interval
from ibrl_jax.reporting.style import INK, colour, house_style
from ibrl_jax.studies import paper, pooled, seeds
from ibrl_jax.studies.declare import Measured, Piece, Row, Run
from ibrl_jax.studies.results import Cell, Results
from ibrl_jax.studies.results import pooled as merged
from ibrl_jax.studies.tables import CONTRAST, contrast_json, contrast_text, markdown

_WORDS = {1: "rises", -1: "falls", 0: "no clear change", None: "not judged"}


def printed_course(results: Results) -> Piece:
    """What the paper's text reads off its Figure 4."""
    keys = list(dict.fromkeys(key for row in paper.FIGURE4.values() for key in row))
    lines = [
        [role, *(f"{row[key]:.2f}" if key in row else "–" for key in keys)]
        for role, row in paper.FIGURE4.items()
    ]
    text = "As the paper's text reads them off (TeleSales, 9B, smoothed):\n\n"
    text += markdown(["Role", *keys], lines) + "\n"
    return Piece(markdown=text, data={role: dict(row) for role, row in paper.FIGURE4.items()})


@dataclass(frozen=True, kw_only=True)
class Line:
    """The checkpoints of one policy of one run: its rows by the iteration after which they were
    taken, the start at 0."""

    label: str
    run: Run
    rows: Mapping[int, Row]

    def at(self, share: float) -> Row:
        """The row that was taken after a share of training, or the one nearest to it."""
        last = max(self.rows)
        return self.rows[min(self.rows, key=lambda k: (abs(k - share * last), k))]


def lines_of(results: Results) -> list[Line]:
    """Every policy's checkpoints; the start, which runs share, stands in each of them."""
    start = next((r for run in results.design.runs for r in run.rows if r.policy == "start"), None)
    found = []
    for run in results.design.runs:
        planned = next(p for p in results.plan.runs if p.run is run)
        policies = dict.fromkeys(row.policy for row in run.rows if row.policy != "start")
        for policy in policies:
            rows = {0: start} if start is not None else {}
            rows |= {
                round(row.at * planned.config.iterations): row
                for row in run.rows
                if row.policy == policy
            }
            label = f"{run.label}, {policy}" if len(policies) > 1 else run.label
            found.append(Line(label=label, run=run, rows=rows))
    return found


def checkpoint_curves(results: Results) -> Piece:
    """A panel a judged measure and column: each policy's checkpoints, with intervals over
    scenarios and a dot for each seed."""
    measures, columns = _judged(results), results.design.shown
    lines = lines_of(results)
    if not any(_cells(results, line, column) for line in lines for column in columns):
        return Piece(markdown="No checkpoint has been measured.\n")
    with house_style(results.study.name):
        figure = Figure(figsize=(3.9 * len(columns) + 0.6, 2.8 * len(measures) + 0.6))
        panels = figure.subplots(
            len(measures), len(columns), sharex=True, sharey="row", squeeze=False
        )
        for i, measure in enumerate(measures):
            for j, column in enumerate(columns):
                axes = panels[i, j]
                for n, line in enumerate(lines):
                    _curve(axes, results, line, column, measure, colour(n), 0.9 * n)
                axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
                if not i:
                    axes.set_title(column, fontsize=9, color=INK, loc="left")
            unit = ", %" if measure.form == "percent" else ""
            panels[i, 0].set_ylabel(measure.title.lower() + unit)
        for axes in panels[-1]:
            axes.set_xlabel("iteration")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1.4)
    return Piece(figure=figure)


def _curve(
    axes: Axes,
    results: Results,
    line: Line,
    column: str,
    measure: Measured,
    ink: str,
    shift: float,
) -> None:
    """One line; `shift` [iterations] keeps the marks of several apart."""
    factor = 100 if measure.form == "percent" else 1
    xs, ys = [], []
    for iteration, cells in _cells(results, line, column).items():
        found = pooled.interval(merged(list(cells.values())), measure, results.statistics)
        if found.mean is None:
            continue
        x = iteration + shift
        xs.append(x)
        ys.append(factor * found.mean)
        if found.low is not None and found.high is not None:
            axes.plot([x, x], [factor * found.low, factor * found.high], color=ink, linewidth=1.0)
        values = (cell.value(measure.key) for cell in cells.values())
        spots = [factor * value for value in values if value is not None]
        axes.plot([x] * len(spots), spots, "o", color=ink, markersize=2, alpha=0.4)
    if xs:
        axes.plot(xs, ys, color=ink, linewidth=1.8, label=line.label)


def checkpoint_table(results: Results) -> Piece:
    """Each checkpoint's judged measures in each column, with intervals over scenarios."""
    lines = lines_of(results)
    iterations = sorted({k for line in lines for k in line.rows})
    text, rows = "", []
    for measure in _judged(results):
        for column in results.design.shown:
            table = []
            for line in lines:
                cells = _cells(results, line, column)
                told = dict.fromkeys(iterations, "–")
                for k, by_seed in cells.items():
                    whole = merged(list(by_seed.values()))
                    found = pooled.interval(whole, measure, results.statistics)
                    told[k] = _told(found, measure)
                    at = {"row": line.label, "iteration": k, "column": column}
                    rows.append({**at, **_point_json(found, by_seed, measure)})
                count = max(map(len, cells.values()), default=0)
                table.append([line.label, *told.values(), f"{count}/{len(results.seeds)}"])
            head = ["After iteration", *map(str, iterations), "Seeds"]
            text += f"{measure.title}, {column}:\n\n{markdown(head, table)}\n\n"
    if not rows:
        return Piece(markdown="No checkpoint has been measured.\n")
    text += (
        f"The dialogues of all seeds that a line's checkpoints have; brackets: "
        f"{results.statistics.confidence:.0%} over clusters of scenarios. Iteration 0 is the "
        "start, which all share.\n"
    )
    return Piece(markdown=text, rows=rows, data=rows)


def checkpoint_changes(results: Results) -> Piece:
    """How each policy changed in each half of training, with the seed as the unit."""
    text, rows = "", []
    steps = (
        ("first half", 0.5, 0.0),
        ("second half", 1.0, 0.5),
        ("all of it", 1.0, 0.0),
    )
    for measure in _judged(results):
        table = []
        for line in lines_of(results):
            for column in results.design.shown:
                cells = []
                for name, late, early in steps:
                    arms = [
                        pooled.arm(results, sign, (line.at(at).label,), column, measure)
                        for sign, at in ((1.0, late), (-1.0, early))
                    ]
                    found = seeds.contrast(arms, results.statistics)
                    word = _WORDS[found.verdict]
                    cells.append(contrast_text(found, measure, word))
                    if found.mean is not None:
                        rows.append(
                            {
                                "row": line.label,
                                "column": column,
                                "measure": measure.key,
                                "over": name,
                                "word": word,
                                **contrast_json(found),
                            }
                        )
                table.append([line.label, column, *cells])
        head = ["Policy", "Column", *(name for name, *_ in steps)]
        text += f"{measure.title}, change over:\n\n{markdown(head, table)}\n\n"
    if not rows:
        return Piece(markdown="Nothing can be said: no run has been evaluated.\n")
    text += (
        f"{CONTRAST[0].upper()}{CONTRAST[1:]}; *rises* and *falls* stand where both intervals "
        "leave 0 out, and with one seed nothing is judged. The halves meet at the checkpoint that "
        "is nearest to the middle.\n"
    )
    return Piece(markdown=text, rows=rows, data=rows)


def _judged(results: Results) -> Sequence[Measured]:
    return [m for m in results.design.measures if m.key in results.design.judged]


def _cells(results: Results, line: Line, column: str) -> dict[int, dict[int, Cell]]:
    """What a line's checkpoints did in a column, by iteration and seed.

    Of the seeds that all have which are measured there, so that no step of a line is one of seeds.
    """
    found = {k: results.by_seed((row.label,), column) for k, row in line.rows.items()}
    found = {k: cells for k, cells in found.items() if cells}
    shared = set.intersection(*map(set, found.values())) if found else set()
    return {k: {s: cells[s] for s in cells if s in shared} for k, cells in found.items() if shared}


def _point_json(found: Interval, by_seed: Mapping[int, Cell], measure: Measured) -> dict[str, Any]:
    values = {seed: cell.value(measure.key) for seed, cell in by_seed.items()}
    return {
        "measure": measure.key,
        "value": found.mean,
        "low": found.low,
        "high": found.high,
        "n": found.rows,
        "clusters": found.clusters,
        "by_seed": {seed: value for seed, value in values.items() if value is not None},
    }


def _told(found: Interval, measure: Measured) -> str:
    text = measure.write(found.mean)
    if found.low is None or found.high is None:
        return text
    return f"{text} [{measure.write(found.low)}, {measure.write(found.high)}]"
