"""What TensorBoard reads back is what was written, also after a run was killed and resumed."""

import numpy as np
import pytest

from ibrl_jax.reporting.board import Board, flatten_metrics, transcript_markdown
from tests.reporting.fake_run import HOSTILE, metrics_row, record


def read(directory):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(directory), {"scalars": 0, "tensors": 0}).Reload()


def points(directory, tag):
    return [(event.step, event.value) for event in read(directory).Scalars(tag)]


def test_scalars_and_texts_are_read_back(tmp_path):
    board = Board(tmp_path)
    board.scalars(1, {"agent0/reward": 0.25, "seconds/total": 2})
    board.text("dialogue", 1, "**agent0**: ünïcode")
    board.close()
    found = read(tmp_path)
    assert points(tmp_path, "agent0/reward") == [(1, 0.25)]
    assert points(tmp_path, "seconds/total") == [(1, 2.0)]
    (event,) = found.Tensors("dialogue")
    assert event.tensor_proto.string_val[0].decode() == "**agent0**: ünïcode"
    assert found.SummaryMetadata("dialogue").plugin_data.plugin_name == "text"


def test_scalars_are_on_disk_before_the_board_is_closed(tmp_path):
    board = Board(tmp_path)
    board.scalars(3, {"x": 1.0})
    assert points(tmp_path, "x") == [(3, 1.0)]
    board.close()


def test_resumed_run_overwrites_the_steps_after_its_checkpoint(tmp_path):
    killed = Board(tmp_path)
    for step in (1, 2, 3, 4):
        killed.scalars(step, {"x": step})
    resumed = Board(tmp_path, purge_step=3)
    assert points(tmp_path, "x") == [(1, 1.0), (2, 2.0)]
    resumed.scalars(3, {"x": 30})
    assert points(tmp_path, "x") == [(1, 1.0), (2, 2.0), (3, 30.0)]
    resumed.close()
    killed.close()


def test_every_number_of_a_metrics_row_has_a_tag_and_null_has_none():
    row = metrics_row(3, 10, np.random.default_rng(0))
    flat = flatten_metrics(row)
    assert flat["agent0/reward"] == row["roles"]["agent0"]["reward"]
    assert flat["agent1/updated"] == 0.0
    assert "agent1/kl" not in flat
    assert flat["dialogues/agreement"] == row["dialogues"]["agreement"]
    assert flat["end_reasons/deal"] == row["end_reasons"]["deal"]
    assert flat["matchups/agent0+agent1"] == 44
    assert flat["format_failures/agent0/bad_number"] == 1
    assert flat["pool/agent0/size"] == 0
    assert "pool/agent0/drawn" not in flat
    assert flat["seconds/rollout"] == row["seconds"]["rollout"]
    assert flat["run/compilations"] == 7
    assert flat["run/coverage"] == 1.0
    assert flat["throughput/tokens_per_second"] == pytest.approx(5200 / row["seconds"]["rollout"])
    assert "run/iteration" not in flat
    assert all(isinstance(value, float) for value in flat.values())


def test_transcript_holds_the_dialogue_and_no_private_observation():
    one = record(4, 1, 3, np.random.default_rng(0), skill=1.0)
    one["scenario"]["private"] = {"agent0": "MARKER-0", "agent1": "MARKER-1"}
    one["turns"][0]["text"] = "``` a fence ````"
    text = transcript_markdown(one)
    assert "MARKER" not in text
    assert "`````text\n``` a fence ````\n`````" in text
    assert "**agent1** (select)" in text
    assert "no reward (the judge timed out)" in text


def test_turn_with_markup_stays_inside_its_code_block():
    text = transcript_markdown(record(4, 0, 0, np.random.default_rng(0), skill=1.0))
    assert f"```text\n{HOSTILE}\n```" in text
    assert "agent1: reward 0.900, not trained on" in text
