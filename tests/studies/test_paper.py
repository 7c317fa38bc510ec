"""What follows from the paper's printed figures, and that what does not is caught."""

from __future__ import annotations

import io
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from rich.console import Console

from ibrl_jax import paper_check
from ibrl_jax.config import default_config
from ibrl_jax.domains.dond.scenarios import enumerate_ordered
from ibrl_jax.domains.dond.scoring import analyse_scenario
from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.studies import paper
from ibrl_jax.studies.paper import DealCell
from ibrl_jax.studies.reproduced import (
    checks,
    conversations,
    doubts,
    first_success_ratio,
    points_of_both,
)

SETTINGS = StatisticsSettings(**dict(default_config().statistics))
SUCCESSES = {
    "4B SFT": (24, "18.23"),
    "4B unilateral vs SFT user": (226, "1.67"),
    "4B unilateral vs DS V4 Pro": (136, "2.97"),
    "9B SFT": (449, "3.35"),
    "9B unilateral vs SFT user": (644, "1.90"),
    "9B unilateral vs DS V4 Pro": (793, "1.28"),
    "9B unilateral vs pool of 3": (473, "3.11"),
    "frontier Qwen-3.5-122B": (541, "2.54"),
    "frontier GLM-5.2": (810, "1.22"),
    "frontier DS V4 Pro": (753, "1.42"),
}


@pytest.fixture(scope="module")
def found():
    return checks(SETTINGS)


@pytest.fixture(scope="module")
def first_bests() -> list[int]:
    scenarios = enumerate_ordered(default_config().dond.max_count)
    return [analyse_scenario(scenario).first_best for scenario in scenarios]


def test_all_ten_odds_ratios_of_table_1_come_out_to_two_decimals(found) -> None:
    rows = [check for check in found if check.table == "Table 1"]
    assert {check.row: check.found for check in rows} == {k: r for k, (_, r) in SUCCESSES.items()}
    assert all(check.agrees for check in rows)
    for check in rows:
        assert check.note.startswith(f"{SUCCESSES[check.row][0]} and ")


def test_a_row_is_1500_conversations_whose_profiles_give_its_percentages_again() -> None:
    for row in paper.TABLE1.values():
        arm = conversations(row)
        assert arm.fails.size == 1500
        wins = np.bincount(arm.clusters, 1 - arm.fails)
        assert wins.size == 500
        assert tuple(round(100 * float((wins >= n).mean()), 1) for n in (1, 2, 3)) == row.success


def test_the_ratio_of_the_caption_is_another_one() -> None:
    row, reference = paper.TABLE1["9B SFT"], paper.TABLE1["9B IB-RL"]
    assert first_success_ratio(row, reference) == pytest.approx((37.2 / 62.8) / (10.4 / 89.6))


def test_everything_printed_comes_out_again(found) -> None:
    assert {check.table for check in found} == {"Table 1", "Table 4", "Table 7", "Table 13"}
    assert [check for check in found if not check.agrees] == []
    kappas = {c.row: c.note for c in found if c.table == "Table 13" and c.what == "kappa"}
    assert kappas == {
        "annotators A and B": "0.7592",
        "record and A": "0.8393",
        "record and B": "0.8390",
    }


def test_what_cannot_be_right_is_found_and_nothing_else(first_bests) -> None:
    wrong = {doubt.where: doubt for doubt in doubts(first_bests, "these")}
    assert set(wrong) == {
        "4B IB-RL agent 1, self-play",
        "frontier GLM-5.2, self-play",
        "frontier DS V4 Pro, self-play",
        "4B IB-RL agent 0, in-system",
        "9B IB-RL agent 0, in-system",
    }
    assert wrong["frontier DS V4 Pro, self-play"].sure
    assert "0.910" in wrong["frontier DS V4 Pro, self-play"].why
    assert not wrong["frontier GLM-5.2, self-play"].sure
    assert "0.546" in wrong["9B IB-RL agent 0, in-system"].why


def test_the_bounds_hold_for_any_dialogues(first_bests) -> None:
    """Made-up agreements of any kind stay within what their own cell allows."""
    rng = np.random.default_rng(0)
    best = np.sort(np.array(first_bests, float))
    for share in (0.2, 0.6, 1.0):
        for _ in range(20):
            agreed = rng.choice(best, size=int(share * best.size), replace=False)
            joint = rng.beta(rng.uniform(0.5, 4), 1, size=agreed.size)
            cell = DealCell(
                agreement=100 * agreed.size / best.size,
                own_utility=float((joint * agreed).mean()) / 20,
                joint_value=float(joint.mean()),
            )
            low, high = points_of_both(cell, best)
            assert low - 1e-9 <= 20 * cell.own_utility <= high + 1e-9


def test_the_bounds_are_met_at_their_ends() -> None:
    best = np.array([10.0, 12.0, 14.0, 16.0])
    cell = DealCell(agreement=50.0, own_utility=0.0, joint_value=1.0)
    assert points_of_both(cell, best) == pytest.approx((11.0, 15.0))
    half = DealCell(agreement=100.0, own_utility=0.0, joint_value=0.5)
    assert points_of_both(half, best) == pytest.approx((5.5, 7.5))


def run(*argv: str) -> str:
    out = io.StringIO()
    paper_check.main(argv, Console(file=out, width=200))
    return out.getvalue()


def test_the_command_prints_a_table_and_writes_it(tmp_path) -> None:
    text = run(f"--to={tmp_path / 'new' / 'check.md'}")
    assert "| Table 1 | 4B SFT |" in text
    assert "37 of 37 printed figures come out again" in text
    assert (tmp_path / "new" / "check.md").read_text().strip() == text.strip()


def test_a_figure_that_does_not_come_out_ends_in_exit_code_1(monkeypatch) -> None:
    rows = dict(paper.TABLE4)
    rows["GLM-5.2"] = replace(rows["GLM-5.2"], mean_return=0.35)
    monkeypatch.setattr(paper, "TABLE4", MappingProxyType(rows))
    with pytest.raises(SystemExit) as end:
        run()
    assert end.value.code == 1


def test_the_original_rows_say_the_same(shared_dir) -> None:
    text = run(f"--data={shared_dir / 'data' / 'dond'}")
    assert "original test rows" in text
    assert "| frontier DS V4 Pro, self-play |" in text
    assert "| frontier GLM-5.2, self-play |" in text
