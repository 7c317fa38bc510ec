"""What a study is: one table or figure, as a declaration.

Which runs there are, which of their policies are measured and against whom, what the columns of
numbers are, and which parts it ends in. A file of `experiments/` holds one `STUDY` and nothing
else. A study has a design for each scale: `mini` on two cores, `paper` at the paper's own size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from matplotlib.figure import Figure

from ibrl_jax.errors import UserError

IN_SYSTEM, SELF_PLAY = "in-system", "self-play"


@dataclass(frozen=True)
class Env:
    """A value of a config that an environment variable holds; `named`: its name is the value, and
    it only has to be set (a key, which is written nowhere)."""

    name: str
    named: bool = False


@dataclass(frozen=True, kw_only=True)
class Row:
    """A policy of a run that is measured.

    `policy`: a role, or `start`. `at`: the share of the run's iterations after which it is taken.
    `printed`: the row of the paper that it stands beside. `start` of one run is every run's.
    """

    label: str
    policy: str
    at: float = 1.0
    printed: str = ""

    @property
    def measured_as(self) -> str:
        """What it is called in its run's evaluation, which studies with other labels share."""
        return self.policy if self.at == 1.0 else f"{self.policy} at {self.at:g}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run, once a seed: a config file and what is changed of it.

    `name` begins its folder's name, to which a hash of all that shapes it is added, so that studies
    share what they have in common.
    """

    label: str
    name: str
    file: str
    rows: tuple[Row, ...]
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A counterpart that is measured itself, trained by nobody here (`scripted:fair`)."""

    label: str
    policy: str
    printed: str = ""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Counterparts that are pooled: every scenario meets each of them. `printed`: the paper's.

    `frozen:start` among them is the start of the run that is measured. `known`: training has met
    them, and nobody takes the column for a held-out one.
    """

    name: str
    counterparts: tuple[str, ...]
    printed: str = ""
    known: bool = False


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A number of each cell: the mean over the dialogues that have it.

    With `at_least` the mean is over scenarios whose planned dialogues with a counterpart all came
    to an end, of whether so many of them were a success by the measure `of` (Success@n).
    """

    key: str
    title: str
    form: Literal["percent", "share", "signed"]
    of: str = ""
    at_least: int = 0

    def write(self, value: float | None) -> str:
        """A value as it stands in a cell."""
        if value is None:
            return "–"
        if self.form == "percent":
            return f"{100 * value:.1f}"
        return f"{value:+.3f}" if self.form == "signed" else f"{value:.3f}"

    def difference(self, value: float | None) -> str:
        """A difference of two values: percentages in points."""
        if value is None:
            return "–"
        return f"{100 * value:+.1f}" if self.form == "percent" else f"{value:+.3f}"


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What the paper prints: row -> column -> measure -> value.

    `percent` are the measures that it prints in percent. `note` says how it stands to ours.
    """

    title: str
    rows: Mapping[str, Mapping[str, Mapping[str, float]]]
    percent: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Design:
    """A study at one scale.

    `measures`: the success first, which is 0 or 1 a dialogue; the others are told beside it.
    `against`: the label of the run that the others are compared with. `judged`: the keys of the
    measures that the verdict speaks of. `evaluation`: settings of the evaluations alone, by key.
    `remark`: what must stand beside the numbers. A design without runs has nothing to train: its
    parts compute what they show.
    """

    runs: tuple[Run, ...] = ()
    against: str = ""
    measures: tuple[Measured, ...] = ()
    judged: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    references: tuple[Reference, ...] = ()
    in_system: bool = True
    self_play: bool = True
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    remark: str = ""
    seeds: tuple[int, ...] = ()
    """Those of this scale, where they are others than the study's."""

    def __post_init__(self) -> None:
        labels = [row.label for run in self.runs for row in run.rows]
        labels += [reference.label for reference in self.references]
        for kind, names in (
            ("rows", labels),
            ("runs", [run.label for run in self.runs]),
            ("runs' names", [run.name for run in self.runs]),
            ("columns", [column.name for column in self.columns]),
        ):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"two {kind} of a design are named {twice[0]!r}")
        for label in labels:
            if found := set(label) & set(",=:/+@"):
                raise ValueError(f"the row {label!r} must do without {min(found)!r}")
        if self.runs and self.against not in {run.label for run in self.runs}:
            raise ValueError(f"a design compares with {self.against!r}, which is none of its runs")
        if unknown := sorted(set(self.judged) - {m.key for m in self.measures}):
            raise ValueError(f"a design judges {unknown[0]!r}, which it does not measure")

    @property
    def held_out(self) -> tuple[str, ...]:
        """The columns that are meant to be held-out ones."""
        return tuple(column.name for column in self.columns if not column.known)

    @property
    def shown(self) -> tuple[str, ...]:
        """All columns, in order."""
        kept = ((self.in_system, IN_SYSTEM), (self.self_play, SELF_PLAY))
        named = tuple(column.name for column in self.columns)
        return (*named, *(name for wanted, name in kept if wanted))

    @property
    def trained(self) -> dict[str, tuple[str, ...]]:
        """The rows of each run that training made and left at its end, by the run's label."""
        return {
            run.label: tuple(r.label for r in run.rows if r.policy != "start" and r.at == 1.0)
            for run in self.runs
        }

    @property
    def rows(self) -> tuple[str, ...]:
        """All rows, in order."""
        made = tuple(row.label for run in self.runs for row in run.rows)
        return (*made, *(reference.label for reference in self.references))

    @property
    def printed_rows(self) -> dict[str, str]:
        """The paper's row beside each of ours that has one."""
        found = [row for run in self.runs for row in run.rows] + list(self.references)
        return {row.label: row.printed for row in found if row.printed}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One part of what a study ends in: Markdown, rows of the CSV, data for the JSON, a figure."""

    markdown: str = ""
    rows: Sequence[Mapping[str, Any]] = ()
    data: Any = None
    figure: Figure | None = None


Part = Callable[[Any], Piece]
"""Makes its piece of `studies.results.Results`."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """One table or figure. `about`: the question that it asks, in a sentence or two.

    `parts` in the order of the page, by their headings; one of them at most has a figure.
    """

    name: str
    title: str
    about: str
    designs: Mapping[str, Design]
    parts: Mapping[str, Part]
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    printed: Printed | None = None


def resolved(changes: Mapping[str, Any], missing: set[str]) -> dict[str, Any]:
    """Values with the environment's in place; the names of variables that are not set go to
    `missing`, and stand in the place of their values."""
    found = {}
    for key, value in changes.items():
        if isinstance(value, Env):
            if not os.environ.get(value.name):
                missing.add(value.name)
            held = os.environ.get(value.name) or f"${value.name}"
            value = value.name if value.named else held
        found[key] = value
    return found


def need(missing: set[str], study: str) -> None:
    """Raises UserError if environment variables are missing."""
    if missing:
        names = ", ".join(sorted(missing))
        raise UserError(
            f"{study} at SCALE=paper needs the environment variables {names}, which are not set; "
            "docs/reproducing.md says what each holds"
        )


def options(changes: Mapping[str, Any]) -> list[str]:
    """Changes of a config as a command's options."""
    return [f"--config.{key}={_text(value)}" for key, value in changes.items()]


def _text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value)) or "()"
    return str(value)
