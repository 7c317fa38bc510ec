"""Human validation of recorded outcomes: a blinded sheet out, people's decisions in.

```
dialogue files -> sheet.csv   item, call, consent, annotator (both empty); shuffled, ids and
                              outcomes hidden
               -> key.json    item -> which call it was, and what was recorded; not for annotators
two copies of the sheet, filled in -> joint decisions (Table 13)
```

A row is a call, and all that an annotator sees of it are the words that were heard. Consent is
`yes` where they show that the customer truly agreed to the contact, else `no`. Items begin with a
mark of their export, so that no other key fits them; an annotator's name stands in one row at
least, so that nobody is taken for two. (A key without an `export` is of a version that had
neither.)
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ibrl_jax.domains.base import Role
from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, SALES
from ibrl_jax.errors import UserError
from ibrl_jax.whole import replacing

SHEET, KEY = "sheet.csv", "key.json"
COLUMNS = ("item", "call", "consent", "annotator")

_DECISIONS = {"yes": True, "no": False, "是": True, "否": False}
_SPEAKERS: Mapping[Language, Mapping[Role, str]] = {
    "zh": {CUSTOMER: "客户", SALES: "客服"},
    "en": {CUSTOMER: "Customer", SALES: "Agent"},
}


@dataclass(frozen=True, kw_only=True)
class FinishedCall:
    """A call to be annotated: `lines` are (role, what was heard), `added` is what was recorded."""

    id: str
    language: Language
    lines: tuple[tuple[Role, str], ...]
    added: bool


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was recorded of a call, and whether each annotator saw consent."""

    id: str
    recorded: bool
    a: bool
    b: bool


def read_calls(files: Iterable[Path]) -> list[FinishedCall]:
    """The calls of dialogue files that came to an end; an id is the file's name and its line.

    Raises UserError for a file or line that holds something else.
    """
    calls: list[FinishedCall] = []
    for file in files:
        for number, line in enumerate(_text(file).split("\n"), start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                call = _call(json.loads(line), f"{file}:{number}")
            except (ValueError, KeyError, TypeError, AttributeError):
                raise UserError(
                    f"{where}: no finished call of TeleSales; give a dialogue file of a run."
                ) from None
            if call is not None:
                calls.append(call)
    return calls


def export(calls: Sequence[FinishedCall], folder: Path, *, count: int, seed: int) -> None:
    """Write the sheet of `count` calls drawn by the seed, in an order that tells nothing, and its
    key.

    Raises UserError for fewer calls than that, and where a sheet or a key stands already.
    """
    if not 1 <= count <= len(calls):
        raise UserError(
            f"{count} calls are to be annotated; there are {len(calls)}, so it must be 1 to "
            f"{len(calls)}."
            if calls
            else f"{count} calls are to be annotated, and the files hold none that came to an end."
        )
    for name in (SHEET, KEY):
        if (folder / name).exists():
            raise UserError(f"{folder / name} exists already; name another folder.")
    drawn = random.Random(f"annotation/{seed}").sample(list(calls), count)
    width, mark = max(3, len(str(count))), _mark(drawn)
    items = {f"{mark}-{n:0{width}d}": call for n, call in enumerate(drawn, start=1)}
    folder.mkdir(parents=True, exist_ok=True)
    key = {item: {"id": call.id, "added": call.added} for item, call in items.items()}
    found = {"export": mark, "seed": seed, "items": key}
    # Both or neither. The sheet with a mark of its encoding, which spreadsheet programs need.
    with replacing(folder / KEY) as secret, replacing(folder / SHEET) as sheet:
        secret.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
        with sheet.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows((item, words(call), "", "") for item, call in items.items())


def _mark(calls: Sequence[FinishedCall]) -> str:
    """What tells an export from any other: a letter, which no spreadsheet takes for a number."""
    drawn = json.dumps([[call.id, call.added, words(call)] for call in calls])
    return f"s{hashlib.sha256(drawn.encode()).hexdigest()[:6]}"


def words(call: FinishedCall) -> str:
    """A call as annotators read it."""
    names = _SPEAKERS[call.language]
    return "\n".join(f"{names[role]}: {text}" for role, text in call.lines)


def read_decisions(key: Path, first: Path, second: Path) -> tuple[Decision, ...]:
    """Both annotators' decisions on every item of the key, in its order.

    Raises UserError for a file that cannot be read, an item that is unknown, missing or there
    twice, a decision that is none, and two sheets of one annotator.
    """
    try:
        export: Mapping[str, Any] = json.loads(_text(key))
        items: Mapping[str, Any] = export["items"]
        recorded = {item: (str(row["id"]), bool(row["added"])) for item, row in items.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{key} is no key of an annotation; it is the {KEY} of the export."
        ) from None
    named = "export" in export
    (a, one), (b, other) = (_sheet(file, recorded, named=named) for file in (first, second))
    if first.samefile(second):
        raise UserError(f"{first} and {second} are one file; each annotator fills in a sheet.")
    if named and one == other:
        raise UserError(
            f"{first} and {second} are both of the annotator {one!r}; two people are needed."
        )
    return tuple(
        Decision(id=id, recorded=added, a=a[item], b=b[item])
        for item, (id, added) in recorded.items()
    )


def _sheet(file: Path, items: Iterable[str], *, named: bool) -> tuple[dict[str, bool], str]:
    """The decisions of a sheet, and who made them, where that is asked for."""
    reader = csv.DictReader(io.StringIO(_text(file)), strict=True)
    known, found, names = set(items), {}, set[str]()
    needed = ("item", "consent", "annotator") if named else ("item", "consent")
    try:
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise UserError(
                f"{file} has no column {missing[0]!r}; its first line must be {','.join(COLUMNS)}."
            )
        for row in reader:
            item = _number(row["item"] or "", known)
            if item not in known:
                raise UserError(
                    f"{file} has an item {item!r} that is not in the key; a sheet is read with the "
                    "key of its own export."
                )
            if item in found:
                raise UserError(f"{file} has item {item} twice.")
            decision = (row["consent"] or "").strip().lower()
            if decision not in _DECISIONS:
                raise UserError(
                    f"{file}, item {item}: consent is {decision!r}; it must be yes or no."
                )
            found[item] = _DECISIONS[decision]
            if name := (row.get("annotator") or "").strip().lower():
                names.add(name)
    except csv.Error as error:
        raise UserError(f"{file} is no CSV file ({error}).") from None
    for item in sorted(known - set(found)):
        raise UserError(f"{file} lacks item {item}; every item of the key needs a decision.")
    if named and len(names) != 1:
        raise UserError(
            f"{file} names {' and '.join(sorted(names)) or 'nobody'} as its annotator; one name or "
            "one's initials must stand in that column, in one row at least."
        )
    return found, "".join(names)


def _number(text: str, known: set[str]) -> str:
    """An item as the key has it; spreadsheet programs take the zeros off its front."""
    text = text.strip()
    width = max(map(len, known), default=0)
    return text.zfill(width) if text.isdecimal() else text


def _call(record: Mapping[str, Any], id: str) -> FinishedCall | None:
    """A line of a dialogue file; None for a call that was broken off. Raises what JSON does."""
    outcome, language = record["outcome"], record["scenario"]["public"]["language"]
    lines = tuple((turn["role"], turn["text"]) for turn in record["turns"] if turn["valid"])
    if language not in _SPEAKERS or any(role not in _SPEAKERS[language] for role, _ in lines):
        raise ValueError("no call of TeleSales")
    if outcome["end_reason"] == "aborted":
        return None
    return FinishedCall(id=id, language=language, lines=lines, added=bool(outcome["success"]))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is no UTF-8 text; save it as CSV in UTF-8.") from None
