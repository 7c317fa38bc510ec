"""What a command prints of an evaluation: a line a cell, and the first column in a sentence."""

from __future__ import annotations

from typing import Any

from ibrl_jax.evaluation.told import crossplay_table, short_table, told


def measure(key: str, form: str, **changes: Any) -> dict[str, Any]:
    found = {"key": key, "title": key.capitalize(), "form": form, "compared": True, "shown": True}
    return found | {"first_try": False} | changes


def cell(share: float | None, value: float, interval: list[float] | None) -> dict[str, Any]:
    return {
        "n": 9,
        "planned": 10,
        "agreement": share,
        "agreement_ci": interval,
        "value": value,
        "value_ci": [0.1, 0.2],
    }


TABLE = {
    "measures": [
        measure("agreement", "percent"),
        measure("value", "signed"),
        measure("hidden", "share", shown=False),
        measure("turns", "count", compared=False),
    ],
    "remark": "",
    "columns": [{"name": "all held-out"}, {"name": "fair"}],
    "rows": [
        {
            "policy": "SFT start",
            "cells": {"all held-out": cell(0.5, 0.15, [0.4, 0.6]), "fair": cell(None, 0, None)},
        },
        {"policy": "a", "cells": {"all held-out": cell(0.625, -0.15, None)}},
    ],
}


def test_a_table_has_a_line_a_cell_with_intervals_and_coverage() -> None:
    assert short_table(TABLE) == [
        "policy     against       agreement             value                    dialogues",
        "SFT start  all held-out  50.0% [40.0%, 60.0%]  +0.150 [+0.100, +0.200]  9 of 10",
        "SFT start  fair          -                     +0.000 [+0.100, +0.200]  9 of 10",
        "a          all held-out  62.5%                 -0.150 [+0.100, +0.200]  9 of 10",
    ]


def test_a_table_of_no_cell_is_none() -> None:
    assert short_table(TABLE | {"rows": [], "columns": []}) == []


def test_the_sentence_has_the_intervals_of_the_first_column() -> None:
    assert told(TABLE) == (
        "against all held-out: SFT start 50.0% [40.0%, 60.0%] agreement, "
        "+0.150 [+0.100, +0.200] value; a 62.5% agreement, -0.150 [+0.100, +0.200] value"
    )


def test_a_matrix_has_a_line_a_pair() -> None:
    success, value = ({"title": t, "form": f} for t, f in (("Deals", "percent"), ("V", "share")))
    entry = {"planned": 4, "n": 3, "success": 0.5, "success_ci": [0.25, 0.75], "value": None}
    entries = [{"first": a, "second": b, **entry} for a, b in (("a", "a"), ("a", "b"))]
    matrix = {"success": success, "value": value, "entries": entries}
    assert crossplay_table(matrix) == [
        "first seat  second seat  deals                 v  dialogues",
        "a           a            50.0% [25.0%, 75.0%]  -  3 of 4",
        "a           b            50.0% [25.0%, 75.0%]  -  3 of 4",
    ]
    for one in entries:
        one |= {"value": 0.25, "value_second": 0.125, "value_second_ci": [0.0, 0.5]}
    assert crossplay_table(matrix)[1].endswith("  0.250  0.125 [0.000, 0.500]  3 of 4")
