"""Several processes on one machine, each on cores of its own, from a queue.

Networks as small as ours leave a second core idle half of the time, while two processes of one core
each leave none. So a machine's cores are cut into equal shares, and each process that runs is
pinned to one of them; what it starts takes its number of threads from there. It writes what it has
to say to `log.txt` in its folder, and how far it is is read from the `metrics.jsonl` that grows
there.

A process that fails leaves the others alone, but for those that come after it. Ctrl-C is handed on:
it lets what runs come to its own gentle end, and nothing new begins.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from rich.console import Console

from ibrl_jax.errors import UserError
from ibrl_jax.jobs.board import Board
from ibrl_jax.jobs.processes import Ending, Job, Running

_LOOKS = 0.1
"""Seconds between looks at what runs."""
_STOPPED = (130, -signal.SIGINT, 1)
"""How a process ends that heeded Ctrl-C; 1 is a Python that was not yet up when it came."""
_WELL: tuple[Ending, ...] = ("done", "finished before")


@dataclass(frozen=True, kw_only=True)
class Ended:
    """What became of a job."""

    job: Job
    ending: Ending
    seconds: float | None = None
    """How long it ran here; None if it did not."""


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


def run_jobs(
    jobs: Sequence[Job],
    at_once: int,
    console: Console,
    keep: Callable[[str], None] = lambda line: None,
) -> list[Ended]:
    """Run all that are not finished, `at_once` of them at a time, and say how they do.

    A job begins when all that it comes after are done; where one of them did not end well, it is
    left out. `keep` is given a line at each beginning and end.

    Raises:
        UserError: there are not that many cores.
        ValueError: a job comes after one that is not among them.
    """
    free = shares(at_once)
    names = {job.name for job in jobs}
    for job in jobs:
        if unknown := sorted(set(job.after) - names):
            raise ValueError(f"job {job.name} comes after {unknown[0]}, which is no job here")
    endings: dict[str, Ending] = {
        job.name: "finished before" if job.finished else "not begun" for job in jobs
    }
    seconds: dict[str, float] = {}
    queue = [job for job in jobs if not job.finished]
    running: list[Running] = []
    with Board(jobs, console, at_once, keep) as board, _interrupts() as asked:
        try:
            while running or (queue and not asked.times):
                _give_up(queue, running, endings, board)
                while free and not asked.times and (job := _next(queue, endings)):
                    queue.remove(job)
                    running.append(Running.start(job, free.pop(0)))
                    board.begun(job)
                if not running:
                    break  # what is left waits for what will not end
                time.sleep(_LOOKS)
                for one in list(running):
                    one.hand_on(asked.times)
                    board.look(one)
                    if (code := one.process.poll()) is None:
                        continue
                    running.remove(one)
                    free.append(one.share)
                    ending = _ending(code, one)
                    endings[one.job.name] = ending
                    seconds[one.job.name] = time.monotonic() - one.began
                    board.ended(one, code, ending)
        finally:
            for one in running:
                one.process.kill()
                one.process.wait()
    return [Ended(job=job, ending=endings[job.name], seconds=seconds.get(job.name)) for job in jobs]


def _next(queue: Sequence[Job], endings: Mapping[str, Ending]) -> Job | None:
    """The first job that waits for nothing."""
    return next((job for job in queue if all(endings[n] in _WELL for n in job.after)), None)


def _give_up(
    queue: list[Job], running: Sequence[Running], endings: Mapping[str, Ending], board: Board
) -> None:
    """Take those from the queue that come after something that will not be done."""
    coming = {job.name for job in queue} | {one.job.name for one in running}
    for job in list(queue):
        for name in job.after:
            if endings[name] not in _WELL and name not in coming:
                queue.remove(job)
                coming.discard(job.name)
                board.given_up(job, name)
                break


def _ending(code: int, one: Running) -> Ending:
    """What an exit code means; a process that we made an end of did not fail."""
    if code == 0:
        return "done"
    heeded = one.told > 0 and code in _STOPPED
    return "stopped" if heeded or (one.killed and code == -signal.SIGKILL) else "failed"


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

    heard = [signal.SIGINT, signal.SIGTERM]
    hangup = getattr(signal, "SIGHUP", None)  # a terminal that closes; `nohup` ignores it
    if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
        heard.append(hangup)
    before = {s: signal.signal(s, count) for s in heard}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cores() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def seeds_of(text: str) -> list[int]:
    """The seeds of `0,1,2`. Raises UserError for anything else, or one given twice."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
        raise UserError(
            f"--seeds is {text!r}; it must be different whole numbers with commas between them, "
            "such as 0,1,2,3"
        )
    return [int(part) for part in parts]
