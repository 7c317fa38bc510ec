"""`outcomes.csv`: what came of every dialogue of an evaluation, a row each, for statistics.

Columns are those of `OutcomeRow`, then one a measure. Numbers are written so that they are read
back exactly; what is undefined for a dialogue (its joint value without a deal, anything of an
aborted one) is empty.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.cells import Cell
from ibrl_jax.evaluation.columns import Column
from ibrl_jax.evaluation.table import compared, values_of
from ibrl_jax.whole import replacing

_FIXED = (
    "policy",
    "column",
    "kind",
    "counterpart",
    "seat",
    "first",
    "scenario",
    "cluster",
    "seed",
    "end_reason",
    "aborted",
    "retries",
)


@dataclass(frozen=True, kw_only=True)
class OutcomeRow:
    """One dialogue of one policy in one column.

    `counterpart` is who held the other seat, by name; `seat` is the policy's, `first` who opened;
    `seed` counts the dialogues of a scenario and seat; `retries` are turns that were refused and
    sampled again. `values` has each measure that is defined for it, by key; an aborted dialogue
    has none.
    """

    policy: str
    column: str
    kind: str
    counterpart: str
    seat: str
    first: str
    scenario: str
    cluster: str
    seed: int
    end_reason: str
    aborted: bool
    retries: int
    values: Mapping[str, float]


def outcome_rows(domain: Domain, policy: str, column: Column, cell: Cell) -> list[OutcomeRow]:
    """A cell's rows, in the order of its plan.

    Beside every compared measure there is what else tables hold that a single dialogue has a value
    of (own utility, joint value, turns, ...).
    """
    rows = []
    for p in cell.played:
        plan, values = p.plan, values_of(domain, p)
        if values is not None:
            found = domain.tabulate([(plan.scenario, p.outcome, plan.seat)], 1)
            other = {key: found.get(key) for key in _further(domain)}
            values |= {key: float(v) for key, v in other.items() if v is not None}
        rows.append(
            OutcomeRow(
                policy=policy,
                column=column.name,
                kind=column.kind,
                counterpart=plan.counterpart,
                seat=plan.seat,
                first=plan.first,
                scenario=plan.scenario.id,
                cluster=plan.scenario.cluster,
                seed=plan.seed,
                end_reason=p.outcome.end_reason,
                aborted=values is None,
                retries=p.retries,
                values=values or {},
            )
        )
    return rows


def value_names(domain: Domain) -> tuple[str, ...]:
    """The measures of a dialogue: the compared ones, the success first, then the others."""
    return (*compared(domain), *_further(domain))


def write_outcomes(file: Path, rows: Iterable[OutcomeRow], names: Sequence[str]) -> None:
    """Write the file, whole or not at all. `names` are the measures, in their columns' order."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow((*_FIXED, *names))
    for row in rows:
        fixed = [getattr(row, name) for name in _FIXED]
        fixed[_FIXED.index("aborted")] = int(row.aborted)
        out.writerow((*fixed, *(_number(row.values.get(name)) for name in names)))
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8", newline="")


def read_outcomes(file: Path) -> list[OutcomeRow]:
    """The rows of a file.

    Raises:
        UserError: it is not there, or is no file of outcomes.
    """
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            reader = csv.reader(lines)
            head = next(reader, [])
            if tuple(head[: len(_FIXED)]) != _FIXED:
                raise ValueError("its columns are others")
            names = head[len(_FIXED) :]
            return [_row(line, names) for line in reader]
    except (OSError, ValueError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(
            f"{file} cannot be read as the outcomes of an evaluation ({why}); "
            "python -m ibrl_jax.evaluate --config=FILE --to=FOLDER writes them"
        ) from error


def _further(domain: Domain) -> tuple[str, ...]:
    """Measures that are not compared but that one dialogue has; `...@n` are of several."""
    return tuple(m.key for m in domain.measured if not m.compared and "@" not in m.key)


def _row(line: Sequence[str], names: Sequence[str]) -> OutcomeRow:
    if len(line) != len(_FIXED) + len(names):
        raise ValueError(f"a row has {len(line)} fields, not {len(_FIXED) + len(names)}")
    fixed = dict(zip(_FIXED, line, strict=False))
    if fixed["aborted"] not in ("0", "1"):
        raise ValueError(f"aborted is {fixed['aborted']!r}, not 0 or 1")
    numbers = zip(names, line[len(_FIXED) :], strict=True)
    return OutcomeRow(
        policy=fixed["policy"],
        column=fixed["column"],
        kind=fixed["kind"],
        counterpart=fixed["counterpart"],
        seat=fixed["seat"],
        first=fixed["first"],
        scenario=fixed["scenario"],
        cluster=fixed["cluster"],
        seed=int(fixed["seed"]),
        end_reason=fixed["end_reason"],
        aborted=fixed["aborted"] == "1",
        retries=int(fixed["retries"]),
        values={name: float(text) for name, text in numbers if text},
    )


def _number(value: float | None) -> str:
    return "" if value is None else repr(float(value))
