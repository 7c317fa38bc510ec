"""Several processes on one machine, each on cores of its own, from a queue.

Networks as small as ours leave a second core idle half of the time, while two processes of one core
each leave none. So a machine's cores are cut into equal shares, and each process that runs is
pinned to one of them; what it starts takes its number of threads from there. It writes what it has
to say to `log.txt` in its folder, and how far it is is read from the `metrics.jsonl` that grows
there.

A process that fails leaves the others alone. Ctrl-C is handed on: it lets what runs come to its own
gentle end, and nothing new begins.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from ibrl_jax.errors import UserError
from ibrl_jax.reporting.progress import duration, figures

LOG = "log.txt"
_LOOKS = 0.1
"""Seconds between looks at what runs."""
_LAST_WORDS = 6
"""Lines of its log that a failed process is quoted with."""
_STOPPED = (130, -signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command and the folder it works in.

    `total`: the rows that its metrics.jsonl will have. `finished`: all of it was done before.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    total: int
    finished: bool

    @property
    def log(self) -> Path:
        return self.folder / LOG


Ending = Literal["finished before", "done", "failed", "stopped", "not begun"]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a job."""

    job: Job
    ending: Ending


def shares(jobs: int) -> list[tuple[int, ...]]:
    """The cores that this process may use, in `jobs` shares; a remainder goes to the first ones.

    Raises:
        UserError: there are not that many cores.
    """
    mine = sorted(_cores())
    if not 1 <= jobs <= len(mine):
        raise UserError(
            f"jobs is {jobs}; each has cores of its own, so it must be 1 to {len(mine)} here"
        )
    return [tuple(mine[i::jobs]) for i in range(jobs)]


def cores() -> int:
    """How many cores this process may use."""
    return len(_cores())


def run_jobs(jobs: Sequence[Job], at_once: int, console: Console) -> list[Ended]:
    """Run all that are not finished, `at_once` of them at a time, and say how they do.

    Raises:
        UserError: there are not that many cores.
    """
    free = shares(at_once)
    endings: dict[str, Ending] = {
        job.name: "finished before" if job.finished else "not begun" for job in jobs
    }
    queue = deque(job for job in jobs if not job.finished)
    running: list[_Running] = []
    with _Board(jobs, console) as board, _interrupts() as asked:
        try:
            while running or (queue and not asked.times):
                while queue and free and not asked.times:
                    running.append(_Running.start(queue.popleft(), free.pop(0)))
                    board.begun(running[-1].job)
                time.sleep(_LOOKS)
                for one in list(running):
                    one.hand_on(asked.times)
                    board.look(one)
                    if (code := one.process.poll()) is None:
                        continue
                    running.remove(one)
                    free.append(one.share)
                    ending = _ending(code, bool(asked.times))
                    endings[one.job.name] = ending
                    board.ended(one, code, ending)
        finally:
            for one in running:
                one.process.kill()
                one.process.wait()
    return [Ended(job=job, ending=endings[job.name]) for job in jobs]


def _ending(code: int, asked: bool) -> Ending:
    if code == 0:
        return "done"
    return "stopped" if asked and code in _STOPPED else "failed"


@dataclass
class _Running:
    """A process, how far it is, and how often it was asked to stop."""

    job: Job
    share: tuple[int, ...]
    process: subprocess.Popen[bytes]
    began: float
    rows: int = 0
    row: dict | None = None
    told: int = 0
    _read: int = field(default=0, repr=False)

    @classmethod
    def start(cls, job: Job, share: tuple[int, ...]) -> _Running:
        """Start a job on its cores; in a session of its own, so that Ctrl-C comes through us."""
        job.folder.mkdir(parents=True, exist_ok=True)
        env = os.environ | {
            "JAX_NUM_CPU_DEVICES": str(min(2, len(share))),
            "OMP_NUM_THREADS": str(len(share)),
        }
        with job.log.open("ab") as log, _pinned(share):
            log.write(f"$ {shlex.join(job.command)}\n".encode())
            log.flush()
            process = subprocess.Popen(
                job.command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return cls(job=job, share=share, process=process, began=time.monotonic())

    def hand_on(self, times: int) -> None:
        """Ask as often as we were asked; from the third time on, insist."""
        while self.told < times:
            self.told += 1
            self.process.send_signal(signal.SIGINT if self.told < 3 else signal.SIGKILL)

    def look(self) -> None:
        """Read what was added to the metrics since the last look."""
        try:
            with (self.job.folder / "metrics.jsonl").open("rb") as file:
                if self._read > os.fstat(file.fileno()).st_size:  # a run that went on from earlier
                    self._read = self.rows = 0
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        if whole:
            self._read += len(whole)
            self.rows += whole.count(b"\n")
            self.row = json.loads(whole.splitlines()[-1])

    def last_words(self, count: int) -> list[str]:
        lines = self.job.log.read_text(errors="replace").splitlines()
        return [line for line in lines if line.strip()][-count:]


class _Board:
    """One line a job: redrawn in place in a terminal, elsewhere printed when there is news."""

    def __init__(self, jobs: Sequence[Job], console: Console) -> None:
        self._console = console
        self._quarters = {job.name: 0 for job in jobs}
        self._tasks: dict[str, TaskID] = {}
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
                done = job.total if job.finished else 0
                self._tasks[job.name] = self._bars.add_task(
                    escape(job.name), total=job.total, completed=done, news=news
                )
            elif job.finished:
                self._say(f"{job.name}: {news}")

    def __enter__(self) -> _Board:
        if self._bars:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars:
            self._bars.stop()

    def begun(self, job: Job) -> None:
        if not self._bars:
            self._say(f"{job.name}: begins, its log is {job.log}")

    def look(self, one: _Running) -> None:
        one.look()
        total = one.job.total
        if self._bars:
            self._redraw(one, self._news(one))
        elif (
            total and one.row and (quarter := 4 * one.rows // total) > self._quarters[one.job.name]
        ):
            self._quarters[one.job.name] = quarter
            self._say(f"{one.job.name}: {one.rows}/{total}  {figures(one.row)}")

    def ended(self, one: _Running, code: int, ending: Ending) -> None:
        one.look()
        took = duration(time.monotonic() - one.began)
        if self._bars:
            self._redraw(one, f"{ending} after {took}")
        else:
            self._say(f"{one.job.name}: {ending} after {took}")
        if ending == "failed":
            self._say(f"{one.job.name} ended with exit code {code}; {one.job.log} ends:")
            for line in one.last_words(_LAST_WORDS):
                self._say(f"    {line}")

    def _news(self, one: _Running) -> str:
        """The figures of the last iteration; before the first and after the last, the last words"""
        if one.row and one.rows < one.job.total:
            return figures(one.row)
        words = one.last_words(1)
        return words[0].removeprefix("· ") if words else ""

    def _redraw(self, one: _Running, news: str) -> None:
        assert self._bars is not None
        self._bars.update(self._tasks[one.job.name], completed=one.rows, news=escape(news))

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


@dataclass
class _Asked:
    times: int = 0


@contextmanager
def _interrupts() -> Iterator[_Asked]:
    """Counts Ctrl-C (and what a scheduler sends in its place) rather than ending us."""
    asked = _Asked()

    def count(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        asked.times += 1

    before = {s: signal.signal(s, count) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _pinned(share: Sequence[int]) -> Iterator[None]:
    """What is started inside inherits these cores; a system without pinning has none."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, share)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
