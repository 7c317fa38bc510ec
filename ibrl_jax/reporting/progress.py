"""What a person sees while a run trains: iteration, time left, and the figures that matter.

In a terminal one line is redrawn in place; anywhere else a plain line is printed every few
iterations. A note announces each slow phase before it starts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from statistics import median
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

_WINDOW = 20  # iterations that the estimate of the time left looks back on
_TIMED = 3  # of them, before there is one: the first ones compile


class TrainingProgress:
    """Follows `total` iterations, of which `done` were finished before (a resumed run).

    `every`: iterations between plain lines when `console` is not a terminal. Use as a context
    manager.
    """

    def __init__(self, *, total: int, done: int, every: int, console: Console):
        self._total, self._done, self._every, self._console = total, done, every, console
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self._kl: dict[str, Any] = {}
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.completed:.0f}[/]/{task.total:.0f}"),
                BarColumn(bar_width=24),
                TextColumn("[dim]{task.fields[left]}[/]"),
                TextColumn("{task.fields[figures]}"),
                console=console,
                refresh_per_second=4,
            )
            self._task = self._bar.add_task(
                "", total=total, completed=done, left="", figures="starting"
            )

    def __enter__(self) -> TrainingProgress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar:
            self._bar.stop()

    def note(self, text: str) -> None:
        """A line that stays: said before a slow phase, or when something happened."""
        self._console.print(f"[dim]· {escape(text)}[/]", highlight=False, soft_wrap=True)

    def update(self, row: Mapping[str, Any]) -> None:
        """An iteration is over; `row` is its row of metrics.jsonl."""
        self._done += 1
        row = self._with_last_kl(row)
        self._recent.append(float(row["seconds"]["total"]))
        left = self.left()
        if self._bar:
            self._bar.update(
                self._task, completed=self._done, left=left, figures=escape(figures(row))
            )
        elif self._done % self._every == 0 or self._done == self._total or len(self._recent) == 1:
            self._console.print(
                f"{self._done}/{self._total}  {left}  {figures(row)}",
                highlight=False,
                markup=False,
                soft_wrap=True,
            )

    def _with_last_kl(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The row, with the last known KL of each role that did not update in it."""
        roles = row.get("roles", {})
        self._kl |= {role: values["kl"] for role, values in roles.items() if "kl" in values}
        known = {r: {**v, "kl": self._kl[r]} if r in self._kl else v for r, v in roles.items()}
        return {**row, "roles": known}

    def left(self) -> str:
        """The time left by the median of the last iterations; one that compiled moves it little."""
        left = self._total - self._done
        if left and len(self._recent) < _TIMED:
            return "time left unknown"
        return f"{duration(median(self._recent or [0]) * left)} left"


def figures(row: Mapping[str, Any]) -> str:
    """The figures that matter of one iteration, on one line."""
    roles = row.get("roles", {})
    parts = [
        name + " " + " ".join(f"{role} {_number(values.get(key), spec)}" for role, values in known)
        for name, key, spec in (("reward", "reward", "+.3f"), ("KL", "kl", ".4f"))
        if (known := [(r, v) for r, v in roles.items() if _number(v.get(key), spec) != "–"])
    ]
    for name in ("agreement", "success"):
        share = row.get("dialogues", {}).get(name)
        if _number(share, ".0%") != "–":
            parts.append(f"{name} {share:.0%}")
    coverage = row.get("coverage")
    if coverage is not None and coverage < 1:
        parts.append(f"coverage {coverage:.1%}")
    parts.append(f"{row['seconds']['total']:.2f} s/iter")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """`45s`, `3m 05s`, `2h 10m`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


def _number(value: Any, spec: str) -> str:
    known = isinstance(value, (int, float)) and math.isfinite(value)
    return format(value, spec) if known else "–"
