"""The original files of Deal-or-No-Deal (Lewis et al. 2017), from a folder that the user names.

A row is one side's view of one human dialogue:

```
<input> c0 v0 c1 v1 c2 v2 </input> <dialogue> YOU: ... <eos> THEM: ... </dialogue>
<output> three of own, three of partner's </output> <partner_input> c0 v0 ... </partner_input>
```

Most dialogues stand twice, once from each side; those are the human dialogues that the metrics
count.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ibrl_jax.domains.base import Outcome, Scenario
from ibrl_jax.domains.dond.grammar import Items
from ibrl_jax.domains.dond.metrics import Result, Summary, summarise
from ibrl_jax.domains.dond.referee import EndReason
from ibrl_jax.domains.dond.scenarios import SPLITS, make_scenario
from ibrl_jax.domains.dond.scoring import POINTS, ROLES, complement, settle, worth
from ibrl_jax.errors import UserError

YOU, THEM = "YOU", "THEM"
_ROW = re.compile(
    r"<input> ([0-9 ]+) </input> <dialogue> (.*) </dialogue> "
    r"<output> (.*) </output> <partner_input> ([0-9 ]+) </partner_input>"
)
_EXPECTED = (
    "a row is <input> six numbers </input> <dialogue> ... </dialogue> "
    "<output> six fields </output> <partner_input> six numbers </partner_input>"
)
_FIELD = re.compile(r"item([0-2])=([0-9]{1,2})")
_COLUMNS: tuple[str, ...] = (
    *("split", "rows", "scenarios", "dialogues", "agreed", "agreement", "own", "joint"),
    *("Pareto", "Pareto n", "points"),
)
_NO_DEAL = {"<disagree>", "<no_agreement>", "<disconnect>"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One side's view of a dialogue.

    `turns` are (YOU | THEM, text); `output` is (own, partner's) items, or the label under which no
    deal was recorded.
    """

    line: int
    counts: Items
    values: Items
    partner_values: Items
    turns: tuple[tuple[str, str], ...]
    output: tuple[Items, Items] | str

    @property
    def scenario(self) -> Scenario:
        """The scenario with this side in the seat of `agent0`."""
        return make_scenario(self.counts, self.values, self.partner_values)


@dataclass(frozen=True, kw_only=True, slots=True)
class HumanDialogue:
    """A dialogue of which both sides' rows are present; `row` is the first, its YOU is `agent0`."""

    row: Row
    partner: Row

    @property
    def outcome(self) -> Outcome:
        """What happened, scored as the referee would. A deal: two outputs that share all items."""
        row, items = self.row, None
        if not isinstance(row.output, str):
            own, theirs = row.output
            items = own if complement(own, row.counts) == theirs else None
        facts = settle(row.scenario, items) | {"turns": len(row.turns)}
        reason = EndReason.DISAGREE if items is None else EndReason.DEAL
        return Outcome(end_reason=str(reason), success=items is not None, facts=facts)


def load_rows(folder: str | Path, split: str) -> list[Row]:
    """The rows of `<folder>/<split>.txt` in order.

    Raises UserError for a missing folder or file, and for a row that is cut short or malformed.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"config.dond.data_dir {folder} is not a folder; name the one that holds the original "
            "train.txt, val.txt and test.txt, or leave it unset to enumerate scenarios."
        )
    path = folder / f"{split}.txt"
    if not path.is_file():
        raise UserError(
            f"{path} is missing; config.dond.data_dir needs train.txt, val.txt and test.txt."
        )
    try:
        with path.open(encoding="utf-8") as file:
            lines = enumerate(file, 1)
            rows = [_parse_row(text, path, line) for line, text in lines if text.strip()]
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no UTF-8 text ({error.reason}); {_EXPECTED}.") from error
    if not rows:
        raise UserError(f"{path} holds no rows; {_EXPECTED}.")
    return rows


def human_dialogues(rows: Sequence[Row]) -> list[HumanDialogue]:
    """The dialogues of which both perspectives are present, in order of the second's row.

    Two rows belong together if inputs, turns and outputs are each other's, YOU and THEM swapped;
    every row is used once.
    """
    waiting: dict[tuple, list[Row]] = defaultdict(list)
    found = []
    for row in rows:
        partners = waiting[_key(row, mirrored=True)]
        if partners:
            found.append(HumanDialogue(row=partners.pop(0), partner=row))
        else:
            waiting[_key(row, mirrored=False)].append(row)
    return found


@dataclass(frozen=True, kw_only=True)
class HumanSplit:
    """One split: its rows, distinct unordered scenarios, and the metrics of both seats together."""

    split: str
    rows: int
    scenarios: int
    dialogues: int
    agreed: int
    pareto_count: int
    summary: Summary


def human_corpus(folder: str | Path) -> list[HumanSplit]:
    """What loader, scorer and metrics say of the human dialogues: train, val and test."""
    table = []
    for split in SPLITS:
        rows = load_rows(folder, split)
        results = []
        dialogues = human_dialogues(rows)
        for dialogue in dialogues:
            scenario, outcome = dialogue.row.scenario, dialogue.outcome
            results += [Result.of(scenario, outcome, role) for role in ROLES]
        summary = summarise(results)
        table.append(
            HumanSplit(
                split=split,
                rows=len(rows),
                scenarios=len({row.scenario.cluster for row in rows}),
                dialogues=len(dialogues),
                agreed=summary.agreed // 2,
                pareto_count=summary.pareto_count // 2,
                summary=summary,
            )
        )
    return table


def format_human_corpus(table: Iterable[HumanSplit]) -> str:
    """The table as text, shares to four decimals, a dash where undefined."""
    lines = [list(_COLUMNS)]
    for row in table:
        s = row.summary
        shares = [s.agreement, s.own_utility, s.joint_value, s.pareto]
        lines.append(
            [
                row.split,
                *(f"{n:,}" for n in (row.rows, row.scenarios, row.dialogues, row.agreed)),
                *("-" if x is None else f"{x:.4f}" for x in shares),
                f"{row.pareto_count:,}",
                f"{s.points:,}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def _key(row: Row, *, mirrored: bool) -> tuple:
    output = row.output
    if not mirrored:
        return row.counts, row.values, row.partner_values, row.turns, output
    turns = tuple((THEM if who == YOU else YOU, text) for who, text in row.turns)
    swapped_output = output if isinstance(output, str) else output[::-1]
    return row.counts, row.partner_values, row.values, turns, swapped_output


def _parse_row(text: str, path: Path, line: int) -> Row:
    match = _ROW.fullmatch(text.strip())
    if match is None:
        raise UserError(
            f"{path}, line {line}: the row is cut short or not in the format; {_EXPECTED}."
        )
    own, partner = _numbers(match[1]), _numbers(match[4])
    if own is None or partner is None or own[0] != partner[0]:
        raise UserError(
            f"{path}, line {line}: <input> and <partner_input> must each hold six numbers "
            "c0 v0 c1 v1 c2 v2, worth 10 points in all, with the same counts on both sides."
        )
    return Row(
        line=line,
        counts=own[0],
        values=own[1],
        partner_values=partner[1],
        turns=tuple(_turn(part, path, line) for part in match[2].split(" <eos> ")),
        output=_output(match[3].split(), path, line),
    )


def _numbers(text: str) -> tuple[Items, Items] | None:
    """(counts, values) from "c0 v0 c1 v1 c2 v2"."""
    fields = text.split()
    if len(fields) != 6 or max(map(len, fields)) > 2:
        return None
    c0, v0, c1, v1, c2, v2 = map(int, fields)
    counts, values = (c0, c1, c2), (v0, v1, v2)
    return (counts, values) if worth(counts, values) == POINTS else None


def _turn(part: str, path: Path, line: int) -> tuple[str, str]:
    who, colon, text = part.partition(":")
    if not colon or who not in (YOU, THEM):
        raise UserError(
            f"{path}, line {line}: the turn {part[:40]!r} must start with YOU: or THEM:."
        )
    return who, text.strip()


def _output(fields: list[str], path: Path, line: int) -> tuple[Items, Items] | str:
    if len(fields) == 6 and len(set(fields)) == 1 and fields[0] in _NO_DEAL:
        return fields[0].strip("<>")
    found = [_FIELD.fullmatch(field) for field in fields]
    if [match and match[1] for match in found] != list("012012"):
        raise UserError(
            f"{path}, line {line}: <output> must hold item0=N item1=N item2=N twice, or one of "
            f"{', '.join(sorted(_NO_DEAL))} six times."
        )
    n = [int(match[2]) for match in found if match]
    return (n[0], n[1], n[2]), (n[3], n[4], n[5])
