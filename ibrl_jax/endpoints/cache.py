"""Answers on disk, keyed by everything that shapes one.

A rerun replays what was answered, sample by sample, and pays for nothing twice. The key is the
SHA-256 of the canonical JSON of the request (`request_key`); neither a prompt nor an API key is
ever written. The first answer that is stored for a key stands, for other processes too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ibrl_jax.endpoints.settings import EndpointSettings
from ibrl_jax.errors import UserError

_FORMAT = 1
_counter = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is kept of an answer: its text without thoughts, and the facts about it."""

    text: str
    finish: str
    tokens_in: int | None
    tokens_out: int | None
    latency_s: float


def request_key(
    settings: EndpointSettings,
    messages: Sequence[Mapping[str, str]],
    *,
    temperature: float,
    max_tokens: int,
    schema: Mapping[str, Any] | None,
    sample_index: int,
) -> str:
    """The hexadecimal SHA-256 of all that shapes an answer."""
    shaping = {
        "format": _FORMAT,
        "base_url": settings.base_url.rstrip("/"),
        "model": settings.model,
        "messages": [dict(message) for message in messages],
        "temperature": float(temperature),
        "max_tokens": max_tokens,
        "schema": schema,
        "schema_mode": settings.schema_mode if schema is not None else None,
        "extra_body": dict(settings.extra_body),
        "sample_index": sample_index,
    }
    return hashlib.sha256(json.dumps(shaping, sort_keys=True).encode()).hexdigest()


class Cache:
    """A folder of answers, one file each, written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cache_dir {folder} cannot be made: {error.strerror}") from None
        self._folder = folder

    def get(self, key: str) -> Entry | None:
        """The answer stored for `key`; None where there is none, or only a damaged one."""
        try:
            stored = json.loads(self._path(key).read_text("utf-8"))
            entry = Entry(**stored["entry"])
            return entry if stored["sha256"] == _digest(entry) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, key: str, entry: Entry, *, replace: bool = False) -> Entry:
        """Store an answer, and return the one that stands: an earlier one, unless `replace`."""
        path = self._path(key)
        scratch = path.with_name(f".{key}.{os.getpid()}.{next(_counter)}.tmp")
        content = json.dumps({"entry": asdict(entry), "sha256": _digest(entry)})
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch.write_text(content, "utf-8")
            try:
                os.link(scratch, path)  # unlike a rename, this fails where a file stands already
            except FileExistsError:
                earlier = None if replace else self.get(key)
                if earlier is not None:
                    return earlier
                os.replace(scratch, path)
            except OSError:  # a file system without hard links
                os.replace(scratch, path)
            return entry
        except OSError as error:
            raise UserError(
                f"an answer cannot be written to cache_dir {self._folder}: {error.strerror}"
            ) from None
        finally:
            scratch.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.json"


def _digest(entry: Entry) -> str:
    return hashlib.sha256(json.dumps(asdict(entry), sort_keys=True).encode()).hexdigest()
