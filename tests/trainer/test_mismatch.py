"""The mismatch of a run's policy: what is played, what is scored, and what is written."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax import mismatch as command
from ibrl_jax.contests.duel import Table, finished, set_table
from ibrl_jax.contests.mismatch import log_weights_of, measure, token_logps, told
from ibrl_jax.errors import UserError
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train
from tests.trainer.conftest import House


@pytest.fixture(scope="module")
def measured(house: House, quiet: Console) -> RunFolder:
    """Two iterations of IB-RL."""
    with house.at_home():
        return train(house.config(name="measured", iterations=2), quiet)


@pytest.fixture(scope="module")
def small(measured: RunFolder) -> ConfigDict:
    config = measured.config()
    config.evaluation.scenarios = 6
    config.evaluation.seeds = 2
    config.statistics.resamples = 100
    return config


@pytest.fixture(scope="module")
def names(measured: RunFolder) -> dict[str, str]:
    return {name: f"frozen:{measured.path}:{name}" for name in ("agent0", "agent1", "start")}


@pytest.fixture(scope="module")
def table(house: House, measured: RunFolder, small: ConfigDict, names: dict[str, str]) -> Table:
    with house.at_home():
        return set_table(small, names.values(), measured.path / "ledgers", lambda note: None)


@pytest.fixture(scope="module")
def played(table: Table, names: dict[str, str]):
    return table.play({"agent0": names["agent0"], "agent1": names["agent1"]}, ("x",), retries=0)


@pytest.fixture
def seated(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    """The command's table is the one that is compiled by now."""
    monkeypatch.setattr("ibrl_jax.contests.mismatch.set_table", lambda *args: table)


def test_equal_counterparts_have_weight_one_exactly(table: Table, names, played) -> None:
    views = [t.views["agent1"] for t in played]
    log_weights, gap = log_weights_of(table, views, names["agent1"], names["agent1"], "agent1")
    assert log_weights.shape == (12,)
    assert (log_weights == 0.0).all()
    assert gap < 1e-4  # the log-probs are of the distribution that was sampled from


def test_weights_are_of_every_sampled_token_and_of_no_other(table: Table, names, played) -> None:
    views = [t.views["agent1"] for t in played]
    log_weights, _ = log_weights_of(table, views, names["agent1"], names["start"], "agent1")
    assert np.isfinite(log_weights).all()
    assert (log_weights != 0.0).any()
    theirs = token_logps(table, table.locals[names["start"]].params(), views, 1.0)
    stopped = 0
    for view, weight, q in zip(views, log_weights, theirs, strict=True):
        sampled = np.flatnonzero(view.loss_mask)
        stopped += bool(np.isin(view.ids[sampled], table.cast.speech.chat.stop_ids).any())
        expected = sum(float(q[t]) - float(view.behaviour_logp[t]) for t in sampled)
        assert weight == pytest.approx(expected, abs=1e-3)
    assert stopped  # a stop token is sampled too


def test_a_log_prob_does_not_depend_on_who_shares_the_pass(table: Table, names, played) -> None:
    views = [t.views["agent1"] for t in played]
    params = table.locals[names["agent1"]].params()
    together = token_logps(table, params, views, 1.0)
    (alone,) = token_logps(table, params, views[5:6], 1.0)
    np.testing.assert_allclose(alone, together[5], atol=1e-5)


def test_the_temperature_is_that_of_the_seat(table: Table, names, played) -> None:
    config = table.config.copy_and_resolve_references()
    config.roles.agent1.temperature = 0.5
    cool = replace(table, config=config)
    views = [t.views["agent1"] for t in played]
    usual, _ = log_weights_of(table, views, names["agent1"], names["start"], "agent1")
    found, gap = log_weights_of(cool, views, names["agent1"], names["start"], "agent1")
    assert gap > 0.01  # these were not sampled so
    assert not np.allclose(usual, found)


def test_the_same_players_have_the_same_dialogues(table: Table, names, played) -> None:
    again = table.play({"agent0": names["agent0"], "agent1": names["agent1"]}, ("x",), retries=0)
    told_twice = [[turn.text for turn in t.turns] for t in again]
    assert told_twice == [[turn.text for turn in t.turns] for t in played]
    assert {t.first for t in played} == {"agent0", "agent1"}
    assert len(finished(played)) == 12


def test_the_partner_of_training_is_the_default(
    measured: RunFolder, small: ConfigDict, names, seated: None
) -> None:
    found = measure(measured, small, "agent0", lambda note: None, deploy=names["start"])
    assert found["train"] == names["agent1"]
    assert found["dialogues"]["train"] == {"planned": 12, "scored": 12}
    interval = found["direct"]["mismatch"]
    means = [found["direct"][side]["mean"] for side in ("train", "deploy")]
    assert interval["mean"] == pytest.approx(means[0] - means[1])
    decomposition = found["decomposition"]
    assert decomposition["rows"] == 12
    assert decomposition["forms"] == {}  # of twelve dialogues nothing is estimated
    assert "effective sample size" in decomposition["refused"][0]
    assert "nothing estimated from weights" in told(found)
    json.dumps(found, allow_nan=False)


def test_no_mismatch_with_the_partner_itself(
    measured: RunFolder, small: ConfigDict, names, seated: None
) -> None:
    found = measure(measured, small, "agent0", lambda note: None, deploy=names["agent1"])
    assert found["direct"]["mismatch"]["mean"] == 0.0
    assert found["decomposition"]["mean_weight"] == 1.0
    assert found["decomposition"]["effective"] == pytest.approx(12.0)


def test_a_scripted_counterpart_gives_the_direct_estimate_alone(
    measured: RunFolder, small: ConfigDict, seated: None
) -> None:
    found = measure(measured, small, "agent1", lambda note: None, deploy="scripted:fair")
    assert found["direct"]["mismatch"]["mean"] is not None
    assert found["decomposition"] is None
    assert "scripted:fair" in told(found).splitlines()[-1]


@pytest.mark.parametrize(
    "role, deploy, what",
    [
        ("agent2", "scripted:fair", "the roles are agent0, agent1"),
        ("agent0", "scripted:nobody", "the scripted families that can are conceder"),
        ("agent0", "frozen:nowhere:agent0", "nowhere"),
    ],
)
def test_mistakes_are_one_sentence(
    measured: RunFolder, small: ConfigDict, role: str, deploy: str, what: str, house: House
) -> None:
    with house.at_home(), pytest.raises(UserError, match=what):
        measure(measured, small, role, lambda note: None, deploy=deploy)


def test_the_command_prints_and_writes(measured: RunFolder, seated: None, names, tmp_path) -> None:
    out = io.StringIO()
    file = tmp_path / "found.json"
    options = (f"--run={measured.path}", "--role=agent0", f"--deploy={names['start']}")
    command.main([*options, f"--to={file}"], Console(file=out, width=200))
    assert "mismatch, direct" in out.getvalue()
    assert json.loads(file.read_text())["deploy"] == names["start"]


def test_counterparts_have_files_of_their_own(
    measured: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibrl_jax.contests.mismatch.told", lambda found: "")
    monkeypatch.setattr(
        "ibrl_jax.contests.mismatch.measure",
        lambda *args, deploy, **names: {"train": "x", "deploy": deploy, "direct": {}},
    )
    for deploy in ("scripted:fair", "frozen:runs/a:agent1", "scripted:fair"):
        options = (f"--run={measured.path}", "--role=agent0", f"--deploy={deploy}")
        command.main(options, Console(file=io.StringIO()))
    found = sorted(file.name for file in (measured.path / "mismatch").glob("*.json"))
    assert found == ["agent0-fair.json", "agent0-runs_a:agent1.json"]


def test_a_place_that_cannot_take_the_result_is_told_before_anything_is_played(
    measured: RunFolder, names, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ibrl_jax.contests.mismatch.measure", lambda *a, **k: pytest.fail("played"))
    options = (f"--run={measured.path}", "--role=agent0", f"--deploy={names['start']}")
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for place in (other, tmp_path, measured.path / "config.json"):
        with pytest.raises(UserError, match=f"{place} is there and is no mismatch; name another"):
            command.main([*options, f"--to={place}"], Console(file=io.StringIO()))
    with pytest.raises(OSError, match="exists|directory"):
        command.main([*options, f"--to={other / 'found.json'}"], Console(file=io.StringIO()))
    assert other.read_text() == "mine"


def test_a_result_that_cannot_be_written_is_printed(
    measured: RunFolder, small: ConfigDict, names, seated: None, tmp_path, monkeypatch
) -> None:
    def full(file, values) -> None:
        raise OSError(28, "No space left on device", str(file))

    monkeypatch.setattr("ibrl_jax.trainer.run.write_json", full)
    monkeypatch.setattr(RunFolder, "config", lambda self: small.copy_and_resolve_references())
    out = io.StringIO()
    options = (f"--run={measured.path}", "--role=agent1", "--deploy=scripted:fair")
    with pytest.raises(OSError, match="No space left"):
        command.main([*options, f"--to={tmp_path / 'm.json'}"], Console(file=out, width=200))
    assert "mismatch, direct" in out.getvalue()
    assert "written to" not in out.getvalue()
