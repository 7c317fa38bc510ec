"""Answers on disk: what keys them, what survives, what is never written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ibrl_jax.endpoints import EndpointSettings
from ibrl_jax.endpoints.cache import Cache, Entry, request_key
from ibrl_jax.errors import UserError

ENTRY = Entry(text="yes \ud83d", finish="stop", tokens_in=1, tokens_out=None, latency_s=0.5)
KEY = "ab" + "0" * 62


@pytest.mark.parametrize(
    "change",
    [
        {"base_url": "http://other/v1"},
        {"model": "other"},
        {"extra_body": {"top_p": 0.5}},
        {"schema_mode": "none"},
        {"messages": [{"role": "user", "content": "other"}]},
        {"messages": [{"role": "system", "content": "hi"}]},
        {"temperature": 0.6},
        {"max_tokens": 65},
        {"schema": {"type": "object", "title": "other"}},
        {"schema": None},
        {"sample_index": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_shapes_an_answer_changes_its_key(
    change: dict[str, Any], make_settings: Callable[..., EndpointSettings]
) -> None:
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.5,
        "max_tokens": 64,
        "schema": {"type": "object"},
        "sample_index": 0,
    }

    def key(changes: dict[str, Any]) -> str:
        settings = make_settings()
        ours = {name: value for name, value in changes.items() if name not in asked}
        call = asked | {name: value for name, value in changes.items() if name in asked}
        return request_key(replace(settings, **ours), call.pop("messages"), **call)

    assert key(change) != key({})


@pytest.mark.parametrize(
    "change",
    [{"timeout_s": 9.0}, {"retries": 9}, {"concurrency": 1}, {"name": "sim"}, {"key_env": None}],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_shape_an_answer_leaves_its_key(
    change: dict[str, Any], make_settings: Callable[..., EndpointSettings]
) -> None:
    def key(settings: EndpointSettings) -> str:
        messages = [{"role": "user", "content": "hi"}]
        return request_key(
            settings, messages, temperature=0, max_tokens=1, schema=None, sample_index=0
        )

    assert key(make_settings(**change)) == key(make_settings())


def test_an_answer_comes_back_as_it_was_stored(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert cache.get(KEY) is None
    assert cache.put(KEY, ENTRY) == ENTRY
    assert Cache(tmp_path).get(KEY) == ENTRY


def test_the_first_answer_stands_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    cache, later = Cache(tmp_path), replace(ENTRY, text="no")
    cache.put(KEY, ENTRY)
    assert cache.put(KEY, later) == ENTRY
    assert cache.put(KEY, later, replace=True) == later
    assert cache.get(KEY) == later


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other json"])
def test_a_damaged_entry_is_a_miss_and_is_written_anew(tmp_path: Path, damage: str) -> None:
    cache = Cache(tmp_path)
    cache.put(KEY, ENTRY)
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    content = file.read_text()
    file.write_text(
        {
            "cut": content[:-9],
            "empty": "",
            "flipped": content.replace("yes", "not"),
            "other json": "[1]",
        }[damage]
    )
    assert cache.get(KEY) is None
    assert cache.put(KEY, ENTRY) == ENTRY
    assert cache.get(KEY) == ENTRY


def test_a_kill_while_writing_leaves_no_half_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("os.link", killed)
        with pytest.raises(KeyboardInterrupt):
            cache.put(KEY, ENTRY)
    assert cache.get(KEY) is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_it_works_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", unsupported)
    cache = Cache(tmp_path)
    cache.put(KEY, ENTRY)
    assert cache.get(KEY) == ENTRY


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cache_dir .* cannot be made"):
        Cache(tmp_path / "file" / "cache")
