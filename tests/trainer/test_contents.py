"""A run goes on only with the files that it began with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console
from safetensors.numpy import save_file

from ibrl_jax.config import load
from ibrl_jax.errors import UserError
from ibrl_jax.trainer.contents import check_contents, flat, keep_contents
from ibrl_jax.trainer.run import RunFolder, read_json
from ibrl_jax.trainer.session import train

SMOKE = Path(__file__).parents[2] / "configs" / "dond" / "smoke.py"


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    file = tmp_path / "calls.jsonl"
    file.write_text("one")
    return file


def begun(tmp_path: Path, *options: str) -> tuple[RunFolder, ConfigDict]:
    """A run that has an iteration behind it."""
    config = load(str(SMOKE), [f"--config.{option}" for option in options])
    folder = RunFolder(tmp_path / "run")
    keep_contents(folder, config)
    folder.metrics.write_text("{}\n")
    return folder, config


def test_a_file_that_was_changed_stops_a_run_that_has_begun(tmp_path: Path, calls: Path) -> None:
    folder, config = begun(tmp_path, f"sft.transcripts={calls}")
    check_contents(folder, config)
    calls.write_text("two")
    with pytest.raises(UserError) as caught:
        check_contents(folder, config)
    assert str(caught.value) == (
        f"what lies in config.sft.transcripts = '{calls}' has changed since the run in "
        f"{folder.path} began; restore it, or choose another --config.name or --config.seed"
    )
    calls.write_text("one")
    check_contents(folder, config)
    calls.unlink()
    check_contents(folder, config)  # its start was made of it, and is kept


def test_so_does_a_file_of_a_folder(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts"
    prompts.mkdir()
    (prompts / "rules.txt").write_text("one")
    folder, config = begun(tmp_path, f"dond.prompt={prompts}")
    check_contents(folder, config)
    (prompts / "rules.txt").write_text("two")
    with pytest.raises(UserError, match=r"what lies in config\.dond\.prompt = .*has changed"):
        check_contents(folder, config)


def test_so_do_the_weights_of_a_counterpart(tmp_path: Path) -> None:
    policy = tmp_path / "other" / "policies" / "agent1"
    policy.mkdir(parents=True)
    for file in (policy.parent.parent / "config.json", policy / "policy.json"):
        file.write_text("{}")
    weights = policy / "params.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, weights)
    name = f"frozen:{tmp_path}/other:agent1"
    folder, config = begun(tmp_path, "roles.agent1.train=False", f"roles.agent1.counterpart={name}")
    check_contents(folder, config)
    save_file({"w": np.ones(3, np.float32)}, weights)
    with pytest.raises(UserError, match=f"what lies in the counterpart {name} has changed"):
        check_contents(folder, config)


def test_a_run_from_before_or_that_has_not_begun_is_not_asked(tmp_path: Path, calls: Path) -> None:
    folder, config = begun(tmp_path, f"sft.transcripts={calls}")
    calls.write_text("two")
    folder.metrics.unlink()
    check_contents(folder, config)
    folder.metrics.write_text("{}\n")
    (folder.path / "contents.json").unlink()
    check_contents(folder, config)


def test_training_asks_before_it_does_anything_else(tmp_path: Path, calls: Path) -> None:
    options = [f"--config.sft.transcripts={calls}", f"--config.run.root={tmp_path}"]
    config = load(str(SMOKE), options)
    folder = RunFolder.of(config)
    folder.claim(config)
    keep_contents(folder, config)
    folder.metrics.write_text("{}\n")
    calls.write_text("two")
    with pytest.raises(UserError, match="has changed since the run in"):
        train(config, Console(quiet=True))
    assert folder.metrics.read_text() == "{}\n"


def test_a_run_writes_down_what_it_begins_with(smoke_run: RunFolder) -> None:
    assert read_json(smoke_run.path / "contents.json") == {}  # its config names no file


def test_settings_have_their_full_keys() -> None:
    assert flat({"a": 1, "b": {"c": (2,), "d": {}}}) == {"a": 1, "b.c": (2,)}
