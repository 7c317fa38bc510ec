"""What audits found stands in the report with the calls that were looked at, and not without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ibrl_jax.domains.telesales.metrics import measured
from ibrl_jax.reporting.audits import HEADS, audit_rows
from ibrl_jax.reporting.html import render
from ibrl_jax.reporting.runs import read_run
from ibrl_jax.reporting.tables import lay_out, markdown_table
from tests.reporting.fake_run import build

CELL = {
    "n": 59,
    "planned": 60,
    "coverage": 59 / 60,
    "clusters": 20,
    "success": 0.4,
    "success@1": 0.75,
    "success@2": 0.4,
    "success@3": 0.05,
    "delta_willingness": 0.251,
    "delta_patience": -0.012,
    "delta_trust": 0.1,
    "hallucination": 0.125,
    "invention": 0.25,
    "audited": 56,
    "fabrication": 0.05,
    "leak": None,
    "labelled": 0,
    "label_agreement": 0.98,
    "labels_checked": 1200,
    "instructing": 0.05,
    "instructing_turns": {"customer": 0, "sales": 3},
    "instructing_known": 59,
    "findings_dropped": 4,
    "checks_unanswered": {"timeout": 59, "schema": 3},
    "verbal_yes": 0.5,
    "agent_turns": 6.2,
    "tool_calls": 1.1,
    "end_reasons": {"confirmed": 24, "hang_up": 30, "turn_limit": 5, "aborted": 1},
}


def evaluation(**more: Any) -> dict[str, Any]:
    return {
        "measures": [vars(measure) for measure in measured(3)],
        "deed": ["succeeds", "succeed"],
        "remark": "",
        "columns": [{"name": "rule_v2", "kind": "held-out"}],
        "rows": [
            {"policy": "SFT start", "role": None, "cells": {}},
            {"policy": "sales", "role": "sales", "cells": {"rule_v2": CELL}},
        ],
        "comparisons": [],
        "settings": {},
    } | more


def page(tmp_path: Path, found: dict[str, Any]) -> str:
    run = build(tmp_path, iterations=4, groups=1)
    (run / "evaluation.json").write_text(json.dumps(found))
    return render(read_run(run))


def test_every_share_stands_with_what_it_is_of() -> None:
    (row,) = audit_rows(lay_out(evaluation(auditor="watch")))
    assert (row.policy, row.counterpart) == ("sales · sales", "rule_v2")
    assert dict(zip(HEADS[2:], row.cells, strict=True)) == {
        "Hallucination %": "12.5 (56 of 60 calls)",
        "Invention %": "25.0 (56 of 60 calls)",
        "Fabrication %": "5.0 (0 of 60 calls)",
        "Leaked text %": "– (0 of 60 calls)",
        "Label agreement %": "98.0 (1,200 turns)",
        "Instructing turns": "customer 0, sales 3 (59 of 60 calls)",
        "Without an answer": "timeout 59, schema 3",
        "Without evidence": "4",
    }


@pytest.mark.parametrize(("auditor", "by"), [("rules", "By rules."), ("watch", "the endpoint wat")])
def test_the_report_says_who_looked_and_what_was_found(tmp_path: Path, auditor, by) -> None:
    text = page(tmp_path, evaluation(auditor=auditor))
    assert "Checks of the calls" in text
    assert by in text
    assert "12.5 (56 of 60 calls)" in text
    assert "customer 0, sales 3 (59 of 60 calls)" in text


def test_a_report_without_audits_has_no_such_table(tmp_path: Path) -> None:
    assert "Checks of the calls" not in page(tmp_path / "nobody", evaluation(auditor=""))
    assert "Checks of the calls" not in page(tmp_path / "older", evaluation())


def test_what_endpoints_were_asked_and_cost_stands_with_how_it_was_evaluated(
    tmp_path: Path,
) -> None:
    ledger = {"model": "m", "tokens_in": 7_300_000, "cost": 2.44}
    text = page(tmp_path, evaluation(endpoints={"watch": ledger}))
    assert "<dt>endpoints.watch.cost</dt><dd>2.44</dd>" in text
    assert "<dt>endpoints.watch.tokens_in</dt><dd>7300000</dd>" in text


def test_a_report_of_calls_has_success_at_n_deltas_hallucination_ends_and_coverage(
    tmp_path: Path,
) -> None:
    text = page(tmp_path, evaluation(auditor="rules"))
    for said in ("@1 75.0", "@2 40.0", "@3 5.0", "Δw +0.251", "Δp -0.012", "halluc. 12.5"):
        assert said in text
    assert "confirmed 24, hang_up 30, turn_limit 5, aborted 1" in text
    assert "98.3% scored" in text
    row = markdown_table(evaluation()).splitlines()[3]
    assert row == ("| sales · sales | 40.0 / 75.0 / 40.0 / 5.0 / +0.251 / -0.012 / 12.5 | 59/60 |")
