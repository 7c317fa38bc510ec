"""`make profile`: a table that adds up, a trace that opens, and a run that is left alone."""

from __future__ import annotations

import gzip
import json

import pytest
from rich.console import Console

from ibrl_jax.errors import UserError
from ibrl_jax.trainer.profiling import profile, profile_sentence, stage_table
from ibrl_jax.trainer.run import RunFolder
from tests.trainer.conftest import House


def test_the_last_iteration_is_traced_and_its_stages_add_up(house: House) -> None:
    config = house.config(name="profiled")
    with house.at_home():
        found = profile(config, 1, lambda note: None)
    assert found.row["iteration"] == 1
    events = json.loads(gzip.decompress(found.trace.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert {"rollout", "reference", "update"} <= names
    folder = RunFolder.of(config)
    assert not folder.begun
    assert found.folder == folder.path / "profile"
    assert str(found.trace) in profile_sentence(found)
    console = Console(width=80)
    with console.capture() as shown:
        console.print(stage_table(found))
    for word in ("rollout", "sampling", "update_agent1", "tokens/s"):
        assert word in shown.get()


def test_an_iteration_that_the_config_does_not_have_is_one_sentence(house: House) -> None:
    with pytest.raises(UserError, match=r"--iteration=3 is not below config.iterations = 3"):
        profile(house.config(iterations=3), 3, lambda note: None)
