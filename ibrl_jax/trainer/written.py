"""What the trainer wrote into a policy's folder, by the hashes that its `policy.json` keeps.

So a file that was damaged since is never taken for a whole one, and what somebody else has put into
the folder outlives the policy.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from ibrl_jax.errors import UserError

START = "start"
"""The name of the policy that every role grows from, in a run's `policies/` and in reports."""

WHOLE, ADAPTERS = "params.safetensors", "adapters.safetensors"
"""Weights: all parameters, or the adapters where only these train."""
ABOUT = "policy.json"

_EVER = (ABOUT, WHOLE, ADAPTERS, "tokenizer.model")
"""Names that are the trainer's, also where no hashes were kept."""


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that lies in a folder, by name."""
    return {file.name: _hash(file) for file in sorted(folder.iterdir()) if file.is_file()}


def check(file: Path) -> None:
    """Raises UserError if a file is another one than was written; without its hash, nothing."""
    kept = _kept(file.parent).get(file.name)
    if kept is not None and _hash(file) != kept:
        raise UserError(
            f"{file} is not what was written there, by the hash in {ABOUT} beside it; restore it, "
            "or delete its folder, and the command that wrote it does so again"
        )


def forget(folder: Path) -> None:
    """Remove a policy, if there is one; the folder goes with it if nothing else is in it."""
    for name in _ours(folder):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def move_others(old: Path, new: Path) -> None:
    """Move what is not the trainer's from an old policy's folder to that which takes its place."""
    ours = {*_ours(old), *(path.name for path in new.iterdir())}
    for path in sorted(old.iterdir()):
        if path.name not in ours:
            path.rename(new / path.name)


def _ours(folder: Path) -> list[str]:
    return [*dict.fromkeys((*_EVER, *_kept(folder)))]


def _kept(folder: Path) -> dict[str, str]:
    """The hashes that were kept; none where `policy.json` is damaged, or older than hashes are."""
    try:
        found = json.loads((folder / ABOUT).read_text())["files"].items()
        return {name: kept for name, kept in found if Path(name).name == name}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _hash(file: Path) -> str:
    about = file.stat()
    return _read(file, about.st_size, about.st_mtime_ns)


@lru_cache(maxsize=256)
def _read(file: Path, size: int, changed: int) -> str:
    """The hash of a file as it was when it last changed: many loads of it read it once for this."""
    with file.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
