"""What a person sees of a queue: a line a job, and when all of it will be done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ibrl_jax.jobs.processes import Ending, Job, Running
from ibrl_jax.reporting.progress import duration

_LAST_WORDS = 6
"""Lines of its log that a failed process is quoted with."""
_LINES = 12
"""With more jobs than these, a terminal shows those that run alone."""


@dataclass
class Pace:
    """How far a job is, in rows or (of one without rows) as a whole, and the seconds it has had."""

    kind: str
    units: int
    done: int = 0
    seconds: float = 0.0
    timed: int = 0
    """Units that were done in `seconds`; those of an earlier start were not."""
    over: bool = False


def time_left(paces: Sequence[Pace], at_once: int) -> str:
    """When all will be done: each kind at the rate of its jobs so far, `at_once` at a time.

    A kind of which nothing has been timed yet is named in place of a guess.
    """
    rates: dict[str, float] = {}
    for kind in {pace.kind for pace in paces}:
        alike = [pace for pace in paces if pace.kind == kind and pace.timed]
        if timed := sum(pace.timed for pace in alike):
            rates[kind] = sum(pace.seconds for pace in alike) / timed
    waiting = [pace for pace in paces if not pace.over]
    unknown = sorted({pace.kind for pace in waiting} - set(rates))
    known = [(pace.units - pace.done) * rates[pace.kind] for pace in waiting if pace.kind in rates]
    if not known:
        return "time left unknown" if unknown else "nothing left"
    left = max(sum(known) / at_once, *known)
    text = f"about {duration(left)} left"
    return f"{text}, and the time of: {', '.join(unknown)} (none timed yet)" if unknown else text


class Board:
    """One line a job: redrawn in place in a terminal, elsewhere printed when there is news.

    `keep` is given every line on a job's beginning and end, wherever it is shown.
    """

    def __init__(
        self, jobs: Sequence[Job], console: Console, at_once: int, keep: Callable[[str], None]
    ) -> None:
        self._console, self._at_once, self._keep = console, at_once, keep
        self._paces = {
            job.name: Pace(kind=job.kind, units=max(1, job.total), over=job.finished)
            for job in jobs
        }
        self._many = len(jobs) > _LINES
        self._quarters = {job.name: 0 for job in jobs}
        self._tasks: dict[str, TaskID] = {}
        self._all: TaskID | None = None
        self._bars: Progress | None = None
        if console.is_terminal:
            self._bars = Progress(
                TextColumn("[bold]{task.description}[/]"),
                TextColumn("{task.completed:.0f}/{task.total:.0f}"),
                BarColumn(bar_width=20),
                TextColumn("{task.fields[news]}"),
                console=console,
                refresh_per_second=4,
            )
        for job in jobs:
            news = "finished before, not run again" if job.finished else "waits"
            if self._bars:
                done = (job.total or 1) if job.finished else 0
                self._tasks[job.name] = self._bars.add_task(
                    escape(job.name),
                    total=job.total or 1,
                    completed=done,
                    news=news,
                    visible=not self._many,
                )
            elif job.finished:
                self._say(f"{job.name}: {news}")
        if self._bars and len(jobs) > 1:
            self._all = self._bars.add_task("all jobs", total=len(jobs), news="")

    def __enter__(self) -> Board:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def begun(self, job: Job) -> None:
        self._keep(f"{job.name}: begins, its log is {job.log}")
        if self._bars:
            self._bars.update(self._tasks[job.name], visible=True)
        else:
            self._say(f"{job.name}: begins, its log is {job.log}")

    def look(self, one: Running) -> None:
        one.look()
        self._pace(one)
        total = one.job.total
        if self._bars:
            self._redraw(one, self._news(one))
            self._redraw_all()
        elif (
            total
            and one.shown
            and (quarter := 4 * one.rows // total) > self._quarters[one.job.name]
        ):
            self._quarters[one.job.name] = quarter
            self._say(f"{one.job.name}: {one.rows}/{total}  {one.shown}")

    def ended(self, one: Running, code: int, ending: Ending) -> None:
        one.look()
        pace = self._pace(one)
        pace.over = True
        if ending == "done" and not one.job.total:
            pace.done = pace.timed = 1
        lines = [f"{one.job.name}: {ending} after {duration(pace.seconds)}"]
        if ending == "failed":
            lines.append(f"{one.job.name} ended with exit code {code}; {one.job.log} ends:")
            lines += [f"    {line}" for line in one.last_words(_LAST_WORDS)]
        for line in lines:
            self._keep(line)
        if self._bars:
            self._redraw(one, lines[0].partition(": ")[2])
            self._bars.update(self._tasks[one.job.name], visible=not self._many)
            self._redraw_all()
        for line in lines[1:] if self._bars and not self._many else lines:
            self._say(line)
        if len(self._paces) > 1 and not self._bars:
            self._say(self.all_told())

    def given_up(self, job: Job, needed: str) -> None:
        """A job will not begin, since one that it needs did not end well."""
        self._paces[job.name].over = True
        line = f"{job.name}: not begun, since it needs {needed}"
        self._keep(line)
        self._say(line)

    def all_told(self) -> str:
        """How many jobs are over, and the time left."""
        over = sum(pace.over for pace in self._paces.values())
        left = time_left(list(self._paces.values()), self._at_once)
        return f"{over} of {len(self._paces)} jobs over, {left}"

    def _pace(self, one: Running) -> Pace:
        pace = self._paces[one.job.name]
        pace.seconds = time.monotonic() - one.began
        if one.job.total:
            pace.done = min(one.rows, one.job.total)
            pace.timed = max(0, one.rows - one.rows_before)
        return pace

    def _news(self, one: Running) -> str:
        """The figures of the last iteration; before the first and after the last, the last words"""
        if one.shown and one.rows < one.job.total:
            return one.shown
        words = one.last_words(1)
        return words[0].removeprefix("· ") if words else ""

    def _redraw(self, one: Running, news: str) -> None:
        assert self._bars is not None
        done = self._paces[one.job.name].done
        self._bars.update(self._tasks[one.job.name], completed=done, news=escape(news))

    def _redraw_all(self) -> None:
        if self._bars and self._all is not None:
            over = sum(pace.over for pace in self._paces.values())
            news = time_left(list(self._paces.values()), self._at_once)
            self._bars.update(self._all, completed=over, news=news)

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)
