"""What a study ends in: `<study>.md`, `.csv`, `.json`, `.svg` and `.png` in one folder."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from ibrl_jax.studies.declare import Piece
from ibrl_jax.studies.figures import as_png, as_svg
from ibrl_jax.studies.plan import RESULTS_VERSION, shaping
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.tables import groups
from ibrl_jax.trainer.run import as_json, read_json, write_json, write_text
from ibrl_jax.whole import replacing

_PACKAGES = ("ibrl-jax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy", "statsmodels")
_FROM_EVALUATIONS = ("policies", "columns", "settings", "versions", "leakage", "coverage")
"""What of an evaluation.json is taken over, where it is there."""


def write_study(results: Results, to: Path, command: str) -> dict[str, Piece]:
    """Lay everything out and write it; gives the parts by heading.

    Raises:
        UserError: a file that it is made of is damaged.
    """
    study = results.study
    pieces = {heading: part(results) for heading, part in study.parts.items()}
    figure = next((piece.figure for piece in pieces.values() if piece.figure is not None), None)
    to.mkdir(parents=True, exist_ok=True)
    if figure is not None:
        _write_bytes(to / f"{study.name}.svg", as_svg(figure))
        _write_bytes(to / f"{study.name}.png", as_png(figure))
    write_text(to / f"{study.name}.md", page(results, pieces, command))
    write_text(to / f"{study.name}.csv", csv_text(pieces))
    write_json(to / f"{study.name}.json", document(results, pieces, command))
    return pieces


def coverage(results: Results) -> dict[str, int]:
    """Evaluations and dialogues: how many there are, of how many there should be."""
    cells = [cell for by_seed in results.cells.values() for cell in by_seed.values()]
    return {
        "evaluations": len(results.evaluations),
        "evaluations_planned": len(results.plan.evaluations),
        "dialogues": sum(cell.n for cell in cells),
        "dialogues_planned": sum(cell.planned for cell in cells),
    }


def page(results: Results, pieces: Mapping[str, Piece], command: str) -> str:
    """The page in Markdown."""
    study, found = results.study, coverage(results)
    lines = [f"# {study.title}", "", study.about, ""]
    if results.design.remark:
        lines += [results.design.remark, ""]
    seeds = ", ".join(map(str, results.seeds))
    told = f"Scale: {results.scale}. Seeds: {seeds}"
    if results.design.runs:
        told += " (each a start and a training of its own)"
    if results.plan.evaluations:
        told += (
            f". Coverage: {found['evaluations']} of {found['evaluations_planned']} evaluations, "
            f"{found['dialogues']:,} of their {found['dialogues_planned']:,} dialogues came to an "
            "end"
        )
    lines += [f"{told}.", "", f"Command: `{command}`", ""]
    if said := [*results.missing, *not_held_out(results), *shared(results)]:
        lines += ["To be known:", "", *(f"- {sentence}" for sentence in said), ""]
    for heading, piece in pieces.items():
        if piece.figure is not None:
            lines += [f"## {heading}", "", f"![{heading}]({study.name}.svg)", ""]
            if piece.markdown:
                lines += [piece.markdown.rstrip(), ""]
        elif piece.markdown:
            lines += [f"## {heading}", "", piece.markdown.rstrip(), ""]
    return "\n".join(lines).rstrip() + "\n"


def not_held_out(results: Results) -> list[str]:
    """A sentence for each row for which a held-out column is none."""
    found = []
    for row in results.design.rows:
        for column in results.design.held_out:
            cells = results.cells.get((row, column), {})
            kinds = {kind for cell in cells.values() for kind in cell.kinds} - {"held-out"}
            if kinds:
                told = ", ".join(sorted(kinds))
                found.append(f"{column} is no held-out column for {row}, but {told}")
    return found


def shared(results: Results) -> list[str]:
    """A sentence for each thing that the leakage checks found in training and in evaluation."""
    found = []
    for evaluation in results.evaluations.values():
        for overlap in evaluation.get("leakage", {}).get("overlaps", ()):
            where = f", in {overlap['column']}" if overlap["column"] else ""
            found.append(
                f"training and evaluation share, by {overlap['kind']}: {overlap['what']}{where}"
            )
    return list(dict.fromkeys(found))


def csv_text(pieces: Mapping[str, Piece]) -> str:
    """All parts' rows under one head; `part` is whose they are."""
    rows = [{"part": name, **row} for name, piece in pieces.items() for row in piece.rows]
    head = list(dict.fromkeys(key for row in rows for key in row if key != "by_seed"))
    out = io.StringIO()
    writer = csv.DictWriter(out, head, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def document(results: Results, pieces: Mapping[str, Piece], command: str) -> dict[str, Any]:
    """Everything, and what is needed to make it again."""
    design = results.design
    runs: dict[str, Any] = {}
    for planned in results.plan.runs:
        run = runs.setdefault(
            planned.run.label,
            {
                "file": planned.file,
                "config": as_json(planned.config),
                "contents": shaping(planned.config).get("contents", {}),
                "seeds": {},
            },
        )
        summary = planned.folder.path / "summary.json"
        run["seeds"][str(planned.seed)] = {
            "folder": str(planned.folder.path),
            "overrides": list(planned.overrides),
            "summary": read_json(summary) if summary.is_file() else None,
        }
    evaluations = []
    for planned in results.plan.evaluations:
        what = planned.run.label if planned.run else "references"
        found = results.evaluations.get((what, planned.seed))
        entry: dict[str, Any] = {"of": what, "seed": planned.seed, "folder": str(planned.folder)}
        entry["named"] = {planned.rows[key]: name for key, name in planned.policies.items()}
        if found is not None:
            entry |= {key: found[key] for key in _FROM_EVALUATIONS if key in found}
        evaluations.append(entry)
    return {
        "study": results.study.name,
        "title": results.study.title,
        "scale": results.scale,
        "seeds": list(results.seeds),
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "results_version": RESULTS_VERSION,
        "statistics": {
            "confidence": results.statistics.confidence,
            "resamples": results.statistics.resamples,
            "permutations": results.statistics.permutations,
            "seed": results.statistics.seed,
            "clusters": "scenarios, one cluster at all seeds",
        },
        "coverage": coverage(results),
        "missing": list(results.missing),
        "not_held_out": not_held_out(results),
        "against": design.against,
        "lines": {title: list(rows) for title, rows in groups(design).items()},
        "columns": {column.name: list(column.counterparts) for column in design.columns},
        "runs": runs,
        "evaluations": evaluations,
        "parts": {name: piece.data for name, piece in pieces.items() if piece.data is not None},
    }


def versions() -> dict[str, str]:
    """Of Python and the packages that numbers depend on; those that are installed."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # a checkout that is not installed
            continue
    return found


def _write_bytes(file: Path, content: bytes) -> None:
    with replacing(file) as beside:
        beside.write_bytes(content)


def headline(results: Results, pieces: Sequence[Piece]) -> str:
    """The first table, for the terminal; of a study that trains nothing, all of its first part."""
    first = next((piece.markdown for piece in pieces if piece.markdown), "")
    return first.split("\n\n")[0] if results.design.runs else first.rstrip()
