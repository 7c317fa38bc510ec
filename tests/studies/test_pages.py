"""Tables, verdict and files of a study, from outcomes that were made up and have known answers."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from ibrl_jax.studies.figures import by_iteration, mean_over_seeds
from ibrl_jax.studies.pages import page, write_study
from ibrl_jax.studies.results import Results, collect
from ibrl_jax.studies.tables import result_table
from ibrl_jax.studies.verdict import verdict
from tests.studies.fakes import STUDY, Chance, evaluate, finish, planned

SEEDS = (0, 1, 2, 3)


def common(policy: str, column: str, seed: int) -> float:
    """What all have in common: .90 or .92, by the seed."""
    if policy == "agent0 at 0.5":
        return 0.6
    return 0.9 + 0.02 * (seed % 2)


def chances(run: str) -> Chance:
    """`alone` falls outside its own system by 40 to 48 points; the pair stays where it is."""

    def chance(policy: str, column: str, seed: int) -> float:
        value = common(policy, column, seed)
        if run == "alone" and policy == "agent0" and column != "in-system":
            return value - 0.4 - 0.04 * (seed % 3)
        return value

    return chance


def results(root: Path, seeds: tuple[int, ...] = SEEDS) -> Results:
    made = planned(root, seeds)
    for run in made.runs:
        finish(run, lambda k: 0.5 - k / 10 if k < 3 else 0.0)
    for one in made.evaluations:
        evaluate(one, chances(one.run.label if one.run else "references"))
    return collect(STUDY, "mini", seeds, planned(root, seeds))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return results(tmp_path_factory.mktemp("study"))


def test_a_cell_pools_the_dialogues_of_all_seeds(found: Results) -> None:
    piece = result_table(found)
    cell = piece.data["alone"]["self-play"]["agreement"]
    assert cell["value"] == pytest.approx(np.mean([0.5, 0.48, 0.42, 0.52]))
    assert (cell["n"], cell["clusters"], cell["seeds"]) == (200, 50, 4)
    assert cell["low"] < cell["value"] < cell["high"]
    assert piece.data["alone"]["self-play"]["own_utility"]["value"] == pytest.approx(0.6)
    assert "| alone | 48.0 / 0.600 / 0.288 |" in piece.markdown
    pooled = piece.data["pair, all roles"]["A"]["agreement"]
    assert pooled["n"] == 400


def test_what_is_left_of_an_evaluation_is_told_and_what_there_is_laid_out(tmp_path: Path) -> None:
    made = results(tmp_path, (0, 1))
    file = made.plan.evaluations[0].folder / "evaluation.json"
    left = {"dialogues": 300, "broken_off": 2, "calls": 298, "unaudited": 8}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"unfinished": left}))
    again = collect(STUDY, "mini", (0, 1), made.plan)
    assert again.missing == (
        "of the evaluation of pair at seed 0, 2 of 300 dialogues were broken off; the same "
        "command goes on with these",
        "of the evaluation of pair at seed 0, 290 of 298 calls audited in full; the same "
        "command goes on with these",
    )
    assert set(again.cells["first", "A"]) == {0, 1}


def test_the_papers_cell_stands_beside_ours_as_a_share(found: Results) -> None:
    piece = result_table(found)
    assert piece.data["first"]["A"]["agreement"]["printed"] == pytest.approx(0.9)
    assert piece.data["first"]["self-play"]["agreement"]["printed"] is None


def test_the_verdict_is_what_the_figures_say(found: Results) -> None:
    words = {
        (row["measure"], row["row"], row["column"], row["question"]): row["word"]
        for row in verdict(found).rows
    }
    own = "less its own in-system play"
    assert words["agreement", "alone", "self-play", own] == "falls"
    assert words["agreement", "alone", "A", own] == "falls"
    assert words["agreement", "pair", "self-play", own] == "no clear change"
    lead = "of pair less that of each other run"
    assert words["agreement", "alone", "self-play", lead] == "ahead"
    assert words["agreement", "alone", "in-system", lead] == "no clear difference"
    assert words["agreement", "alone", "self-play", "less SFT start in the same column"] == "falls"
    milder = "of pair: its change from in-system less that of each other run"
    assert words["agreement", "alone", "A", milder] == "falls less"
    text = verdict(found).markdown
    assert "- Agreement of alone against its in-system play: falls (A, self-play)." in text


def test_one_seed_is_not_judged(tmp_path: Path) -> None:
    piece = verdict(results(tmp_path, (0,)))
    assert {row["word"] for row in piece.rows} == {"not judged"}


def test_the_same_scenario_is_one_cluster_at_all_seeds_and_holm_is_by_column(
    found: Results,
) -> None:
    rows = STUDY.parts["Comparisons"](found).rows
    main = [row for row in rows if row["reference"] == "pair"]
    assert {row["column"] for row in main} == {"A", "in-system", "self-play"}
    alone = next(r for r in main if (r["column"], r["policy"]) == ("A", "alone"))
    assert (alone["clusters"], alone["reference_clusters"]) == (50, 50)
    assert (alone["rows"], alone["reference_rows"]) == (200, 400)
    assert alone["odds_ratio"] == pytest.approx((0.52 / 0.48) / (0.09 / 0.91), rel=0.01)
    assert alone["family"] <= 4, "SFT start, alone, alone halfway, fair"
    assert {row["reference"] for row in rows} == {"pair", "first", "second"}


def test_what_training_had_is_told_up_to_where_a_policy_was_taken(found: Results) -> None:
    rows = STUDY.parts["Training"](found).rows
    halfway = next(row for row in rows if row["row"] == "alone halfway")
    assert (halfway["iterations"], halfway["dialogues"], halfway["updates"]) == (2, 16, 2)
    assert halfway["seconds"] == pytest.approx(1.0)


def test_everything_is_written_and_equal_data_give_equal_files(
    found: Results, tmp_path: Path
) -> None:
    write_study(found, tmp_path / "one", "make it")
    write_study(found, tmp_path / "two", "make it")
    for end in ("md", "csv", "svg", "png"):
        first, second = (tmp_path / where / f"tiny.{end}" for where in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()
        assert first.stat().st_size > 100
    said = json.loads((tmp_path / "one" / "tiny.json").read_text())
    assert said["coverage"]["evaluations"] == said["coverage"]["evaluations_planned"] == 12
    assert said["runs"]["pair"]["config"]["iterations"] == 4
    assert set(said["runs"]["pair"]["seeds"]) == {"0", "1", "2", "3"}
    assert said["evaluations"][0]["leakage"] == {"seen": 1}
    assert {"jax", "numpy", "python"} <= set(said["versions"])
    rows = list(csv.DictReader((tmp_path / "one" / "tiny.csv").read_text().splitlines()))
    assert {row["part"] for row in rows} >= {"Results", "Verdict", "Seeds", "Comparisons"}


def test_what_is_missing_is_told_and_the_rest_is_laid_out(tmp_path: Path) -> None:
    made = planned(tmp_path, (0, 1))
    for run in made.runs[:2]:
        finish(run)
    for one in made.evaluations[:2]:
        evaluate(one, chances(one.run.label if one.run else ""))
    metrics = made.runs[1].folder.metrics
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:3]))
    part = collect(STUDY, "mini", (0, 1), made, ["pair seed1: failed; its log is there"])
    write_study(part, tmp_path / "out", "make it")
    text = (tmp_path / "out" / "tiny.md").read_text()
    assert "- alone at seed 0 has 3 of 4 iterations, and its curves end there" in text
    assert "Coverage: 2 of 6 evaluations" in text
    assert "- pair seed1: failed; its log is there" in text
    assert "- the evaluation of alone at seed 1 is not there" in text
    assert "| fair | – | – | – | 0/0 | 0/2 |" in text


def test_nothing_at_all_is_still_a_page(tmp_path: Path) -> None:
    write_study(collect(STUDY, "mini", (0,), planned(tmp_path, (0,))), tmp_path / "out", "make it")
    text = (tmp_path / "out" / "tiny.md").read_text()
    assert "Nothing can be said" in text
    assert "There is nothing to compare yet." in text


def test_a_column_that_training_has_met_is_not_passed_off_as_held_out(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,))
    evaluate(made.evaluations[0], lambda *_: 0.5, kinds={"A": "development"})
    write_study(collect(STUDY, "mini", (0,), made), tmp_path / "out", "make it")
    text = (tmp_path / "out" / "tiny.md").read_text()
    assert "A is no held-out column for first, but development" in text
    assert "| Policy | A (development) |" in text


def test_aborted_dialogues_count_in_the_coverage_and_nowhere_else(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,))
    evaluate(made.evaluations[0], lambda *_: 1.0, scenarios=10)
    file = made.evaluations[0].folder / "outcomes.csv"
    lines = file.read_text().splitlines()
    lines[1] = lines[1].replace(",deal,0,0,1.0,0.6,0.6", ",aborted,1,0,,,")
    file.write_text("\n".join(lines) + "\n")
    found = collect(STUDY, "mini", (0,), made)
    cell = found.cell(("SFT start",), "A")
    assert cell is not None
    assert (cell.n, cell.planned, cell.value("agreement")) == (9, 10, 1.0)
    text = STUDY.parts["Results"](found).markdown
    worst = text[text.index("| Policy | Column | Missing") :]
    assert "| SFT start | A | 1 | 90.0 to 100.0 | 0.540 to 0.640 |" in worst
    assert "| first | A |" not in worst


def test_what_training_and_evaluation_share_is_told_once(tmp_path: Path) -> None:
    made = planned(tmp_path, (0, 1))
    overlap = {"kind": "prompt", "what": "the rules of agent0", "column": "", "trained": "runs/a"}
    for one in made.evaluations:
        evaluate(one, lambda *_: 0.5, scenarios=10)
        file = one.folder / "evaluation.json"
        other = overlap | {"kind": "family", "what": "mirror", "column": "A"}
        kept = json.loads(file.read_text()) | {"leakage": {"overlaps": [overlap, other]}}
        file.write_text(json.dumps(kept))
    text = page(collect(STUDY, "mini", (0, 1), made), {}, "make it")
    assert text.count("training and evaluation share") == 2
    assert "- training and evaluation share, by prompt: the rules of agent0\n" in text
    assert "- training and evaluation share, by family: mirror, in A\n" in text


def test_an_evaluation_whose_rows_were_cut_is_left_out_and_told(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,))
    one = made.evaluations[0]
    evaluate(one, lambda *_: 1.0, scenarios=10)
    lines = (one.folder / "outcomes.csv").read_text().splitlines(keepends=True)
    file = one.folder / "evaluation.json"
    counted = {"coverage": {"planned": len(lines) - 1, "scored": len(lines) - 1}}
    file.write_text(json.dumps(json.loads(file.read_text()) | counted))
    whole = collect(STUDY, "mini", (0,), made)
    assert whole.cell(("SFT start",), "A") is not None
    (one.folder / "outcomes.csv").write_text("".join(lines[:-3]))
    cut = collect(STUDY, "mini", (0,), made)
    assert cut.cell(("SFT start",), "A") is None
    (said,) = set(cut.missing) - set(whole.missing)
    assert f"has {len(lines) - 4} of its {len(lines) - 1} dialogues; remove" in said


@pytest.mark.parametrize(
    "name, content",
    [
        ("evaluation.json", '{"rows": '),
        ("outcomes.csv", "policy,column"),
        ("outcomes.csv", None),
    ],
)
def test_a_damaged_evaluation_is_left_out_and_told(
    tmp_path: Path, name: str, content: str | None
) -> None:
    made = results(tmp_path, (0, 1))
    assert not made.missing
    file = made.plan.evaluations[0].folder / name
    file.unlink() if content is None else file.write_text(content)
    again = collect(STUDY, "mini", (0, 1), made.plan)
    (said,) = again.missing
    assert said.startswith("the evaluation of pair at seed 0 is damaged and left out (")
    assert str(file) in said
    assert "the same command writes both again" in said
    assert set(again.cells["first", "A"]) == {1}
    write_study(again, tmp_path / "out", "make it")
    assert f"- {said}\n" in (tmp_path / "out" / "tiny.md").read_text()


def test_a_damaged_row_of_metrics_leaves_its_curves_out(tmp_path: Path) -> None:
    made = results(tmp_path, (0, 1))
    with made.plan.runs[0].folder.metrics.open("a") as out:
        out.write("no JSON\n")
    again = collect(STUDY, "mini", (0, 1), made.plan)
    (said,) = again.missing
    assert said.startswith("the curves of pair at seed 0 are left out: Line 5 of ")
    assert set(again.metrics["pair"]) == {1}
    write_study(again, tmp_path / "out", "make it")


def test_an_iteration_counts_once_and_curves_end_at_a_gap(tmp_path: Path) -> None:
    made = results(tmp_path, (0, 1))
    file = made.plan.runs[0].folder.metrics
    lines = file.read_text().splitlines(keepends=True)
    later = json.dumps(json.loads(lines[1]) | {"later": True}) + "\n"
    file.write_text("".join([*lines[:2], later, *lines[2:]]))
    again = collect(STUDY, "mini", (0, 1), made.plan)
    assert [row["iteration"] for row in again.metrics["pair"][0]] == [0, 1, 2, 3]
    assert again.metrics["pair"][0][1]["later"]
    assert not again.missing
    file.write_text("".join([*lines[:2], *lines[3:]]))
    cut = collect(STUDY, "mini", (0, 1), made.plan)
    assert len(cut.metrics["pair"][0]) == 2
    assert cut.missing == ("pair at seed 0 has 2 of 4 iterations, and its curves end there",)


def test_where_nothing_is_missing_no_worst_case_is_told(found: Results) -> None:
    assert "Missing" not in STUDY.parts["Results"](found).markdown


def test_curves_are_averaged_over_the_seeds_that_are_there() -> None:
    seeds = {
        0: [{"iteration": k, "roles": {"a": {"reward": float(k)}}} for k in range(3)],
        1: [{"iteration": k, "roles": {"a": {"reward": 4.0}}} for k in range(2)],
    }
    values = by_iteration(seeds, "a")
    assert values.shape == (2, 3)
    assert mean_over_seeds(values).tolist() == [2.0, 2.5, 2.0]


def test_a_reward_that_decays_is_counted(found: Results) -> None:
    text = STUDY.parts["Curves"](found).markdown
    assert "0 of 4" in text  # four iterations: first and last ten are the same
