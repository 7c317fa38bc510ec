"""What the audits of an evaluation's calls found, each with the calls that it looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ibrl_jax.reporting.tables import Cell, Table, percent

_SHARES = (
    ("hallucination", "Hallucination %", "audited"),
    ("invention", "Invention %", "audited"),
    ("fabrication", "Fabrication %", "labelled"),
    ("leak", "Leaked text %", "labelled"),
    ("label_agreement", "Label agreement %", "labels_checked"),
)
"""A check's share, its heading, and the count that the share is of."""

HEADS = (
    *("Policy", "Counterpart"),
    *(heading for _, heading, _ in _SHARES),
    *("Instructing turns", "Without an answer", "Without evidence"),
)


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One policy against one counterpart; `cells` are in the order of `HEADS`."""

    policy: str
    counterpart: str
    cells: Sequence[str]


def audit_rows(table: Table) -> list[AuditRow]:
    """A row a cell that was audited; none where no evaluation audits."""
    return [
        AuditRow(policy=row.label, counterpart=column.name, cells=_cells(cell))
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if cell is not None and "audited" in cell.values
    ]


def _cells(cell: Cell) -> list[str]:
    """Shares with what they are of, then the counts."""
    values, planned = cell.values, cell.values.get("planned")
    found = []
    for key, _, count in _SHARES:
        of = values.get(count) or 0
        unit = f"{of:,} turns" if count == "labels_checked" else f"{of:,} of {planned:,} calls"
        found.append(f"{percent(cell.number(key))} ({unit})")
    known = values.get("instructing_known") or 0
    turns = _listed(values.get("instructing_turns") or {})
    found.append(f"{turns or '0'} ({known:,} of {planned:,} calls)")
    found.append(_listed(values.get("checks_unanswered") or {}) or "0")
    found.append(str(values.get("findings_dropped") or 0))
    return found


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
