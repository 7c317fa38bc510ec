"""What lies in the files that settings name, as hashes.

A setting tells where a file lies and not what is in it, so a folder that is keyed by settings alone
would meet what an earlier text of the same file led to. A run keeps the hashes that it began with
in `contents.json`, and goes on only under the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.errors import UserError
from ibrl_jax.names import kind_of
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer.frozen import find_frozen
from ibrl_jax.trainer.run import RunFolder, as_json, named_by, read_json, write_json
from ibrl_jax.trainer.weights import fingerprint

PATHS = (
    "policy.folder",
    "sft.transcripts",
    "dond.data_dir",
    "telesales.prompts_dir",
    "telesales.test_file",
)
"""Settings that name a file or folder whose contents shape a run, or are empty."""
PATHS_OR_WORDS = ("policy.tokenizer", "policy.start", "dond.prompt")
"""The same of those that may hold a word instead."""
POLICIES = ("roles.*.counterpart",)
"""Settings that name policies."""

_RECORD = "contents.json"
_BESIDE_WEIGHTS = (".json", ".jinja", ".model", ".txt")
"""What is read of a folder of weights beside these: the network, the tokenizer, the chat format."""


def keep_contents(folder: RunFolder, config: ConfigDict) -> None:
    """Write down what lies now in the files that a run's config names."""
    write_json(folder.path / _RECORD, contents(flat(as_json(config))))


def check_contents(folder: RunFolder, config: ConfigDict) -> None:
    """Look whether a run that has begun would go on with the files that it began with.

    What is no more there is not compared, nor is anything where nothing was written down.

    Raises:
        UserError: a file or folder, or a policy's weights, are others now.
    """
    record = folder.path / _RECORD
    if not folder.begun or not record.is_file():
        return
    values, then = flat(as_json(config)), read_json(record)
    now = contents(values)
    for key in sorted(then.keys() & now.keys()):
        if then[key] != now[key]:
            what = f"config.{key} = {values[key]!r}" if key in values else f"the counterpart {key}"
            raise UserError(
                f"what lies in {what} has changed since the run in {folder.path} began; restore "
                "it, or choose another --config.name or --config.seed"
            )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their full keys, `sft.transcripts` and so on."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def contents(values: Mapping[str, Any]) -> dict[str, str]:
    """A hash of what lies in each file, folder and frozen policy that settings name.

    Args:
        values: a config's settings by their full keys, `sft.transcripts` and so on.

    Returns:
        The hashes by key (of a policy: by its name); nothing of what names none or is not there.
    """
    found: dict[str, str] = {}
    for key, value in values.items():
        if key in (*PATHS, *PATHS_OR_WORDS) and value and (content := content_of(Path(value))):
            found[key] = content
        elif named_by(key, POLICIES):
            found |= _policies(value, ROLES[values["domain"]])
    return found


def content_of(path: Path) -> str | None:
    """A hash of a file, or of all files of a folder with their names in it; None of neither.

    Hidden files are left out. Weights count by their fingerprint, which reads little of them.
    """
    files = [path] if path.is_file() else sorted(_inside(path))
    if not files:
        return None
    stats = [file.stat() for file in files]
    seen = tuple((f, s.st_size, s.st_mtime_ns) for f, s in zip(files, stats, strict=True))
    return _hash(path, seen)


def _inside(folder: Path) -> Iterable[Path]:
    weights = any(folder.glob("*.safetensors"))
    for file in folder.glob("*") if weights else folder.rglob("*"):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        read = not weights or file.suffix in (*_BESIDE_WEIGHTS, ".safetensors")
        if file.is_file() and read and not hidden:
            yield file


@lru_cache(maxsize=64)
def _hash(path: Path, files: Sequence[tuple[Path, int, int]]) -> str:
    """Of files with their sizes and times, by which one that was edited is another one here."""
    digest = hashlib.sha256()
    if path.is_dir():
        digest.update(fingerprint(path).encode())
    for file, size, _ in files:
        if file.suffix == ".safetensors" and file.parent == path:
            continue
        name = file.relative_to(path).as_posix()  # of a file itself: a dot
        digest.update(f"{name}:{size}:".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _policies(names: Sequence[str], roles: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        if kind_of(name) != "frozen" or name == "frozen:start":
            continue
        try:
            found[name] = find_frozen(name, roles).fingerprint
        except UserError:  # not there yet, which is told when it is needed
            continue
    return found
