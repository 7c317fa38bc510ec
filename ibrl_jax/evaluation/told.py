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


def short_table(table: Mapping[str, Any]) -> list[str]:
    """Lines of plain text: each policy against each counterpart, with intervals."""
    shown = [m for m in table["measures"] if m["compared"] and m["shown"]]
    rows = [
        [
            row["policy"],
            column["name"],
            *(_with_interval(cell, m["key"], m["form"]) for m in shown),
            f"{cell['n']} of {cell['planned']}",
        ]
        for row in table["rows"]
        for column in table["columns"]
        if (cell := row["cells"].get(column["name"])) is not None
    ]
    return _aligned(["policy", "against", *(m["title"].lower() for m in shown), "dialogues"], rows)


def crossplay_table(matrix: Mapping[str, Any]) -> list[str]:
    """Lines of plain text: each policy in the first seat against each in the second."""
    named = {"success": matrix["success"], "value": matrix["value"]}
    titles = {key: measure["title"].lower() for key, measure in named.items()}
    if any("value_second" in entry for entry in matrix["entries"]):
        named["value_second"], titles["value_second"] = matrix["value"], "of the second"
    rows = [
        [
            entry["first"],
            entry["second"],
            *(_with_interval(entry, key, measure["form"]) for key, measure in named.items()),
            f"{entry['n']} of {entry['planned']}",
        ]
        for entry in matrix["entries"]
    ]
    return _aligned(["first seat", "second seat", *titles.values(), "dialogues"], rows)


def _aligned(head: list[str], rows: list[list[str]]) -> list[str]:
    """Columns with two spaces between them; nothing without rows."""
    widths = [max(map(len, texts)) for texts in zip(head, *rows, strict=True)]
    lines = (zip(line, widths, strict=True) for line in (head, *rows) if rows)
    return ["  ".join(text.ljust(width) for text, width in line).rstrip() for line in lines]


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


def _form(form: str) -> str:
    return {"percent": ".1%", "signed": "+.3f"}.get(form, ".3f")


def _with_interval(values: Mapping[str, Any], key: str, form: str) -> str:
    """A measure's value, and its interval where it was estimated."""
    value, interval, spec = values[key], values.get(f"{key}_ci"), _form(form)
    if value is None:
        return "-"
    ends = f" [{interval[0]:{spec}}, {interval[1]:{spec}}]" if interval else ""
    return f"{value:{spec}}{ends}"


def _measure(cell: Mapping[str, Any], measure: Mapping[str, Any]) -> str:
    """A measure of a cell with its interval, and with its value at first try."""
    key, form = measure["key"], measure["form"]
    text = f"{_with_interval(cell, key, form)} {measure['title'].lower()}"
    if measure["first_try"]:
        text += f" ({cell['first_try_' + key]:{_form(form)}}"
        text += "" if form == "percent" else ")"
    return text
