"""Human validation of recorded outcomes: Table 13, its agreement and kappas.

    python -m ibrl_jax.evaluation.human_validation --dialogues=FILE,FILE --to=FOLDER --count=200
    python -m ibrl_jax.evaluation.human_validation --key=FOLDER/key.json --a=FILE --b=FILE

The first writes a blinded sheet of calls, the second reads two copies of it that two people have
filled in, each with a name or initials. Columns of the table partition the annotators' joint
decisions, rows are what was recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from ibrl_jax.config import default_config
from ibrl_jax.domains.telesales import annotation
from ibrl_jax.entry import Options, refuse, run
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.statistics import Kappa, StatisticsSettings, kappa

JOINT = ((True, True), (False, False), (True, False), (False, True))
"""The columns: what annotators A and B decided."""

_HEADS = ("both: consent", "both: no consent", "A: consent, B: no", "A: no, B: consent", "total")


@dataclass(frozen=True, kw_only=True)
class HumanValidation:
    """Table 13. `counts[recorded][(a, b)]` are calls; the pairs' kappas are Cohen's."""

    counts: Mapping[bool, Mapping[tuple[bool, bool], int]]
    annotators: Kappa
    recorded_a: Kappa
    recorded_b: Kappa

    @property
    def n(self) -> int:
        return sum(sum(row.values()) for row in self.counts.values())

    def __str__(self) -> str:
        rows = [
            ("recorded as added", [self.counts[True][pair] for pair in JOINT]),
            ("recorded as not added", [self.counts[False][pair] for pair in JOINT]),
        ]
        rows.append(("total", [sum(column) for column in zip(*(r for _, r in rows), strict=True)]))
        lines = [f"{'':<22}" + "".join(f"{head:>20}" for head in _HEADS)]
        lines += [
            f"{name:<22}" + "".join(f"{n:>20}" for n in [*row, sum(row)]) for name, row in rows
        ]
        for name, found in (
            ("annotators A and B", self.annotators),
            ("record and A", self.recorded_a),
            ("record and B", self.recorded_b),
        ):
            lines.append(f"{name:<22}{_told(found)}")
        return "\n".join(lines)


def human_validation(
    decisions: Iterable[tuple[bool, bool, bool]], settings: StatisticsSettings
) -> HumanValidation:
    """The table of (recorded, A, B), a call each.

    Raises UserError if there are none.
    """
    seen = Counter(decisions)
    if not seen:
        raise UserError("No call has been annotated; human validation needs one at least.")

    def between(first: int, second: int) -> Kappa:
        table = np.zeros((2, 2))
        for decision, n in seen.items():
            table[int(decision[first]), int(decision[second])] += n
        return kappa(table, settings)

    counts = {rec: {(a, b): seen[rec, a, b] for a, b in JOINT} for rec in (True, False)}
    return HumanValidation(
        counts=counts,
        annotators=between(1, 2),
        recorded_a=between(0, 1),
        recorded_b=between(0, 2),
    )


def _told(found: Kappa) -> str:
    agreement = f"{found.agreement:.1%} of {found.n} agree"
    if found.value is None or found.interval is None:
        return f"{agreement}, kappa {found.note}"
    low, high = found.interval
    return f"{agreement}, kappa {found.value:.2f} [{low:.2f}, {high:.2f}]"


def main(argv: Sequence[str], console: Console) -> None:
    written, read = ("dialogues", "to", "count", "seed"), ("key", "a", "b")
    options = Options(argv, (*written, *read))
    refuse(argv, ["config.*"], "changes nothing here")
    if options.get("key", ""):
        refuse(argv, written, "is for writing a sheet, and --key reads two")
        found = annotation.read_decisions(
            Path(options.need("key", "annotation/key.json")),
            Path(options.need("a", "annotation/first.csv")),
            Path(options.need("b", "annotation/second.csv")),
        )
        settings = StatisticsSettings(**dict(default_config().statistics))
        table = human_validation(((d.recorded, d.a, d.b) for d in found), settings)
        console.print(str(table), highlight=False, markup=False, soft_wrap=True)
        return
    refuse(argv, read, "is for reading two sheets, which --key does")
    files = options.need(
        "dialogues", "runs/telesales-mini/seed0/evaluation/sales-rule_v2.jsonl"
    ).split(",")
    folder = Path(options.need("to", "annotation"))
    calls = annotation.read_calls(Path(file) for file in files)
    count = options.number("count", len(calls))
    annotation.export(calls, folder, count=count, seed=options.number("seed", 0))
    console.print(
        f"{count} calls are in {folder / annotation.SHEET}; {annotation.KEY} is not for annotators",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    run(main)
