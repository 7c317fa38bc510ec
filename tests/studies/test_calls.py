"""Table 1's two odds ratios, of conversations and of profiles, on calls that are written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibrl_jax.studies.calls import by_profile, odds_of_failing
from ibrl_jax.studies.declare import Column
from ibrl_jax.studies.plan import plan
from ibrl_jax.studies.results import Cell, Results, collect
from tests.studies.fakes import DESIGN, STUDY

SUCCESS = DESIGN.measures[0]


def calls(wins: list[int], of: int = 3) -> Cell:
    """A cell of `of` calls with each profile, the first `wins` of which succeed."""
    values = [float(call < won) for won in wins for call in range(of)]
    clusters = [f"p{n}" for n in range(len(wins)) for _ in range(of)]
    return Cell(
        values={SUCCESS.key: np.array(values)},
        clusters=np.array(clusters),
        planned=len(values),
        kinds=frozenset({"held-out"}),
        tables=(),
    )


def results(root: Path, cells: dict[str, Cell]) -> Results:
    pair = DESIGN.runs[0]
    design = replace(
        DESIGN,
        runs=(replace(pair, rows=pair.rows[:2]), DESIGN.runs[1]),
        references=(),
        columns=(Column(name="A", counterparts=("scripted:lexi",)),),
        in_system=False,
        self_play=False,
    )
    few = ["--config.evaluation.seeds=3", f"--config.run.root={root}"]
    made = plan(design, (0,), few)
    empty = collect(replace(STUDY, designs={"mini": design}), "mini", (0,), made)
    return replace(empty, cells={(row, "A"): {0: cell} for row, cell in cells.items()})


def test_a_profile_fails_where_none_of_its_calls_succeeds() -> None:
    arm = by_profile([calls([0, 1, 3]), calls([0, 0, 2])], SUCCESS, 3)
    assert arm.fails.tolist() == [1, 0, 0, 1, 1, 0]
    assert arm.clusters.tolist() == ["p0", "p1", "p2"] * 2, "one cluster at all seeds"


def test_a_profile_that_lacks_a_call_is_neither() -> None:
    cell = calls([0, 1, 3])
    short = replace(
        cell, values={SUCCESS.key: cell.values[SUCCESS.key][1:]}, clusters=cell.clusters[1:]
    )
    assert by_profile([short], SUCCESS, 3).clusters.tolist() == ["p1", "p2"]


def test_both_ratios_come_out_and_say_of_what(tmp_path: Path) -> None:
    ours = calls([0] * 2 + [2] * 6 + [3] * 2)  # 18 of 30 calls, 8 of 10 profiles
    theirs = calls([0] * 5 + [2] * 5)  # 10 of 30 calls, 5 of 10 profiles
    piece = odds_of_failing(results(tmp_path, {"first": ours, "alone": theirs}))
    found = {row["of"]: row for row in piece.rows}
    assert found["conversation"]["odds_ratio"] == pytest.approx((20 / 10) / (12 / 18))
    assert found["profile"]["odds_ratio"] == pytest.approx((5 / 5) / (2 / 8))
    assert (found["profile"]["rows"], found["profile"]["clusters"]) == (10, 10)
    assert found["conversation"]["rows"] == 30
    assert {row["policy"] for row in piece.rows} == {"alone"}


def test_the_papers_ratio_stands_beside_ours(tmp_path: Path) -> None:
    made = results(tmp_path, {"first": calls([0, 1, 2] * 4), "alone": calls([0, 0, 1] * 4)})
    pair, alone = made.design.runs
    rows = (replace(alone.rows[0], printed="9B SFT"), *alone.rows[1:])
    named = replace(made, design=replace(made.design, runs=(pair, replace(alone, rows=rows))))
    found = {row["of"]: row["printed"] for row in odds_of_failing(named).rows}
    assert found["conversation"] == 3.35
    assert found["profile"] == pytest.approx((37.2 / 62.8) / (10.4 / 89.6))


def test_nothing_to_compare_is_told(tmp_path: Path) -> None:
    assert "nothing to compare" in odds_of_failing(results(tmp_path, {})).markdown
