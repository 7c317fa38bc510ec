"""Files of an evaluation that somebody, or a disk, has damaged: told, or done again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches, store
from ibrl_jax.evaluation.store import KeptCell, Store
from tests.evaluation.held import say_nothing
from tests.evaluation.test_matches import FakeCast, HalfDown, settings
from tests.evaluation.test_stored import play

FILE = "row-fair.jsonl"


@pytest.fixture(scope="module")
def cast() -> FakeCast:
    domain, speech = build_domain(settings()), SimpleNamespace(tokenizer=None)
    endpoints: Any = {"shaky": HalfDown()}
    return FakeCast(domain=domain, speech=speech, engines={}, endpoints=endpoints, max_new=32)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store, matches):
        monkeypatch.setattr(module, "BLOCK", 10)


@pytest.fixture(scope="module")
def finished(cast: FakeCast, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a cell of 24 dialogues."""
    folder = tmp_path_factory.mktemp("finished")
    play(cast, settings(["fair"]), folder)
    return (folder / FILE).read_bytes()


def changed(key: str, value: Any) -> Callable[[bytes], bytes]:
    return lambda line: json.dumps(json.loads(line) | {key: value}).encode() + b"\n"


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda line: b"{" + line,
    "no text": lambda line: b"\xff" + line[1:],
    "another thing": lambda line: b"3\n",
    "gone": lambda line: b"",
    "twice": lambda line: line + line,
    "an outcome that is none": changed("outcome", 3),
    "facts that are none": changed("outcome", {"end_reason": "deal", "facts": 1}),
    "rewards that are none": changed("rewards", {"agent0": 1}),
    "retries that are none": changed("retries", [1]),
    "turns that are none": changed("turns", [{"role": "agent0"}]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("at", [0, 12])
def test_a_damaged_line_is_told_and_nothing_is_lost(
    cast: FakeCast, tmp_path: Path, finished: bytes, at: int, damage: Callable[[bytes], bytes]
) -> None:
    lines = finished.splitlines(True)
    text = b"".join([*lines[:at], damage(lines[at]), *lines[at + 1 :]])
    (tmp_path / FILE).write_bytes(text)
    number = at + 2 if damage is DAMAGES["twice"] else at + 1
    with pytest.raises(UserError, match=rf"{FILE}, line {number} is damaged .*restore") as told:
        play(cast, settings(["fair"]), tmp_path)
    assert "\n" not in str(told.value)
    assert (tmp_path / FILE).read_bytes() == text


def test_a_last_line_that_is_damaged_but_whole_is_told_too(
    cast: FakeCast, tmp_path: Path, finished: bytes
) -> None:
    """A kill leaves a line without its end; the block before it would be played anew."""
    (tmp_path / FILE).write_bytes(finished[:-30] + b"\n")
    with pytest.raises(UserError, match="line 24 is damaged"):
        play(cast, settings(["fair"]), tmp_path)
    (tmp_path / FILE).write_bytes(finished[:-30])
    assert play(cast, settings(["fair"]), tmp_path)[1] == 4
    assert (tmp_path / FILE).read_bytes() == finished


def test_damaged_lines_beside_the_file_are_dropped(
    cast: FakeCast, tmp_path: Path, finished: bytes
) -> None:
    key = json.loads(finished.splitlines()[0])["key"]
    (tmp_path / FILE).write_bytes(finished)
    for end in ("part", "audits"):
        damaged = [
            {"key": key, "index": 0, "outcome": 3},
            {"key": key, "index": 1},
            3,
            {"key": key},
        ]
        text = "".join(json.dumps(row) + "\n" for row in damaged)
        (tmp_path / f"{FILE}.{end}").write_text(text)
    cell = Store(tmp_path, say_nothing).open("row", "fair", key, 24)
    assert (cell.early.rows, cell.audits.rows) == ({}, {})
    assert len(cell.rows) == 24


def test_views_that_are_damaged_are_told_where_they_are_read(
    tmp_path: Path, finished: bytes
) -> None:
    lines = finished.splitlines(True)
    key = json.loads(lines[0])["key"]
    lines[2] = lines[2].replace(b'"views": {', b'"views": {{')
    (tmp_path / FILE).write_bytes(b"".join(lines))
    cell: KeptCell = Store(tmp_path, say_nothing).open("row", "fair", key, 24)
    cell.audited(2, store.outcome_of(cell.rows[2]))
    with pytest.raises(UserError, match="line 3 is damaged"):
        cell.settle()
    assert (tmp_path / FILE).read_bytes() == b"".join(lines)
