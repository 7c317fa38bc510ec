"""Where an endpoint speaks, a dialogue is kept as it ends: no stop costs one that has ended."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.endpoints.errors import EndpointError, EndpointStop, Kind
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches, store
from ibrl_jax.evaluation.cells import Contestant
from ibrl_jax.evaluation.columns import columns_of
from ibrl_jax.evaluation.matches import Games
from ibrl_jax.evaluation.store import Store
from tests.evaluation.held import say_nothing
from tests.evaluation.test_matches import settings

ROW = Contestant(label="row", name="scripted:conceder", role=None, version=0, partners=())
FILE, PART = "row-shaky.jsonl", "row-shaky.jsonl.part"


@pytest.fixture(scope="module")
def cast() -> Cast:
    speech: Any = SimpleNamespace(tokenizer=None)
    return Cast(
        domain=build_domain(settings()), speech=speech, engines={}, endpoints={}, max_new=32
    )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 dialogues are two whole blocks and a part."""
    for module in (store, matches):
        monkeypatch.setattr(module, "BLOCK", 10)


class Walks:
    """Walks away when it is asked; after `asked` calls it fails in `how`."""

    settings = SimpleNamespace(name="shaky")

    def __init__(self, asked: int = 1000, how: Exception | None = None) -> None:
        self.left, self.how, self.asked = asked, how, 0

    async def chat(self, messages: Any, *, sample_index: int) -> Any:
        await asyncio.sleep(0)
        self.asked += 1
        if self.asked > self.left:
            assert self.how is not None
            raise self.how
        return SimpleNamespace(text="<disagree>", finish="stop")


BUDGET = EndpointStop(Kind.BUDGET, "endpoint 'shaky': one more call could exceed the budget")
TIMEOUT = EndpointError(Kind.TIMEOUT, "shaky", "no answer", 1)


def config_of(least: float = 0.9) -> ConfigDict:
    config = settings(["api:shaky"])
    config.rewards.min_coverage = least
    config.rollout.draws, config.rollout.group = 1, 3  # three dialogues at a time
    return config


def play(cast: Cast, speaker: Walks, folder: Path, least: float = 0.9) -> tuple[int, str]:
    """How many dialogues were played to their end, and why it stopped, if it did."""
    config, endpoints = config_of(least), {"shaky": speaker}
    seated = replace(cast, endpoints=endpoints)  # type: ignore[arg-type]
    games = Games(config, seated, {}, Store(folder, say_nothing), say_nothing)
    try:
        games.cell(ROW, columns_of(config)[0])
    except UserError as error:
        return games.anew, str(error)
    return games.anew, ""


def kept(file: Path) -> dict[int, dict[str, Any]]:
    """The lines of a file by the index of their dialogue."""
    if not file.is_file():
        return {}
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["index"]: row for row in rows}


def broken_off(folder: Path) -> list[int]:
    return [i for i, row in kept(folder / FILE).items() if "failed" in row["rewards"]["agent0"]]


def test_a_budget_that_is_spent_costs_no_dialogue_that_has_ended(
    cast: Cast, tmp_path: Path
) -> None:
    _, why = play(cast, Walks(14, BUDGET), tmp_path)
    assert "could exceed the budget" in why
    before, early = kept(tmp_path / FILE), kept(tmp_path / PART)
    assert list(before) == list(range(10))
    assert 0 < len(early) < 10
    assert set(early) < set(range(10, 20))
    assert play(cast, Walks(), tmp_path) == (24 - len(before) - len(early), "")
    after = kept(tmp_path / FILE)
    assert list(after) == list(range(24))
    assert {i: after[i] for i in (*before, *early)} == before | early
    assert not (tmp_path / PART).exists()
    assert play(cast, Walks(), tmp_path) == (0, "")


def test_the_file_is_the_same_as_that_of_an_evaluation_that_nothing_stopped(
    cast: Cast, tmp_path: Path
) -> None:
    play(cast, Walks(), tmp_path / "whole")
    for stop in (5, 14, 22):
        play(cast, Walks(stop, BUDGET), tmp_path / "stopped")
    play(cast, Walks(), tmp_path / "stopped")
    files = [tmp_path / name / FILE for name in ("whole", "stopped")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_ended_of_a_block_that_is_refused_is_kept_and_what_broke_off_is_not(
    cast: Cast, tmp_path: Path
) -> None:
    _, why = play(cast, Walks(4, TIMEOUT), tmp_path)
    assert "only 40% of the dialogues" in why
    assert not kept(tmp_path / FILE)
    early = kept(tmp_path / PART)
    assert len(early) == 4
    assert play(cast, Walks(), tmp_path) == (20, "")
    assert {i: kept(tmp_path / FILE)[i] for i in early} == early


def test_what_came_in_place_of_dialogues_that_broke_off_is_kept_too(
    cast: Cast, tmp_path: Path
) -> None:
    play(cast, Walks(12, TIMEOUT), tmp_path, least=0.0)
    broken = broken_off(tmp_path)
    assert len(broken) == 12
    play(cast, Walks(3, BUDGET), tmp_path, least=0.0)
    early = kept(tmp_path / PART)
    assert set(early) < set(broken)
    assert len(early) == 3
    assert play(cast, Walks(), tmp_path, least=0.0) == (9, "")
    assert {i: kept(tmp_path / FILE)[i] for i in early} == early
    assert not broken_off(tmp_path)


def test_a_line_that_was_cut_short_is_played_again(cast: Cast, tmp_path: Path) -> None:
    play(cast, Walks(5, BUDGET), tmp_path)
    early = kept(tmp_path / PART)
    text = (tmp_path / PART).read_text()
    (tmp_path / PART).write_text(text[:-30])
    assert play(cast, Walks(), tmp_path) == (24 - (len(early) - 1), "")
    assert list(kept(tmp_path / FILE)) == list(range(24))


def test_what_ended_under_another_key_is_not_taken(cast: Cast, tmp_path: Path) -> None:
    play(cast, Walks(5, BUDGET), tmp_path)
    rows = [json.loads(line) for line in (tmp_path / PART).read_text().splitlines()]
    (tmp_path / PART).write_text("".join(json.dumps(r | {"key": "other"}) + "\n" for r in rows))
    assert play(cast, Walks(), tmp_path) == (24, "")
    assert not (tmp_path / PART).exists()


def test_without_an_endpoint_whole_blocks_alone_are_kept(
    cast: Cast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a local policy says depends in its last bits on who speaks beside it."""
    config = settings(["fair"])
    seen: list[object] = []
    real = matches.play
    monkeypatch.setattr(matches, "play", lambda *given: seen.append(given[2]) or real(*given))
    Games(config, cast, {}, Store(tmp_path, say_nothing), say_nothing).cell(
        ROW, columns_of(config)[0]
    )
    assert seen == [None, None, None]
    assert [file.name for file in tmp_path.iterdir()] == ["row-fair.jsonl"]
