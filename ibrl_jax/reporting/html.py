"""The report of a run: one self-contained HTML file, with no network and no script but its own.

Text of dialogues reaches the page only as JSON that the page's script turns into text nodes;
everything else is escaped by the templates. A content security policy admits that one script by
its hash and nothing else, so a turn that holds markup stays a turn.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from ibrl_jax.errors import UserError
from ibrl_jax.names import ALL_HELD_OUT
from ibrl_jax.reporting import figures
from ibrl_jax.reporting.audits import HEADS, audit_rows
from ibrl_jax.reporting.progress import duration
from ibrl_jax.reporting.runs import Run, read_run, series
from ibrl_jax.reporting.style import DARK, LIGHT, css_variables
from ibrl_jax.reporting.tables import Measure, Row, Table, lay_out, p_value, percent, share
from ibrl_jax.reporting.transcripts import Sample, embed, sample_groups
from ibrl_jax.reporting.unfinished import audited, unfinished
from ibrl_jax.whole import replacing

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure of the page's head; `change` is what to see it against, `good` if it is better."""

    label: str
    value: str
    change: str = ""
    good: bool | None = None


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` into a run folder and returns its path.

    A run without an evaluation or without dialogues gets a report that says so. Raises UserError
    when there is no such folder, it has no metrics, or a file in it cannot be read.
    """
    run = read_run(run_dir)
    path = run.path / "report.html"
    text = render(run)
    with replacing(path) as beside:
        beside.write_text(text, encoding="utf-8")
    return path


def render(run: Run) -> str:
    """The page as text."""
    with _damage(run, "evaluation.json"):
        table = lay_out(run.evaluation) if run.evaluation else None
    with _damage(run, "dialogues/iter_*.jsonl"):
        sample = sample_groups(run.dialogues) if run.dialogues else Sample(groups=[], note="")
    with _damage(run, "metrics.jsonl", "evaluation.json", "dialogues/iter_*.jsonl"):
        return _page(run, table, sample)


_DAMAGE = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
    jinja2.UndefinedError,
)


@contextmanager
def _damage(run: Run, *files: str) -> Iterator[None]:
    """Rows that lack what a report needs, or hold another kind of it, are the user's to know."""
    try:
        yield
    except _DAMAGE as error:
        raise UserError(
            f"{' or '.join(str(run.path / file) for file in files)} is damaged and cannot be laid "
            f"out ({type(error).__name__}: {error}); restore the file or remove it."
        ) from error


def _page(run: Run, table: Table | None, sample: Sample) -> str:
    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, share=share, p_value=p_value, plain=_plain)
    return environment.get_template("report.html").render(
        run=run,
        title=f"{run.name} · IB-RL report",
        headline=headline(run, table),
        tiles=_tiles(run, table),
        table=table,
        remark=_remark(run, table),
        settings=_flat(_circumstances(run.evaluation or {})),
        comparisons=(run.evaluation or {}).get("comparisons") or [],
        audit_heads=HEADS,
        audits=audit_rows(table) if table and table.auditor else [],
        audited=audited(run.evaluation or {}),
        unfinished=unfinished(run.evaluation or {}),
        figures=_figures(run, table),
        config=_flat(run.config or {}),
        sample=sample,
        data=Markup(embed({"groups": sample.groups})),
        script=Markup(script),
        script_hash=digest,
        css=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        light=Markup(css_variables(LIGHT)),
        dark=Markup(css_variables(DARK)),
    )


def headline(run: Run, table: Table | None) -> str:
    """What came out, in a sentence."""
    done = len(run.metrics)
    after = f"After {done} iteration{'' if done == 1 else 's'}"
    held = _held_out(table) if table else None
    if table and held and (now := _mean(held.trained, held.columns, table.main.key)) is not None:
        names = list(dict.fromkeys(row.policy for row in held.met))
        one, several = table.deed
        whose = f"{' and '.join(names)} on average {several}"
        who = f"{names[0]} {one}" if len(names) == 1 else whose
        text = f"{after}, {who} in {percent(now)}% of dialogues with {held.whom}"
        was = _mean(held.start, held.columns, table.main.key)
        if was is not None:
            gap = 100 * (now - was)
            how = f"{abs(gap):.1f} points {'above' if gap > 0 else 'below'}"
            whose = "its" if len(names) == 1 else "their"
            text += f", {how if abs(gap) >= 0.05 else 'no more and no less than'} {whose} start"
            text += _intervals(run, held, table, table.main)
        for second in [m for m in table.beside if m.compared][:1]:
            before, then = (_mean(rows, held.columns, second.key) for rows in held.sides)
            if (
                before is not None
                and then is not None
                and second.write(before) != second.write(then)
            ):
                moved = "rises" if then > before else "falls"
                text += f"; {second.title.lower()} {moved} from {second.write(before)} to "
                text += second.write(then) + _intervals(run, held, table, second)
        return text + "."
    moves = [
        f"{role} from {first:.2f} to {last:.2f}"
        for role in run.roles
        if (ends := _ends(series(run.metrics, "roles", role, "reward"))) is not None
        for first, last in [ends]
    ]
    if not moves:
        return f"{after}, no role has a scored reward."
    return f"{after}, mean reward went {' and '.join(moves)}."


@dataclass(frozen=True, kw_only=True)
class _HeldOut:
    start: Sequence[Row]
    trained: Sequence[Row]
    columns: Sequence[int]
    whom: str

    @property
    def met(self) -> Sequence[Row]:
        """The trained policies that have a cell in the columns."""
        return [row for row in self.trained if any(row.cells[i] for i in self.columns)]

    @property
    def sides(self) -> tuple[Sequence[Row], Sequence[Row]]:
        return self.start, self.trained


def _held_out(table: Table) -> _HeldOut | None:
    """The rows of the start and of the trained policies, over held-out counterparts if any."""
    starts = [row for row in table.rows if "start" in row.policy.lower()]
    others = [row for row in table.rows if row not in starts]
    if not others:
        return None
    held = [i for i, column in enumerate(table.columns) if column.kind == "held-out"]
    return _HeldOut(
        start=starts,
        trained=others,
        columns=held or list(range(len(table.columns))),
        whom="held-out counterparts" if held else "the counterparts it was evaluated with",
    )


def _intervals(run: Run, held: _HeldOut, table: Table, measure: Measure) -> str:
    """Each policy's interval of its difference from the start, in brackets; empty without one.

    They are those of the column that pools what is averaged, or is all of it.
    """
    evaluation = run.evaluation or {}
    column = table.columns[held.columns[0]].name
    if column != ALL_HELD_OUT and len(held.columns) > 1:
        return ""
    starts, names = ([row.policy for row in rows] for rows in (held.start, held.met))
    by, form = (100, "+.1f") if measure.form == "percent" else (1, "+.3f")
    found = [
        (one["policy"], f"{by * one['ci'][0]:{form}} to {by * one['ci'][1]:{form}}")
        for one in evaluation.get("comparisons") or []
        if (one["column"], one.get("measure")) == (column, measure.key)
        and one["reference"] in starts
        and one["policy"] in names
        and one.get("ci")
    ]
    if not found:
        return ""
    level = evaluation["settings"].get("statistics", {}).get("confidence", 0.95)
    told = [text if len(set(names)) == 1 else f"{name} {text}" for name, text in found]
    return f" ({level:.0%} interval{'s' if len(found) > 1 else ''}: {', '.join(told)})"


def _tiles(run: Run, table: Table | None) -> list[Tile]:
    tiles = []
    if table and (held := _held_out(table)):
        for measure in [m for m in (table.main, *table.beside) if m.compared][:2]:
            was, now = (_mean(rows, held.columns, measure.key) for rows in held.sides)
            write = measure.write
            label = measure.title.lower() + (", %" if measure.form == "percent" else "")
            if now is not None:
                changed = was is not None and write(was) != write(now)
                tiles.append(
                    Tile(
                        label=f"{'held-out ' if 'held-out' in held.whom else ''}{label}",
                        value=write(now),
                        change="" if was is None else f"start {write(was)}",
                        good=(now > was) if was is not None and changed else None,
                    )
                )
    seconds = series(run.metrics, "seconds", "total")
    tiles.append(
        Tile(
            label="training time",
            value=duration(float(np.nansum(seconds))),
            change=f"{np.median(seconds[np.isfinite(seconds)]):.2f} s an iteration"
            if np.isfinite(seconds).any()
            else "",
        )
    )
    coverage = series(run.metrics, "coverage")
    if np.isfinite(coverage).any():
        worst = float(np.nanmin(coverage))
        tiles.append(
            Tile(
                label="rewards scored, %",
                value=percent(worst),
                change="lowest iteration",
                good=None if worst == 1 else False,
            )
        )
    gaps = [series(run.metrics, "roles", role, "sampler_trainer_max") for role in run.roles]
    if gaps and np.isfinite(gaps).any():
        tiles.append(
            Tile(
                label="sampler–trainer difference",
                value=f"{np.nanmax(gaps):.1e}",
                change="largest log-prob gap",
            )
        )
    return tiles


def _figures(run: Run, table: Table | None) -> Mapping[str, Any]:
    return {
        "rewards": Markup(figures.reward_curves(run.metrics, run.roles)),
        "agreement": Markup(figures.agreement_bars(table) or "") if table else "",
        "health": [
            (name, Markup(svg)) for name, svg in figures.health_panels(run.metrics, run.roles)
        ],
        "seconds": Markup(figures.stage_seconds(run.metrics)),
        "endings": Markup(figures.endings(run.metrics) or ""),
    }


def _circumstances(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """How an evaluation was made: its settings, and what its endpoints were asked and cost."""
    settings, endpoints = (evaluation.get(key) or {} for key in ("settings", "endpoints"))
    return {**settings, "endpoints": endpoints} if endpoints else dict(settings)


def _remark(run: Run, table: Table | None) -> str:
    """What has to stand beside the figures, by the evaluation or by the run itself."""
    return (table.remark if table else "") or str((run.summary or {}).get("remark") or "")


def _mean(rows: Sequence[Row], columns: Sequence[int], measure: str) -> float | None:
    values = [
        value
        for row in rows
        for i in columns
        if (cell := row.cells[i]) is not None and (value := cell.number(measure)) is not None
    ]
    return sum(values) / len(values) if values else None


def _ends(values: np.ndarray) -> tuple[float, float] | None:
    """Means of the first and the last tenth."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    tenth = max(1, known.size // 10)
    return float(known[:tenth].mean()), float(known[-tenth:].mean())


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            found += _flat(value, f"{name}.")
        else:
            found.append((name, _plain(value)))
    return found


def _plain(value: Any) -> str:
    """A setting as one reads it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_plain(item)}" for key, item in value.items())
    return str(value)
