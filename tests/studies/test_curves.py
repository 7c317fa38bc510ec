"""Figures 4 and 5: the course of rewards, and checkpoints, from runs with known answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ibrl_jax.studies import training
from ibrl_jax.studies.curves import (
    checkpoint_changes,
    checkpoint_curves,
    checkpoint_table,
    lines_of,
    printed_course,
)
from ibrl_jax.studies.declare import Row
from ibrl_jax.studies.pages import not_held_out
from ibrl_jax.studies.plan import plan
from ibrl_jax.studies.results import Results, collect
from ibrl_jax.studies.training import curve_table
from tests.studies.checkpoints import FIXED, MEASURED, PAIR, chance
from tests.studies.fakes import STUDY, evaluate, finish, planned

SEEDS = (0, 1, 2, 3)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    root = tmp_path_factory.mktemp("checkpoints")
    made = planned(root, SEEDS, MEASURED)
    for run in made.runs:
        finish(run, lambda k: (0.5, 0.1, 0.2, 0.9)[k])
    for one in made.evaluations:
        kinds = {FIXED: "development"}
        evaluate(one, chance, kinds=kinds, columns=(FIXED, "A"))
    study = replace(STUDY, designs={"mini": MEASURED})
    return collect(study, "mini", SEEDS, planned(root, SEEDS, MEASURED))


def test_a_line_is_a_policys_checkpoints_from_the_shared_start_on(found: Results) -> None:
    lines = {line.label: line for line in lines_of(found)}
    assert list(lines) == ["pair, agent0", "pair, agent1", "alone"]
    told = {k: row.label for k, row in lines["alone"].rows.items()}
    assert told == {0: "SFT start", 2: "alone agent0 1", 4: "alone agent0 2"}
    assert lines["alone"].at(0.5).label == "alone agent0 1"


def test_every_checkpoint_has_its_value_and_an_interval_over_scenarios(found: Results) -> None:
    rows = checkpoint_table(found).rows
    values = {
        (r["row"], r["column"], r["iteration"]): r for r in rows if r["measure"] == "agreement"
    }
    assert len(values) == 3 * 2 * 3
    assert values["alone", FIXED, 0]["value"] == pytest.approx(0.5)
    assert values["alone", FIXED, 2]["value"] == pytest.approx(0.91)
    last = values["alone", FIXED, 4]
    assert last["value"] == pytest.approx(0.71)
    assert last["by_seed"] == pytest.approx({0: 0.7, 1: 0.72, 2: 0.7, 3: 0.72})
    assert last["low"] < 0.71 < last["high"]
    assert (last["n"], last["clusters"]) == (200, 50)


def test_a_line_is_over_the_seeds_that_all_of_its_checkpoints_have(found: Results) -> None:
    """The start, measured with another run, is there at a seed at which the run alone is not."""
    cells = {
        (row, column): {s: cell for s, cell in by.items() if s < 3 or not row.startswith("alone")}
        for (row, column), by in found.cells.items()
    }
    piece = checkpoint_table(replace(found, cells=cells))
    n = {(r["row"], r["iteration"]): r["n"] for r in piece.rows if r["column"] == FIXED}
    assert n["alone", 0] == n["alone", 4] == 150
    assert n["pair, agent0", 0] == n["pair, agent0", 4] == 200
    (line, *_) = (x for x in piece.markdown.splitlines() if x.startswith("| alone |"))
    assert line.endswith("| 3/4 |")


def test_what_rises_and_then_declines_is_told_so(found: Results) -> None:
    words = {
        (r["row"], r["column"], r["over"]): r["word"]
        for r in checkpoint_changes(found).rows
        if r["measure"] == "agreement"
    }
    assert words["pair, agent0", FIXED, "first half"] == "rises"
    assert words["pair, agent0", FIXED, "second half"] == "falls"
    assert words["pair, agent0", FIXED, "all of it"] == "rises"
    assert words["pair, agent0", "A", "second half"] == "no clear change"


def test_checkpoints_are_drawn_a_panel_a_measure_and_column(found: Results) -> None:
    figure = checkpoint_curves(found).figure
    assert figure is not None
    assert len(figure.axes) == 2 * 2
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        "pair, agent0",
        "pair, agent1",
        "alone",
    ]


def test_a_counterpart_of_training_is_not_taken_for_a_held_out_one(found: Results) -> None:
    assert not_held_out(found) == []
    assert found.design.held_out == ("A",)
    assert found.design.shown == (FIXED, "A")


def test_the_course_of_a_reward_is_that_of_its_moving_average(
    found: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_LAST", 1)
    piece = curve_table(found)
    row = next(r for r in piece.data["courses"] if (r["row"], r["role"]) == ("pair", "agent1"))
    assert (row["least"], row["least_at"]) == (pytest.approx(0.376), 2)
    assert (row["best"], row["best_at"]) == (pytest.approx(0.5), 0)
    assert (row["first"], row["last"]) == (pytest.approx(0.5), pytest.approx(0.9))
    assert (row["seeds_that_decay"], row["seeds"]) == (0, 4)
    assert "| pair | agent1 | +0.500 | +0.376 at 2 | +0.500 at 0 |" in piece.markdown
    assert "0.63" in printed_course(found).markdown


def test_a_role_that_was_paid_late_has_its_first_rewards_too(found: Results) -> None:
    late = [{"roles": {"agent0": {"reward": None if k < 20 else float(k)}}} for k in range(40)]
    made = replace(found, metrics={"pair": {0: late}})
    (row,) = curve_table(made).data["courses"]
    assert row["first"] == pytest.approx(24.5)


def test_each_run_meets_its_own_start_and_the_seed_does_not_name_the_evaluation(
    tmp_path: Path,
) -> None:
    made = planned(tmp_path, (0, 1), MEASURED)
    for one, run in zip(made.evaluations, made.runs, strict=True):
        assert one.config.evaluation.counterparts[0] == f"{FIXED}=frozen:{run.folder.path}:start"
    pair = [one.folder.parent.name for one in made.evaluations if one.run is MEASURED.runs[0]]
    assert len(set(pair)) == 1


def test_a_share_of_training_is_a_whole_iteration(tmp_path: Path) -> None:
    rows = tuple(Row(label=f"c{n}", policy="agent0", at=n / 49) for n in range(1, 49))
    run = replace(PAIR, rows=rows, changes={"iterations": 49, "run.snapshots_every": 1})
    design = replace(MEASURED, runs=(run,))
    made = plan(design, (0,), [f"--config.run.root={tmp_path}"])
    found = [made.runs[0].policy(row).rpartition("@")[2] for row in rows]
    assert found == [str(n) for n in range(1, 49)]


def test_nothing_yet_is_still_told(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,), MEASURED)
    study = replace(STUDY, designs={"mini": MEASURED})
    empty = collect(study, "mini", (0,), made)
    for part in (curve_table, checkpoint_curves, checkpoint_table, checkpoint_changes):
        piece = part(empty)
        assert piece.figure is None
        assert piece.markdown
