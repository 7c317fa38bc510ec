"""Reads a run folder: the config, the metrics, the evaluation, and which dialogues there are.

A run that was killed may have left half a last line; it is dropped and noted. Anything else that
cannot be read is the user's to know.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ibrl_jax.errors import UserError

_DIALOGUES = re.compile(r"iter_(\d+)\.jsonl")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run folder holds.

    `metrics` has one row an iteration, in order; `dialogues` maps an iteration to its file; `notes`
    says what was missing or cut short, in sentences.
    """

    path: Path
    config: Mapping[str, Any] | None
    summary: Mapping[str, Any] | None
    metrics: Sequence[Mapping[str, Any]]
    evaluation: Mapping[str, Any] | None
    dialogues: Mapping[int, Path]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def roles(self) -> list[str]:
        """Every role with metrics, in the order of the first row that names it."""
        return list(dict.fromkeys(role for row in self.metrics for role in row.get("roles", {})))


def read_run(run_dir: Path) -> Run:
    """Reads a folder `runs/<name>/seed<k>`.

    Raises UserError if there is no such folder, no metrics in it, or a file in it that is not JSON.
    """
    path = Path(run_dir).resolve()
    if not path.is_dir():
        raise UserError(
            f"There is no run folder {run_dir}; "
            "give one that training wrote, such as runs/mini/seed0."
        )
    notes: list[str] = []
    metrics_file = path / "metrics.jsonl"
    metrics = read_metrics(metrics_file, notes) if metrics_file.is_file() else []
    if not metrics:
        raise UserError(
            f"{run_dir} holds no metrics (metrics.jsonl is missing or empty); "
            "train at least one iteration before asking for its report."
        )
    found = {
        name: _read_json(path / f"{name}.json") for name in ("config", "summary", "evaluation")
    }
    dialogues = {
        int(match[1]): file
        for file in sorted((path / "dialogues").glob("iter_*.jsonl"))
        if (match := _DIALOGUES.fullmatch(file.name))
    }
    if found["evaluation"] is None:
        notes.append("This run has not been evaluated yet, so there is no result table.")
    if not dialogues:
        notes.append("No dialogues were kept for this run, so there are no transcripts.")
    return Run(
        path=path,
        config=found["config"],
        summary=found["summary"],
        metrics=metrics,
        evaluation=found["evaluation"],
        dialogues=dialogues,
        notes=tuple(notes),
    )


def read_metrics(path: Path, notes: list[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, one an iteration, in order.

    Of an iteration that has several, the last one counts. Errors and notes are those of
    `read_lines`, and a row that names no iteration is a UserError too.
    """
    rows: dict[int, dict[str, Any]] = {}
    for number, row in enumerate(read_lines(path, notes), 1):
        if not isinstance(row.get("iteration"), int):
            raise UserError(
                f"Row {number} of {path} names no iteration; remove the line or restore the file."
            )
        rows[row["iteration"]] = row
    return [rows[k] for k in sorted(rows)]


def read_lines(path: Path, notes: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, one at a time.

    A last line cut short is left out (and noted); any other line that is not an object is a
    UserError.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                if line.endswith("\n"):
                    raise UserError(
                        f"Line {number} of {path} is not a JSON object ({error}); "
                        "remove the line or restore the file."
                    ) from None
                if notes is not None:
                    notes.append(f"The last line of {path.name} was cut short and is left out.")
                return
            yield row


def series(metrics: Sequence[Mapping[str, Any]], *keys: str) -> np.ndarray:
    """One value a row, [K], found by nested keys; NaN where it is missing, null or no number."""
    return np.array([_number(row, keys) for row in metrics], np.float64)


def iterations(metrics: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """The iteration of each row, [K]."""
    return np.array([row["iteration"] for row in metrics], np.int64)


def ema(values: np.ndarray, alpha: float) -> np.ndarray:
    """Exponential moving average [K]: e_k = alpha x_k + (1 - alpha) e_(k-1), e_0 = x_0.

    A missing value repeats the average so far; before the first value it is NaN.
    """
    smooth, last = np.full(values.shape, np.nan), np.nan
    for k, value in enumerate(values):
        if np.isfinite(value):
            last = value if np.isnan(last) else alpha * value + (1 - alpha) * last
        smooth[k] = last
    return smooth


def _number(row: Any, keys: Sequence[str]) -> float:
    for key in keys:
        if not isinstance(row, Mapping) or key not in row:
            return np.nan
        row = row[key]
    return float(row) if isinstance(row, (int, float)) else np.nan


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); restore the file or remove it.") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object; restore the file or remove it.")
    return found
