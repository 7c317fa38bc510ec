"""Parts that train nothing: Table 7's composition of profiles, Table 13's human validation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ibrl_jax.domains.telesales.annotation import KEY, read_decisions
from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.composition import (
    COMPOSITIONS,
    PAPER_SIZE,
    Composition,
)
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.tables import Beside, table7
from ibrl_jax.domains.telesales.story import compile_offline, with_story
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.human_validation import JOINT, HumanValidation, human_validation
from ibrl_jax.evaluation.statistics import Kappa, StatisticsSettings
from ibrl_jax.reporting.style import INK, colour, house_style
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Piece
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.tables import markdown

ANNOTATION = "IBRL_ANNOTATION"
"""Names a folder with `key.json`, `a.csv`, `b.csv`: a blinded sheet that two people filled in."""

_JOINT_HEADS = ("both: consent", "both: none", "A alone", "B alone")


def composition(results: Results) -> Piece:
    """Table 7 of freshly made profiles, in both compositions, a table a seed."""
    tables = {seed: composed(seed) for seed in results.seeds}
    rows = [
        {"seed": seed, **dict(zip(("dimension", "level", *table.head[2:]), row, strict=True))}
        for seed, table in tables.items()
        for row in table.rows
    ]
    return Piece(
        markdown="\n\n".join(table.markdown() for table in tables.values()) + "\n",
        rows=rows,
        data={str(seed): _json(table) for seed, table in tables.items()},
        figure=_shares(results.study.name, next(iter(tables.values()))),
    )


def composed(
    seed: int,
    size: int = PAPER_SIZE,
    language: Language = "zh",
    kinds: Sequence[Composition] = COMPOSITIONS,
) -> Beside:
    """Table 7 of profiles made with a seed, in each of these compositions."""
    return table7(
        *(
            [
                with_story(profile, compile_offline(profile, seed))
                for profile in evaluation_profiles(seed, size, kind, language)
            ]
            for kind in kinds
        )
    )


def _json(table: Beside) -> dict[str, Any]:
    return {
        "title": table.title,
        "head": list(table.head),
        "rows": [list(row) for row in table.rows],
        "notes": list(table.notes),
    }


def _shares(salt: str, table: Beside) -> Figure:
    """A bar a level and column of the table: the share of profiles."""
    rows = [row for row in table.rows if all("%" in cell for cell in row[2:])]
    names = table.head[2:]
    height = 0.8 / len(names)
    with house_style(salt):
        figure = Figure(figsize=(6.6, 0.34 * len(rows) + 0.9))
        axes = figure.subplots()
        at = np.arange(len(rows))
        for i, name in enumerate(names):
            shares = [float(row[2 + i].partition("(")[2].rstrip("%)")) for row in rows]
            where = at + (i - (len(names) - 1) / 2) * height
            axes.barh(where, shares, height * 0.9, color=colour(i), linewidth=0, label=name)
        axes.set_yticks(at, [f"{row[0].lower()}: {row[1]}" for row in rows])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.invert_yaxis()
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("profiles, %")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3, handlelength=1)
    return figure


def validation(results: Results) -> Piece:
    """Table 13: the paper's counts with what follows from them, and ours where there are any.

    Raises:
        UserError: `IBRL_ANNOTATION` names no folder of an annotation, or a file of it is damaged.
    """
    named = os.environ.get(ANNOTATION, "")
    found = {"the paper's": printed_validation(results.statistics)}
    if named:
        found["ours"] = annotated(Path(named), results.statistics)
    rows = [row for whose, table in found.items() for row in _rows(whose, table)]
    text = "".join(_section(whose, table) for whose, table in found.items())
    if not named:
        text += (
            "No calls of ours have been annotated: here are the paper's counts alone, and the "
            "kappas that follow from them. `python -m ibrl_jax.evaluation.human_validation` makes "
            f"a blinded sheet of calls; the environment variable {ANNOTATION} names the folder "
            f"with its {KEY} and two copies that people have filled in, a.csv and b.csv.\n"
        )
    return Piece(markdown=text, rows=rows, data=rows, figure=_kappas(results.study.name, rows))


def printed_validation(settings: StatisticsSettings) -> HumanValidation:
    """The paper's own table, from its counts."""
    return human_validation(
        [
            (recorded, a, b)
            for recorded, row in paper.TABLE13.items()
            for (a, b), count in row.items()
            for _ in range(count)
        ],
        settings,
    )


def annotated(folder: Path, settings: StatisticsSettings) -> HumanValidation:
    """The table of a folder of `key.json`, `a.csv` and `b.csv`.

    Raises:
        UserError: a file is missing or damaged.
    """
    files = [folder / name for name in (KEY, "a.csv", "b.csv")]
    if missing := [file.name for file in files if not file.is_file()]:
        raise UserError(
            f"{ANNOTATION} is {folder}, which lacks {', '.join(missing)}; it names a folder with "
            f"the {KEY} of an annotation and its two sheets, a.csv and b.csv"
        )
    decisions = read_decisions(*files)
    return human_validation(((d.recorded, d.a, d.b) for d in decisions), settings)


def _pairs(table: HumanValidation) -> Iterator[tuple[str, Kappa]]:
    kappas = (table.annotators, table.recorded_a, table.recorded_b)
    yield from zip(paper.TABLE13_KAPPAS, kappas, strict=True)


def _rows(whose: str, table: HumanValidation) -> list[dict[str, Any]]:
    return [
        {
            "row": pair,
            "of": whose,
            "agreement": found.agreement,
            "value": found.value,
            "low": found.interval and found.interval[0],
            "high": found.interval and found.interval[1],
            "n": found.n,
            "printed": paper.TABLE13_KAPPAS[pair] if whose == "the paper's" else None,
            "note": found.note,
        }
        for pair, found in _pairs(table)
    ]


def _section(whose: str, table: HumanValidation) -> str:
    names = ((True, "recorded as added"), (False, "recorded as not added"))
    counts = [[name, *(table.counts[recorded][pair] for pair in JOINT)] for recorded, name in names]
    lines = [[str(cell) for cell in row] + [str(sum(row[1:]))] for row in counts]
    text = f"{whose[0].upper()}{whose[1:]}, {table.n} calls:\n\n"
    text += markdown(["", *_JOINT_HEADS, "total"], lines) + "\n\n"
    told = [[pair, f"{found.agreement:.1%}", _kappa(found)] for pair, found in _pairs(table)]
    head = ["Between", "Agreement", "Kappa [interval]"]
    if whose == "the paper's":
        head.append("As printed")
        for row in told:
            row.append(f"{paper.TABLE13_KAPPAS[row[0]]:.2f}")
    return text + markdown(head, told) + "\n\n"


def _kappa(found: Kappa) -> str:
    if found.value is None:
        return found.note
    if found.interval is None:
        return f"{found.value:.4f}"
    return f"{found.value:.4f} [{found.interval[0]:.2f}, {found.interval[1]:.2f}]"


def _kappas(salt: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A dot and an interval a kappa."""
    pairs = list(dict.fromkeys(row["row"] for row in rows))
    whose = list(dict.fromkeys(row["of"] for row in rows))
    with house_style(salt):
        figure = Figure(figsize=(6.0, 0.6 * len(pairs) + 1.0))
        axes = figure.subplots()
        for i, name in enumerate(whose):
            labelled = False
            for row in rows:
                if row["of"] != name or row["value"] is None:
                    continue
                y = pairs.index(row["row"]) + 0.22 * (i - (len(whose) - 1) / 2)
                label = None if labelled else name
                axes.plot([row["value"]], [y], "o", color=colour(i), label=label)
                labelled = True
                if row["low"] is not None:
                    axes.plot([row["low"], row["high"]], [y, y], color=colour(i), linewidth=1.2)
        axes.set_yticks(range(len(pairs)), pairs)
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.grid(visible=True, axis="x")
        axes.set_xlim(right=1.0)
        axes.set_xlabel("Cohen's kappa")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=2)
    return figure
