"""The table of an evaluation in a line, and the part of it that a run's summary keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def told(table: Mapping[str, Any]) -> str:
    """What came out in the first column, in a line; empty if there is no column."""
    if not table["columns"]:
        return ""
    column = table["columns"][0]["name"]
    shown = [m for m in table["measures"] if m["compared"] and m["shown"]]
    parts = []
    for row in table["rows"]:
        cell = row["cells"].get(column)
        if cell is not None and cell[shown[0]["key"]] is not None:
            found = [_measure(cell, m) for m in shown]
            found[0] += " without resampling)" if shown[0]["first_try"] else ""
            parts.append(f"{row['policy']} " + ", ".join(found))
    remark = f" ({table['remark']})" if table["remark"] else ""
    return f"against {column}: " + "; ".join(parts) + remark


def headline(table: Mapping[str, Any]) -> dict[str, dict[str, dict[str, float | None]]]:
    """What is compared, by policy and column."""
    keys = [m["key"] for m in table["measures"] if m["compared"]]
    return {
        row["policy"]: {
            column: {key: cell[key] for key in (*keys, "coverage")}
            for column, cell in row["cells"].items()
        }
        for row in table["rows"]
    }


def _measure(cell: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    """A measure of a cell, with its value at first try."""
    form = {"percent": ".1%", "signed": "+.3f"}.get(measure["form"], ".3f")
    text = f"{cell[measure['key']]:{form}} {measure['title'].lower()}"
    if measure["first_try"]:
        text += f" ({cell['first_try_' + measure['key']]:{form}}"
        text += "" if measure["form"] == "percent" else ")"
    return text
