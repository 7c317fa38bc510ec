"""The dialogues of an evaluation on disk, kept in whole blocks as they are finished.

A cell is a file of JSON lines. Each line says with which key it was played (a hash of all that
shapes the cell) and which of the cell's dialogues it is; what was written under another key, or
after the last whole block, is played again.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ibrl_jax.domains.base import Outcome
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.cells import Planned, Played

BLOCK = 200
"""Dialogues that are played together and kept together."""

_NOT_IN_NAMES = re.compile(r"[^\w.:@+=-]")
_LONGEST = 150


class Store:
    """The folder of an evaluation's dialogues: `<policy>-<column>.jsonl`."""

    def __init__(self, folder: Path, note: Callable[[str], None]) -> None:
        self._folder, self._note = folder, note
        self._owners: dict[Path, tuple[str, str]] = {}

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Holds the folder. Raises UserError if another process does."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is evaluating into {self._folder}; wait for it, or choose "
                    "another folder"
                ) from error
            yield

    def open(self, policy: str, column: str, key: str, planned: int, folder: str = "") -> KeptCell:
        """What is there of a cell of `planned` dialogues; anything else in its file is dropped.

        Raises:
            UserError: another cell has the same file.
        """
        file = self._folder / folder / cell_file(policy, column)
        owner = self._owners.setdefault(file, (policy, column))
        if owner != (policy, column):
            raise UserError(
                f"the dialogues of {policy} against {column} and of {owner[0]} against {owner[1]} "
                f"would both lie in {file.name}; give one of them another label"
            )
        cell = KeptCell(file, key)
        if cell.trim(planned):
            self._note(f"{file} was played otherwise (policies, settings or versions): played anew")
        return cell


class KeptCell:
    """One cell's file."""

    def __init__(self, file: Path, key: str) -> None:
        self._file, self._key = file, key

    def trim(self, planned: int) -> bool:
        """Leave whole blocks of this key alone; True if there were dialogues of another one."""
        if not self._file.is_file():
            return False
        ends, other = [0], False
        with self._file.open("rb") as lines:
            for line in lines:
                row = _row(line)
                if row is None or row.get("key") != self._key or row.get("index") != len(ends) - 1:
                    other = row is not None and len(ends) == 1
                    break
                ends.append(ends[-1] + len(line))
        count = min(len(ends) - 1, planned)
        if count < planned:
            count -= count % BLOCK
        if ends[count] < self._file.stat().st_size:
            os.truncate(self._file, ends[count])
        return other

    def rows(self) -> Iterator[dict[str, Any]]:
        """What is there, in the plan's order."""
        if self._file.is_file():
            with self._file.open("rb") as lines:
                for line in lines:
                    yield json.loads(line)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Keep a block, whole; gives it as it will be read."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row) for row in rows]
        with self._file.open("ab") as file:
            file.write("".join(line + "\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())
        return (json.loads(line) for line in lines)


def cell_file(policy: str, column: str) -> str:
    """The name of a cell's file."""
    name = f"{policy}-{column}".replace(" ", "-")
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST] + ".jsonl"


def about_dialogue(key: str, index: int, plan: Planned) -> dict[str, Any]:
    """What a line says of its place in the evaluation."""
    return {
        "key": key,
        "index": index,
        "seed": plan.seed,
        "seat": plan.seat,
        "counterpart": plan.counterpart,
    }


def played_of(plan: Planned, row: Mapping[str, Any]) -> Played:
    """What tables need of a line of a cell's file."""
    outcome = row["outcome"]
    failures = [r["failed"] for r in row["rewards"].values() if "failed" in r]
    return Played(
        plan=plan,
        outcome=Outcome(
            end_reason=outcome["end_reason"],
            success=outcome["success"],
            facts=outcome["facts"],
            offender=outcome["offender"],
            joint=tuple(outcome["joint"]),
        ),
        retries=sum(row["retries"].values()),
        failed=failures[0] if failures else None,
    )


def _row(line: bytes) -> dict[str, Any] | None:
    """A line; None if it was cut short."""
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
