"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """A path beside `file` to write to, which takes its place when the block ends.

    A reader sees the old file or the new one, never a half. If the block raises, the old one stays
    and nothing is left beside it.
    """
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        yield beside
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
