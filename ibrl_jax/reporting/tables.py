"""The result table of an evaluation: laid out once, then written as Markdown, CSV or HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MEASURES = {
    "agreement": "Agreement",
    "own_utility": "Own utility",
    "joint_value": "Joint value",
    "pareto": "Pareto-optimal",
    "expected_utility": "Expected utility",
    "first_try_agreement": "Agreement at first try",
    "first_try_expected_utility": "Expected utility at first try",
    "turns": "Turns",
}
"""Key in a cell -> its name. Utilities, joint value and Pareto are over agreed dialogues only;
`first_try` is as if no refused turn were ever sampled again."""

_RANKED = ("agreement", "own_utility", "joint_value", "pareto", "expected_utility")

_LEGEND = (
    "Cells: agreement % / own utility / joint value / expected utility "
    "(own utility and joint value over agreed dialogues only). Bold: best of its column. "
    "Coverage: scored dialogues of those planned."
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A counterpart; `kind` is its relation to training (held-out, in-system, self-play, ...)."""

    name: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One policy against one counterpart.

    `values` is the cell as evaluated; `best` names the measures in which no row of this column is
    better.
    """

    values: Mapping[str, Any]
    best: frozenset[str]

    def number(self, measure: str) -> float | None:
        return _finite(self.values.get(measure))

    def interval(self, measure: str) -> tuple[float, float] | None:
        """The interval of a measure, or None where it was not estimated."""
        found = self.values.get(f"{measure}_ci") or (None, None)
        low, high = _finite(found[0]), _finite(found[1])
        return None if low is None or high is None else (low, high)

    @property
    def coverage(self) -> float | None:
        return _finite(self.values.get("coverage"))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One policy; `role` is None for a policy that was averaged over seats."""

    policy: str
    role: str | None
    cells: Sequence[Cell | None]

    @property
    def label(self) -> str:
        return self.policy if self.role is None else f"{self.policy} · {self.role}"

    @property
    def scored(self) -> int:
        return sum(int(cell.values.get("n") or 0) for cell in self.cells if cell)

    @property
    def planned(self) -> int:
        return sum(
            int(cell.values.get("planned") or cell.values.get("n") or 0)
            for cell in self.cells
            if cell
        )


@dataclass(frozen=True, kw_only=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Row]


def lay_out(evaluation: Mapping[str, Any]) -> Table:
    """The table of an evaluation.json, with the best of each column marked.

    With one row there is nothing to be best of; rows that tie are all marked.
    """
    columns = [Column(name=c["name"], kind=c.get("kind", "")) for c in evaluation["columns"]]
    found = evaluation["rows"]
    best: dict[tuple[str, str], float] = {}
    for column in columns:
        for measure in _RANKED:
            values = [
                value
                for row in found
                if (cell := row["cells"].get(column.name)) is not None
                and (value := _finite(cell.get(measure))) is not None
            ]
            if len(values) > 1:
                best[column.name, measure] = max(values)

    def laid_out(row: Mapping[str, Any], column: Column) -> Cell | None:
        values = row["cells"].get(column.name)
        if values is None:
            return None
        marked = frozenset(
            measure
            for measure in _RANKED
            if (column.name, measure) in best
            and _finite(values.get(measure)) == best[column.name, measure]
        )
        return Cell(values=values, best=marked)

    return Table(
        columns=columns,
        rows=[
            Row(
                policy=row["policy"],
                role=row.get("role"),
                cells=[laid_out(row, column) for column in columns],
            )
            for row in found
        ],
    )


def markdown_table(evaluation: Mapping[str, Any]) -> str:
    """The table in the paper's form (Table 2), with expected utility and coverage beside it."""
    table = lay_out(evaluation)
    head = ["Policy", *(f"{c.name} ({c.kind})" if c.kind else c.name for c in table.columns)]
    lines = [head + ["Coverage"], ["---"] * (len(head) + 1)]
    for row in table.rows:
        cells = [_markdown_cell(cell) for cell in row.cells]
        lines.append([row.label, *cells, f"{row.scored:,}/{row.planned:,}"])
    body = "\n".join("| " + " | ".join(_plain(text) for text in line) + " |" for line in lines)
    return f"{body}\n\n{_LEGEND}\n"


def csv_table(evaluation: Mapping[str, Any]) -> str:
    """One line a policy and counterpart, every measure with its interval, for a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["policy", "role", "counterpart", "kind", "n", "planned", "coverage", "clusters"]
        + list(MEASURES)
        + [f"{m}_{end}" for m in ("agreement", "expected_utility") for end in ("low", "high")]
        + ["own_format_failures", "counterpart_format_failures"]
    )
    table = lay_out(evaluation)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is None:
                continue
            failures: Mapping[str, Any] = cell.values.get("format_failures") or {}
            ends = [
                end
                for measure in ("agreement", "expected_utility")
                for end in cell.interval(measure) or (None, None)
            ]
            writer.writerow(
                [row.policy, row.role or "", column.name, column.kind]
                + [cell.values.get(key) for key in ("n", "planned", "coverage", "clusters")]
                + [cell.number(measure) for measure in MEASURES]
                + ends
                + [sum((failures.get(side) or {}).values()) for side in ("own", "counterpart")]
            )
    return out.getvalue()


def percent(value: float | None) -> str:
    """A share as a percentage with one decimal, or a dash."""
    return "–" if value is None else f"{100 * value:.1f}"


def share(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def p_value(value: float | None) -> str:
    """A p with four decimals, `<0.0001` below them, or a dash where none exists."""
    return "<0.0001" if value is not None and value < 0.0001 else share(value, 4)


def _markdown_cell(cell: Cell | None) -> str:
    if cell is None:
        return "–"
    parts = []
    for measure, write in (
        ("agreement", percent),
        ("own_utility", share),
        ("joint_value", share),
        ("expected_utility", share),
    ):
        text = write(cell.number(measure))
        parts.append(f"**{text}**" if measure in cell.best else text)
    return " / ".join(parts)


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
