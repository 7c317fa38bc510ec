"""The result table of an evaluation: laid out once, then written as Markdown, CSV or HTML."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from ibrl_jax.domains.dond.metrics import MEASURES as DOND
from ibrl_jax.names import ALL_HELD_OUT

UNNAMED = tuple(asdict(measure) for measure in DOND)
"""The measures of a table that does not name its own: Deal-or-No-Deal's."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A counterpart; `kind` is its relation to training (held-out, in-system, self-play, ...)."""

    name: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How a number of the cells is found, named and written; see `domains.base.Measure`."""

    key: str
    title: str
    short: str
    form: str
    shown: bool
    ranked: bool
    compared: bool

    def write(self, value: float | None) -> str:
        """A value as it stands in a cell."""
        if self.form == "percent":
            return percent(value)
        if self.form == "signed" and value is not None:
            return f"{value:+.3f}"
        return share(value, 2 if self.form == "count" else 3)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One policy against one counterpart.

    `values` is the cell as evaluated; `best` names the measures in which no row of this column is
    better.
    """

    values: Mapping[str, Any]
    best: frozenset[str]
    pooled: bool = False
    """Whether its dialogues are those of other columns."""

    def number(self, measure: str) -> float | None:
        return _finite(self.values.get(measure))

    def interval(self, measure: str) -> tuple[float, float] | None:
        """The interval of a measure, or None where it was not estimated."""
        found = self.values.get(f"{measure}_ci") or (None, None)
        low, high = _finite(found[0]), _finite(found[1])
        return None if low is None or high is None else (low, high)

    def worst_case(self, measure: str) -> tuple[float, float] | None:
        """A share's ends, were all dialogues that are missing failures, or successes; None where
        none is missing."""
        found = (self.values.get("bounds") or {}).get(measure)
        complete = self.coverage is None or self.coverage >= 1
        return None if complete or not found else (float(found[0]), float(found[1]))

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
        return sum(int(cell.values.get("n") or 0) for cell in self.own)

    @property
    def planned(self) -> int:
        return sum(
            int(cell.values.get("planned") or cell.values.get("n") or 0) for cell in self.own
        )

    @property
    def own(self) -> Sequence[Cell]:
        """The cells without those that pool others, so that a dialogue counts once."""
        return [cell for cell in self.cells if cell and not cell.pooled]


@dataclass(frozen=True, kw_only=True)
class Table:
    """`measures` in the order of the evaluation, the success first; `remark` stands beside it.

    `auditor` is who looked at the dialogues afterwards (`rules`, an endpoint); empty: nobody.
    """

    columns: Sequence[Column]
    rows: Sequence[Row]
    measures: Sequence[Measure]
    deed: Sequence[str]
    remark: str
    auditor: str

    @property
    def main(self) -> Measure:
        return self.measures[0]

    @property
    def beside(self) -> Sequence[Measure]:
        """What stands in a cell under the main measure."""
        return [m for m in self.measures[1:] if m.shown]


def lay_out(evaluation: Mapping[str, Any]) -> Table:
    """The table of an evaluation.json, with the best of each column marked.

    With one row there is nothing to be best of; rows that tie are all marked.
    """
    columns = [Column(name=c["name"], kind=c.get("kind", "")) for c in evaluation["columns"]]
    known = {field.name for field in fields(Measure)}
    measures = [
        Measure(**{k: v for k, v in measure.items() if k in known})
        for measure in evaluation.get("measures", UNNAMED)
    ]
    ranked = [measure.key for measure in measures if measure.ranked]
    found = evaluation["rows"]
    best: dict[tuple[str, str], float] = {}
    for column in columns:
        for measure in ranked:
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
            for measure in ranked
            if (column.name, measure) in best
            and _finite(values.get(measure)) == best[column.name, measure]
        )
        return Cell(
            values=values, best=marked, pooled=column.name == ALL_HELD_OUT and len(columns) > 1
        )

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
        measures=measures,
        deed=evaluation.get("deed", ("agrees", "agree")),
        remark=evaluation.get("remark", ""),
        auditor=evaluation.get("auditor", ""),
    )


def markdown_table(evaluation: Mapping[str, Any]) -> str:
    """The table in the paper's form (Table 2), with expected utility and coverage beside it."""
    table = lay_out(evaluation)
    head = ["Policy", *(f"{c.name} ({c.kind})" if c.kind else c.name for c in table.columns)]
    lines = [head + ["Coverage"], ["---"] * (len(head) + 1)]
    for row in table.rows:
        cells = [_markdown_cell(cell, table) for cell in row.cells]
        lines.append([row.label, *cells, f"{row.scored:,}/{row.planned:,}"])
    body = "\n".join("| " + " | ".join(_plain(text) for text in line) + " |" for line in lines)
    return f"{body}\n\n{legend(table)}\n"


def legend(table: Table) -> str:
    """What stands in a cell, in sentences."""
    names = " / ".join(m.title.lower() for m in table.beside)
    text = f"Cells: {table.main.title.lower()} % / {names}"
    if any(m.key == "own_utility" for m in table.beside):
        text += " (own utility and joint value over agreed dialogues only)"
    text += ". Bold: best of its column. Coverage: scored dialogues of those planned."
    return f"{text} {table.remark}." if table.remark else text


def csv_table(evaluation: Mapping[str, Any]) -> str:
    """One line a policy and counterpart, every measure with its interval, for a spreadsheet."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    table = lay_out(evaluation)
    compared = [m.key for m in table.measures if m.compared and m.shown]
    writer.writerow(
        ["policy", "role", "counterpart", "kind", "n", "planned", "coverage", "clusters"]
        + [m.key for m in table.measures]
        + [f"{m}_{end}" for m in compared for end in ("low", "high")]
        + ["own_format_failures", "counterpart_format_failures"]
    )
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if cell is None:
                continue
            failures: Mapping[str, Any] = cell.values.get("format_failures") or {}
            ends = [end for measure in compared for end in cell.interval(measure) or (None, None)]
            writer.writerow(
                [row.policy, row.role or "", column.name, column.kind]
                + [cell.values.get(key) for key in ("n", "planned", "coverage", "clusters")]
                + [cell.number(m.key) for m in table.measures]
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


def _markdown_cell(cell: Cell | None, table: Table) -> str:
    if cell is None:
        return "–"
    parts = []
    for measure in (table.main, *table.beside):
        text = measure.write(cell.number(measure.key))
        parts.append(f"**{text}**" if measure.key in cell.best else text)
    return " / ".join(parts)


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None
