"""The result table marks what is best, says what is missing, and survives a spreadsheet."""

import csv
import io

from ibrl_jax.reporting.tables import csv_table, lay_out, markdown_table, p_value, percent, share


def evaluation(*agreements, **rest):
    return {
        "columns": [{"name": "fair", "kind": "held-out"}],
        "rows": [
            {"policy": f"p{i}", "role": None, "cells": {"fair": {"n": 9, "agreement": a, **rest}}}
            for i, a in enumerate(agreements)
        ],
    }


def best(evaluation):
    cells = [row.cells[0] for row in lay_out(evaluation).rows]
    return ["agreement" in cell.best for cell in cells if cell]


def test_best_of_a_column_is_marked_with_its_ties():
    assert best(evaluation(0.2, 0.5, 0.4)) == [False, True, False]
    assert best(evaluation(0.5, 0.5, 0.4)) == [True, True, False]


def test_single_row_and_rows_without_a_value_are_best_of_nothing():
    assert best(evaluation(0.5)) == [False]
    assert best(evaluation(None, 0.5)) == [False, False]
    assert best(evaluation(float("nan"), 0.5, 0.4)) == [False, True, False]


def test_policy_that_did_not_meet_a_counterpart_has_no_cell():
    table = evaluation(0.5, 0.6)
    table["rows"][1]["cells"] = {}
    assert lay_out(table).rows[1].cells == [None]
    assert "| p1 | – | 0/0 |" in markdown_table(table)


def test_markdown_has_the_form_of_the_papers_table():
    table = evaluation(
        0.431, 0.2, own_utility=0.408, joint_value=0.8, expected_utility=0.1758, planned=10
    )
    lines = markdown_table(table).splitlines()
    assert lines[0] == "| Policy | fair (held-out) | Coverage |"
    assert lines[2] == "| p0 | **43.1** / **0.408** / **0.800** / **0.176** | 9/10 |"
    table["rows"][0]["policy"] = "a|b\nc"
    assert markdown_table(table).splitlines()[2].startswith("| a\\|b c |")


def test_csv_has_one_line_a_cell_with_every_number_unrounded():
    table = evaluation(
        1 / 3, agreement_ci=[0.1, 0.5], format_failures={"own": {"empty": 2, "x": 1}}
    )
    table["rows"][0]["policy"] = 'quoted, "name"'
    (row,) = csv.DictReader(io.StringIO(csv_table(table)))
    assert row["policy"] == 'quoted, "name"'
    assert float(row["agreement"]) == 1 / 3
    assert (row["agreement_low"], row["agreement_high"]) == ("0.1", "0.5")
    assert (row["own_format_failures"], row["counterpart_format_failures"]) == ("3", "0")
    assert row["expected_utility_low"] == ""


def test_what_does_not_exist_is_a_dash():
    assert (percent(None), share(None), p_value(None)) == ("–", "–", "–")
    assert (percent(0.9999), share(0.5, 2), p_value(1e-9)) == ("100.0", "0.50", "<0.0001")


def test_a_dialogue_of_the_pooled_column_counts_once():
    table = evaluation(0.5, planned=10)
    table["columns"] = [
        {"name": name, "kind": "held-out"} for name in ("all held-out", "fair", "x")
    ]
    (row,) = table["rows"]
    row["cells"] |= {"x": {"n": 4, "agreement": 0.5}, "all held-out": {"n": 13, "planned": 14}}
    (laid_out,) = lay_out(table).rows
    assert (laid_out.scored, laid_out.planned) == (13, 14)
