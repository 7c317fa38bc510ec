"""The dialogues of an evaluation on disk, kept in whole blocks as they are finished.

A cell is a file of JSON lines. Each line says with which key it was played (a hash of all that
shapes the cell) and which of the cell's dialogues it is; what was written under another key, or
after the last whole block, is played again. What an endpoint's failure broke off is played again
too, in its place. What has come and is not a part of the file yet is kept beside it
(`evaluation.journal`). A line that was whole and is damaged is the user's to know.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ibrl_jax.domains.base import Outcome, Turn
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.audits import Call
from ibrl_jax.evaluation.cells import Planned, Played
from ibrl_jax.evaluation.journal import DAMAGE, Journal
from ibrl_jax.whole import replacing

BLOCK = 200
"""Dialogues that are played together and kept together."""

_NOT_IN_NAMES = re.compile(r"[^\w.:@+=-]")
_LONGEST = 150
_NEEDED = ("outcome", "rewards", "retries")
_OF_ENDPOINT = "endpoint "
"""What the reason begins with where an endpoint failed; any other would be the same again."""


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
            UserError: another cell has the same file, or the file is damaged.
        """
        file = self._folder / folder / cell_file(policy, column)
        owner = self._owners.setdefault(file, (policy, column))
        if owner != (policy, column):
            raise UserError(
                f"the dialogues of {policy} against {column} and of {owner[0]} against {owner[1]} "
                f"would both lie in {file.name}; give one of them another label"
            )
        cell = KeptCell(file, policy, column, key)
        if cell.read(planned):
            self._note(f"{file} was played otherwise (policies, settings or versions): played anew")
        return cell


class KeptCell:
    """One cell's file. `rows` is what tables need of the dialogues in it, in the plan's order.

    `early` holds dialogues that have ended and are not in the file; `audits` the outcomes of those
    in it that were audited since.
    """

    def __init__(self, file: Path, policy: str, column: str, key: str) -> None:
        self._file = file
        self._of_cell = {"policy": policy, "column": column, "key": key}
        self.rows: list[dict[str, Any]] = []
        self.early = Journal(file.with_name(f"{file.name}.part"), key, _line_of)
        self.audits = Journal(file.with_name(f"{file.name}.audits"), key, outcome_of)

    def read(self, planned: int) -> bool:
        """Take whole blocks of this key, and leave them alone in the file.

        True if there were dialogues of another key.

        Raises:
            UserError: a line is damaged that was whole, or is not in its place.
        """
        other = self._read(planned)
        self.early.read()
        self.early.forget(set(range(len(self.rows))) - set(self.broken_off))
        self.audits.read()
        self.audits.forget([i for i in self.audits.rows if i >= len(self.rows)])
        for index, row in self.audits.rows.items():
            self.rows[index]["outcome"] = row["outcome"]
        return other

    def _read(self, planned: int) -> bool:
        if not self._file.is_file():
            return False
        ends, other = [0], False
        with self._file.open("rb") as lines:
            for line in lines:
                if len(self.rows) == planned:
                    break  # whole; what follows is cut off
                row = _row(line)
                if row is None or not self._has(row, len(self.rows)):
                    self._check_rest(line, lines)
                    other = line.endswith(b"\n") and not self.rows
                    break
                self.rows.append(row)
                ends.append(ends[-1] + len(line))
        count = min(len(self.rows), planned)
        if count < planned:
            count -= count % BLOCK
        del self.rows[count:]
        if ends[count] < self._file.stat().st_size:
            os.truncate(self._file, ends[count])
        return other

    def _check_rest(self, line: bytes, rest: Iterable[bytes]) -> None:
        """Raises UserError if a line that cannot be taken, or what follows it, is of this cell.

        What a kill cut short ends in no line end.
        """
        damaged = self.rows and line.endswith(b"\n")
        key = self._of_cell["key"]
        if damaged or any((row := _row(x)) and row["key"] == key for x in (line, *rest)):
            raise self._damage(len(self.rows))

    def _damage(self, index: int) -> UserError:
        return UserError(
            f"{self._file}, line {index + 1} is damaged or not in its place; restore the file, or "
            "delete it, and its dialogues are played anew"
        )

    def _parsed(self, index: int, line: bytes) -> dict[str, Any]:
        """All of a line, its views too. Raises UserError if it is damaged."""
        try:
            return json.loads(line)
        except DAMAGE as error:
            raise self._damage(index) from error

    def _has(self, row: Mapping[str, Any], index: int) -> bool:
        return row.get("key") == self._of_cell["key"] and row.get("index") == index

    @property
    def broken_off(self) -> list[int]:
        """The indices of dialogues that the failure of an endpoint broke off."""
        return [i for i, row in enumerate(self.rows) if is_broken_off(_failure(row))]

    def about(self, index: int, plan: Planned) -> dict[str, Any]:
        """What a line says of its place in the evaluation."""
        place = {"seed": plan.seed, "seat": plan.seat, "counterpart": plan.counterpart}
        return {**self._of_cell, "index": index, **place}

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep a block, whole."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        lines = [_line(row) for row in rows]
        with self._file.open("ab") as file:
            _write(file, lines)
        self.rows += [row for line in lines if (row := _row(line))]
        self.early.forget(row["index"] for row in rows)

    def replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep these in place of those of the same index, all or none; not what failed again."""
        mended = {row["index"]: _line(row) for row in rows if _failure(row) is None}
        if not mended:
            return
        self._rewrite(lambda i, line: mended.get(i, line))
        for index, line in mended.items():
            self.rows[index] = _row(line) or {}
        self.early.forget(mended)

    def calls(self, planned: Sequence[Planned], indices: Sequence[int]) -> dict[int, Call]:
        """Dialogues of the file as an auditor is shown them, by index."""
        wanted, found = set(indices), {}
        with self._file.open("rb") as lines:
            for index, line in enumerate(lines):
                if index in wanted:
                    found[index] = Call(
                        scenario=planned[index].scenario,
                        turns=tuple(_turn(turn) for turn in self._parsed(index, line)["turns"]),
                        outcome=outcome_of(self.rows[index]),
                    )
        return found

    def audited(self, index: int, outcome: Outcome) -> None:
        """Keep the outcome of a dialogue that was audited."""
        values = {
            "end_reason": outcome.end_reason,
            "success": outcome.success,
            "facts": dict(outcome.facts),
            "offender": outcome.offender,
            "joint": list(outcome.joint),
        }
        self.audits.keep(index, {"outcome": values})
        self.rows[index]["outcome"] = json.loads(json.dumps(values))

    def settle(self) -> None:
        """Put what audits found into the dialogues' own lines, all of it or nothing."""
        found = self.audits.rows
        if found:
            self._rewrite(
                lambda i, line: (
                    _line(self._parsed(i, line) | {"outcome": found[i]["outcome"]})
                    if i in found
                    else line
                )
            )
            self.audits.forget(list(found))

    def _rewrite(self, line_of: Callable[[int, bytes], bytes]) -> None:
        """The file anew, whole or not at all; `line_of` gives each line, by index and as it was."""
        with (
            replacing(self._file) as beside,
            self._file.open("rb") as lines,
            beside.open("wb") as file,
        ):
            _write(file, (line_of(i, line) for i, line in enumerate(lines)))


def cell_file(policy: str, column: str) -> str:
    """The name of a cell's file."""
    name = f"{policy}-{column}".replace(" ", "-")
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST] + ".jsonl"


def played_of(plan: Planned, row: Mapping[str, Any]) -> Played:
    """What tables need of a line of a cell's file."""
    return Played(
        plan=plan,
        outcome=outcome_of(row),
        retries=_retries(row),
        failed=_failure(row),
    )


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """The outcome of a line of a cell's file."""
    values = row["outcome"]
    return Outcome(
        end_reason=values["end_reason"],
        success=values["success"],
        facts=dict(values["facts"]),
        offender=values["offender"],
        joint=tuple(values["joint"]),
    )


def is_broken_off(reason: str | None) -> bool:
    """Whether a dialogue that failed for a reason would be another one if it were played again."""
    return (reason or "").startswith(_OF_ENDPOINT)


def _turn(values: Mapping[str, Any]) -> Turn:
    return Turn(**{**values, "flags": tuple(values["flags"])})


def _retries(row: Mapping[str, Any]) -> int:
    return sum(row["retries"].values())


def _failure(row: Mapping[str, Any]) -> str | None:
    """Why a dialogue was broken off, if it was."""
    return next((r["failed"] for r in row["rewards"].values() if "failed" in r), None)


def _line_of(row: dict[str, Any]) -> bytes:
    """The line of a whole dialogue. Raises one of `DAMAGE` if it is none."""
    line = _line(row)
    if _row(line) is None:
        raise ValueError("it lacks something")
    return line


def _line(row: Mapping[str, Any]) -> bytes:
    """The views are most of a line and nothing to tables: they stand last, to be passed over."""
    rest = {key: value for key, value in row.items() if key != "views"}
    return json.dumps({**rest, "views": row["views"]}).encode() + b"\n"


def _write(file: BinaryIO, lines: Iterable[bytes]) -> None:
    file.writelines(lines)
    file.flush()
    os.fsync(file.fileno())


def _row(line: bytes) -> dict[str, Any] | None:
    """What is needed of a line; None if it was cut short. Views that stand last are passed over."""
    if not line.endswith(b"\n"):
        return None
    at = line.rfind(b', "views": {')  # no text can hold that: its quotes would be escaped
    for part in (line[:at] + b"}", line):
        try:
            row = json.loads(part)
            kept = {"key": row["key"], "index": row["index"]} | {k: row[k] for k in _NEEDED}
            for read in (outcome_of, _failure, _retries):
                read(kept)
            for turn in row["turns"]:
                _turn(turn)
            return kept
        except DAMAGE:
            continue
    return None
