"""What lies in the files that settings name, as hashes.

A setting tells where a file lies and not what is in it, so a folder that is keyed by settings alone
would meet what an earlier text of the same file led to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from ibrl_jax.errors import UserError
from ibrl_jax.names import kind_of
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer.frozen import find_frozen
from ibrl_jax.trainer.run import named_by
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

_BESIDE_WEIGHTS = (".json", ".jinja", ".model", ".txt")
"""What is read of a folder of weights beside these: the network, the tokenizer, the chat format."""


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
