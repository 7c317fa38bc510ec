"""What of an evaluation is still to be done is counted, and nothing is said of a finished one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ibrl_jax.reporting.html import render
from ibrl_jax.reporting.runs import read_run
from ibrl_jax.reporting.unfinished import audited, unfinished
from tests.reporting.fake_run import build, evaluation

DONE = {"dialogues": 1200, "broken_off": 0, "calls": 1200, "unaudited": 0}


@pytest.mark.parametrize(
    "counts, clauses",
    [
        (DONE, ()),
        ({"dialogues": 1200, "broken_off": 0}, ()),
        (DONE | {"broken_off": 1}, ("1 of 1,200 dialogues was broken off",)),
        (
            {"dialogues": 1200, "broken_off": 3, "calls": 1197, "unaudited": 20},
            ("3 of 1,200 dialogues were broken off", "1,177 of 1,197 calls audited in full"),
        ),
    ],
)
def test_each_thing_that_is_left_has_a_clause(counts, clauses) -> None:
    assert unfinished({"unfinished": counts}) == clauses


def test_of_an_evaluation_from_before_coverage_tells() -> None:
    assert unfinished({}) == ()
    assert unfinished({"coverage": {"planned": 12, "scored": 12}}) == ()
    (clause,) = unfinished({"coverage": {"planned": 12, "scored": 10}})
    assert clause == "2 of 12 dialogues were broken off"
    assert audited({}) == ""


def test_the_report_says_what_is_left_and_how_many_calls_are_audited(tmp_path: Path) -> None:
    folder = build(tmp_path, iterations=2, groups=1)

    def page(counts: dict[str, int]) -> str:
        table = evaluation() | {"unfinished": counts, "auditor": "watch"}
        for row in table["rows"]:
            for cell in row["cells"].values():
                cell["audited"] = 3
        (folder / "evaluation.json").write_text(json.dumps(table))
        return render(read_run(folder))

    left = page({"dialogues": 1200, "broken_off": 3, "calls": 1197, "unaudited": 20})
    assert "3 of 1,200 dialogues were broken off; another start of the evaluation" in left
    assert "By the endpoint watch, 1,177 of 1,197 calls audited. Hallu" in left
    done = page(DONE)
    assert "broken off" not in done
    assert "1,200 of 1,200 calls audited" in done
