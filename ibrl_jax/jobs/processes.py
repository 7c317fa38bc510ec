"""One process of a queue: started on its cores, watched through its files, asked to stop.

It writes what it has to say to `log.txt` in its folder, and how far it is is read from the
`metrics.jsonl` that grows there.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ibrl_jax.reporting.progress import figures

LOG = "log.txt"
_ENOUGH = 3
"""At the third time of asking a process is killed."""

Ending = Literal["finished before", "done", "failed", "stopped", "not begun"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command and the folder it works in.

    `total`: the rows that its metrics.jsonl will have; 0 for a job that writes none. `finished`:
    all of it was done before. `after`: the names of the jobs that it needs; it begins when they are
    done. `kind`: what it is like, for the estimate of the time left.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    total: int
    finished: bool
    after: tuple[str, ...] = ()
    kind: str = "run"

    @property
    def log(self) -> Path:
        return self.folder / LOG


@dataclass
class Running:
    """A process, how far it is, and how often it was asked to stop.

    `rows`: of its metrics so far; `rows_before` of them are of an earlier start; `shown`: the
    figures of the last one. To look never fails: what cannot be read tells nothing.
    """

    job: Job
    share: tuple[int, ...]
    process: subprocess.Popen[bytes]
    began: float
    rows: int = 0
    shown: str = ""
    told: int = 0
    rows_before: int = 0
    _read: int = field(default=0, repr=False)

    @classmethod
    def start(cls, job: Job, share: tuple[int, ...]) -> Running:
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
        one = cls(job=job, share=share, process=process, began=time.monotonic())
        one.look()
        one.rows_before = one.rows
        return one

    def hand_on(self, times: int) -> None:
        """Ask as often as we were asked; at some time, insist."""
        while self.told < times:
            self.told += 1
            self.process.send_signal(signal.SIGKILL if self.killed else signal.SIGINT)

    @property
    def killed(self) -> bool:
        """Whether it was asked so often that we made an end of it."""
        return self.told >= _ENOUGH

    def look(self) -> None:
        """Read what was added to the metrics since the last look."""
        try:
            with (self.job.folder / "metrics.jsonl").open("rb") as file:
                if self._read > os.fstat(file.fileno()).st_size:  # a run that went on from earlier
                    self._read = self.rows = 0
                    self.rows_before = 0
                file.seek(self._read)
                new = file.read()
        except OSError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        if whole:
            self._read += len(whole)
            self.rows += whole.count(b"\n")
            with suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self.shown = figures(json.loads(whole.splitlines()[-1]))

    def last_words(self, count: int) -> list[str]:
        try:
            lines = self.job.log.read_text(errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if line.strip()][-count:]


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
