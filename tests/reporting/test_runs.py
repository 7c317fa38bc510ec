"""A run folder is read whole, or the user is told in one sentence what is wrong with it."""

import json

import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.reporting.runs import ema, read_run, series
from tests.reporting.fake_run import build


def test_run_folder_is_read_in_order_of_iterations(tmp_path):
    run = read_run(build(tmp_path, iterations=6))
    assert [row["iteration"] for row in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert run.roles == ["agent0", "agent1"]
    assert run.name == "mini/seed0"
    assert sorted(run.dialogues) == [1, 6]
    assert run.notes == ()


def test_iteration_that_was_run_again_replaces_the_first_try(tmp_path):
    folder = build(tmp_path, iterations=3)
    again = json.loads((folder / "metrics.jsonl").read_text().splitlines()[1]) | {"coverage": 0.5}
    with (folder / "metrics.jsonl").open("a") as out:
        out.write(json.dumps(again) + "\n")
    assert [row["coverage"] for row in read_run(folder).metrics] == [1.0, 0.5, 1.0]


def test_last_line_that_was_cut_short_is_left_out_and_noted(tmp_path):
    folder = build(tmp_path, iterations=3)
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole[:-40])
    run = read_run(folder)
    assert len(run.metrics) == 2
    assert "cut short" in run.notes[0]


@pytest.mark.parametrize("damage", ["{half\n", "[1, 2]\n"])
def test_damaged_line_is_named_with_its_number(tmp_path, damage):
    folder = build(tmp_path, iterations=3)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text(lines[0] + damage + lines[2])
    with pytest.raises(UserError, match=r"Line 2 of .*metrics\.jsonl"):
        read_run(folder)


def test_missing_folder_missing_metrics_and_damaged_json_are_the_users_to_know(tmp_path):
    with pytest.raises(UserError, match="no run folder"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match="no metrics"):
        read_run(tmp_path)
    folder = build(tmp_path, iterations=2)
    (folder / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match=r"evaluation\.json is not JSON"):
        read_run(folder)


def test_what_is_missing_from_a_run_is_noted(tmp_path):
    folder = build(tmp_path, iterations=2)
    (folder / "evaluation.json").unlink()
    (folder / "config.json").unlink()
    for file in (folder / "dialogues").iterdir():
        file.unlink()
    run = read_run(folder)
    assert run.evaluation is None
    assert run.config is None
    assert [note.split(",")[0] for note in run.notes] == [
        "This run has not been evaluated yet",
        "No dialogues were kept for this run",
    ]


def test_series_is_nan_where_a_role_has_no_value():
    rows = [{"roles": {"a": {"kl": 0.5}}}, {"roles": {"a": {"kl": None}}}, {"roles": {}}]
    np.testing.assert_array_equal(series(rows, "roles", "a", "kl"), [0.5, np.nan, np.nan])


def test_ema_starts_at_the_first_value_and_carries_over_gaps():
    smooth = ema(np.array([np.nan, 1.0, 2.0, np.nan, 0.0]), 0.2)
    np.testing.assert_allclose(smooth, [np.nan, 1.0, 1.2, 1.2, 0.96])
