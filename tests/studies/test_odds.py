"""Odds ratios of dialogues and of profiles, on calls that are written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ibrl_jax.studies.declare import Column, Measured
from ibrl_jax.studies.odds import by_profile, odds_of_failing
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
        bounds={},
    )


def results(root: Path, cells: dict[str, Cell | dict[int, Cell]]) -> Results:
    """Of some rows in column A, at seed 0 or at the seeds that are named."""
    pair = DESIGN.runs[0]
    design = replace(
        DESIGN,
        runs=(replace(pair, rows=pair.rows[:2]), DESIGN.runs[1]),
        references=(),
        columns=(Column(name="A", counterparts=("scripted:lexi",)),),
        measures=(
            SUCCESS,
            Measured(key="success@1", title="S@1", form="percent", of="success", at_least=1),
        ),
        judged=(),
        in_system=False,
        self_play=False,
    )
    few = ["--config.evaluation.seeds=3", f"--config.run.root={root}"]
    by_row = {r: {0: cell} if isinstance(cell, Cell) else cell for r, cell in cells.items()}
    seeds = sorted({seed for of in by_row.values() for seed in of} or {0})
    made = plan(design, seeds, few)
    empty = collect(replace(STUDY, designs={"mini": design}), "mini", seeds, made)
    return replace(empty, cells={(row, "A"): of for row, of in by_row.items()})


def test_a_profile_fails_where_none_of_its_calls_succeeds() -> None:
    arm = by_profile(calls([0, 1, 3]), SUCCESS, 3)
    assert arm.fails.tolist() == [1, 0, 0]
    assert arm.clusters.tolist() == ["p0", "p1", "p2"]


def test_a_profile_that_lacks_a_call_is_neither() -> None:
    cell = calls([0, 1, 3])
    short = replace(
        cell, values={SUCCESS.key: cell.values[SUCCESS.key][1:]}, clusters=cell.clusters[1:]
    )
    assert by_profile(short, SUCCESS, 3).clusters.tolist() == ["p1", "p2"]


def test_both_ratios_come_out_and_say_of_what(tmp_path: Path) -> None:
    ours = calls([0] * 2 + [2] * 6 + [3] * 2)  # 18 of 30 calls, 8 of 10 profiles
    theirs = calls([0] * 5 + [2] * 5)  # 10 of 30 calls, 5 of 10 profiles
    piece = odds_of_failing(results(tmp_path, {"first": ours, "alone": theirs}))
    found = {row["of"]: row for row in piece.rows}
    assert found["dialogue"]["odds_ratio"] == pytest.approx((20 / 10) / (12 / 18))
    assert found["profile"]["odds_ratio"] == pytest.approx((5 / 5) / (2 / 8))
    assert (found["profile"]["rows"], found["profile"]["clusters"]) == (10, 10)
    assert found["dialogue"]["rows"] == 30
    assert {row["policy"] for row in piece.rows} == {"alone"}
    assert "| A | a failed profile | alone | 50.0 / 80.0 |" in piece.markdown


def test_a_profile_has_no_more_tries_with_a_reference_of_several_policies(tmp_path: Path) -> None:
    """Worked by hand: success of a profile's three calls, by policy.

    profile     0  1  2  3  4  5  6  7  8  9    profiles without any
    first       .  .  .  .  1  1  1  1  1  1    4 of 10
    second      1  1  .  .  .  .  1  1  1  1    4 of 10
    together                                    8 of 20, and not 2 of 10
    alone       .  .  .  .  .  1  1  1  1  1    5 of 10: odds 1
    """
    first, second = calls([0] * 4 + [1] * 6), calls([1, 1, 0, 0, 0, 0, 1, 1, 1, 1])
    made = results(tmp_path, {"first": first, "alone": calls([0] * 5 + [1] * 5)})
    pair = replace(DESIGN.runs[0], rows=DESIGN.runs[0].rows)
    design = replace(made.design, runs=(pair, made.design.runs[1]))
    both = replace(made, design=design, cells={**made.cells, ("second", "A"): {0: second}})
    found = {
        row["reference"]: row
        for row in odds_of_failing(both).rows
        if row["of"] == "profile" and row["policy"] == "alone"
    }
    together = found["pair"]
    assert together["odds_ratio"] == pytest.approx((5 / 5) / (8 / 12))
    assert (together["rates"], together["reference_rates"]) == (0.5, 0.4)
    assert (together["rows"], together["reference_rows"]) == (10, 20)
    assert together["clusters"] == 10
    for role in ("first", "second"):
        assert found[role]["odds_ratio"] == pytest.approx((5 / 5) / (4 / 6))
        assert found[role]["reference_rows"] == 10


def test_a_policy_is_compared_over_the_seeds_that_the_reference_has_too(tmp_path: Path) -> None:
    easy, hard = calls([3] * 9 + [1]), calls([0] * 9 + [2])
    made = results(
        tmp_path, {"first": {0: easy, 1: hard}, "alone": {0: easy}, "SFT start": {2: easy}}
    )
    piece = odds_of_failing(made)
    found = {row["of"]: row for row in piece.rows}
    assert found["dialogue"]["odds_ratio"] == pytest.approx(1.0), "seed 1 is not held against it"
    assert (found["dialogue"]["rows"], found["dialogue"]["reference_rows"]) == (30, 30)
    assert (found["dialogue"]["seeds"], found["dialogue"]["at_seeds"]) == (1, "0")
    assert {row["policy"] for row in piece.rows} == {"alone"}, "the start shares no seed"
    assert "| 1/3 |" in piece.markdown
    assert "at the seeds that both have: 0" in piece.markdown


def test_a_scenario_is_one_cluster_at_all_seeds(tmp_path: Path) -> None:
    both = {seed: calls([0, 1, 3]) for seed in (0, 1)}
    found = odds_of_failing(results(tmp_path, {"first": both, "alone": both})).rows
    assert {(row["of"], row["rows"], row["clusters"]) for row in found} == {
        ("dialogue", 18, 3),
        ("profile", 6, 3),
    }


def test_without_profiles_there_is_the_ratio_of_dialogues_alone(tmp_path: Path) -> None:
    made = results(tmp_path, {"first": calls([0, 1, 3] * 4), "alone": calls([0, 0, 1] * 4)})
    plain = replace(made, design=replace(made.design, measures=(SUCCESS,)))
    piece = odds_of_failing(plain)
    assert {row["of"] for row in piece.rows} == {"dialogue"}
    assert "Odds of" not in piece.markdown.splitlines()[0]
    assert "The paper's" not in piece.markdown.splitlines()[0]


def test_the_papers_ratio_stands_beside_ours(tmp_path: Path) -> None:
    made = results(tmp_path, {"first": calls([0, 1, 2] * 4), "alone": calls([0, 0, 1] * 4)})
    pair, alone = made.design.runs
    rows = (replace(alone.rows[0], printed="9B SFT"), *alone.rows[1:])

    def printed(reference: str) -> dict[str, float | None]:
        first = replace(pair, rows=(pair.rows[0], replace(pair.rows[1], printed=reference)))
        design = replace(made.design, runs=(first, replace(alone, rows=rows)))
        found = odds_of_failing(replace(made, design=design)).rows
        return {row["of"]: row["printed"] for row in found}

    found = printed("9B IB-RL")
    assert found["dialogue"] == 3.35
    assert found["profile"] == pytest.approx((37.2 / 62.8) / (10.4 / 89.6))
    other = printed("9B unilateral vs pool of 3")
    assert other == {"dialogue": None, "profile": None}, "the paper's is against another"


def test_nothing_to_compare_is_told(tmp_path: Path) -> None:
    assert "nothing to compare" in odds_of_failing(results(tmp_path, {})).markdown
