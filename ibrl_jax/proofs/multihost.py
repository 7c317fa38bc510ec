"""`make multihost`: two processes train as one does, one is killed, and the run goes on.

On this machine, over loopback, on eight virtual CPU devices in all, the same run is made

1. by two processes with four devices each,
2. by one process with all eight: its dialogues must have the same tokens, and its parameters must
   be apart by rounding alone,
3. by two processes, one of which gets SIGKILL after the second iteration: the other must end by
   itself within a minute, with a sentence; then both are started again, and what they end with must
   be what the first run ended with.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from rich.console import Console
from rich.table import Table
from safetensors.numpy import load_file

from ibrl_jax.entry import Options, notes, run
from ibrl_jax.errors import UserError
from ibrl_jax.trainer.run import write_json

DEVICES, KILLED_AFTER = 8, 2
MOST_APART, MOST_SECONDS = 1e-5, 60.0
PATIENCE_SECONDS = 1200.0

SMALL = (
    "mesh.fsdp=-1",
    f"sft.batch={DEVICES}",
    "engine.new_tokens=48",
    "engine.lengths=()",
    "optimiser.lengths=()",
    "optimiser.eps=0.01",  # far above rounding, or Adam makes steps of a zero gradient's noise
    *(
        f"roles.{role}.{setting}"
        for role in ("agent0", "agent1")
        for setting in ("learning_rate=0.01", "warmup_updates=0", "update_every=1")
    ),
)
"""On top of the config: one program of each kind, and steps that can be seen."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What came out.

    `dialogues` are those of the run and `equal` those whose tokens are the same in both. `apart` is
    the largest difference of a parameter between one process and two, `moved` the largest between
    the start and the end. `sentence`, `code` and `seconds` are those of the process that was left
    when the other was killed. `resumed` is the largest difference of a parameter between the run
    that was killed and the one that was not, `bitwise` whether everything in their checkpoints, and
    all tokens, are the same.
    """

    dialogues: int
    equal: int
    apart: float
    moved: float
    sentence: str
    code: int
    seconds: float
    resumed: float
    bitwise: bool

    @property
    def hold(self) -> tuple[bool, bool, bool, bool]:
        """Tokens equal, parameters apart by rounding alone, ended in time, went on."""
        return (
            self.equal == self.dialogues > 0,
            self.apart <= MOST_APART < self.moved,
            self.code == 2 and bool(self.sentence) and self.seconds <= MOST_SECONDS,
            self.bitwise or self.resumed <= MOST_APART,
        )


class Runs:
    """Makes runs of one config in a folder, each by so many processes.

    Args:
        config: the file.
        options: changes to it, of the form `key=value`.
        devices: virtual ones, of all processes together.
    """

    def __init__(self, config: str, options: Sequence[str], devices: int, work: Path) -> None:
        self._config, self._options, self._work = config, options, work
        self.devices = devices

    def folder(self, name: str) -> Path:
        return self._work / "runs" / name / "seed0"

    def start(self, name: str, count: int) -> list[subprocess.Popen[bytes]]:
        """The processes of a run, started."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            coordinator = f"127.0.0.1:{free.getsockname()[1]}"
        root = str(Path(__file__).parents[2])
        env = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(self.devices // count),
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(":"),
        }
        env.pop("XLA_FLAGS", None)
        where = [f"name={name}", f"run.root={self._work / 'runs'}", "seed=0"]
        settings = [f"--config.{o}" for o in (*self._options, *where, f"hosts.count={count}")]
        started = []
        for index in range(count):
            place = [f"--config.hosts.coordinator={coordinator}", f"--config.hosts.index={index}"]
            command = [sys.executable, "-m", "ibrl_jax.train", f"--config={self._config}"]
            with self._words(name, index).open("wb") as words:
                started.append(
                    subprocess.Popen(
                        [*command, *settings, *place],
                        env=env,
                        stdout=subprocess.DEVNULL,
                        stderr=words,
                    )
                )
        return started

    def make(self, name: str, count: int) -> Path:
        """A run to its end; gives its folder.

        Raises:
            UserError: it failed, or takes too long.
        """
        processes = self.start(name, count)
        try:
            for process in processes:
                process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise UserError(f"the run {name} did not end in {PATIENCE_SECONDS:g} s") from error
        finally:
            _end(processes)
        for index, process in enumerate(processes):
            if process.returncode:
                raise UserError(
                    f"process {index} of {count} of the run {name} ended with exit code "
                    f"{process.returncode}: {self.last_words(name, index)}"
                )
        return self.folder(name)

    def kill_one(self, name: str) -> tuple[str, int, float]:
        """A run of two processes, of which the second is killed.

        Returns:
            what the first then said, its exit code, and how many seconds later it ended.

        Raises:
            UserError: the run did not get that far, or the first process never ended.
        """
        left, victim = processes = self.start(name, 2)
        rows = self.folder(name) / "metrics.jsonl"
        until = time.monotonic() + PATIENCE_SECONDS
        try:
            while not rows.is_file() or rows.read_bytes().count(b"\n") < KILLED_AFTER:
                if time.monotonic() > until or any(p.poll() is not None for p in processes):
                    raise UserError(
                        f"the run {name} did not get as far as {KILLED_AFTER} iterations: "
                        f"{self.last_words(name, 0)}"
                    )
                time.sleep(0.01)
            if victim.poll() is not None:
                raise UserError(f"the run {name} had ended before one of its processes was killed")
            victim.send_signal(signal.SIGKILL)
            began = time.monotonic()
            code = left.wait(PATIENCE_SECONDS)
            seconds = time.monotonic() - began
        except subprocess.TimeoutExpired as error:
            raise UserError("the process that was left did not end by itself") from error
        finally:
            _end(processes)
        return self.last_words(name, 0), code, seconds

    def last_words(self, name: str, index: int) -> str:
        """The last line on a process's standard error."""
        lines = self._words(name, index).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _words(self, name: str, index: int) -> Path:
        return self._work / f"{name}-{index}.err"


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def check(runs: Runs, note: Callable[[str], None]) -> Findings:
    """Makes all runs and compares them.

    Raises:
        UserError: a run that should have ended well did not.
    """
    note(f"two processes with {runs.devices // 2} devices each")
    two = runs.make("two", 2)
    note(f"one process with {runs.devices} devices")
    one = runs.make("one", 1)
    note(f"two processes, of which one is killed after iteration {KILLED_AFTER}")
    sentence, code, seconds = runs.kill_one("killed")
    note("both again, from the last checkpoint")
    killed = runs.make("killed", 2)
    words, others = tokens(two), tokens(one)
    return Findings(
        dialogues=len(words),
        equal=sum(others.get(where) == said for where, said in words.items()),
        apart=apart(policies(two), policies(one)),
        moved=moved(two),
        sentence=sentence,
        code=code,
        seconds=seconds,
        resumed=apart(policies(two), policies(killed)),
        bitwise=tokens(killed) == words and same(state(two), state(killed)),
    )


def tokens(folder: Path) -> dict[tuple[str, int], dict[str, list[int]]]:
    """Each role's token ids of every dialogue of a run, by draw and rollout."""
    found = {}
    for file in sorted((folder / "dialogues").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            views = {role: view["ids"] for role, view in row["views"].items()}
            found[row["draw"], row["rollout"]] = views
    return found


def policies(folder: Path) -> dict[str, np.ndarray]:
    """The parameters that a run ended with, by role and path."""
    found = {}
    for file in sorted((folder / "policies").glob("*/*.safetensors")):
        found |= {f"{file.parent.name}/{name}": x for name, x in load_file(file).items()}
    return found


def apart(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of a parameter; infinite if they have not the same."""
    if {k: x.shape for k, x in one.items()} != {k: x.shape for k, x in other.items()} or not one:
        return float("inf")
    return max(float(np.abs(x - other[name]).max()) for name, x in one.items())


def moved(folder: Path) -> float:
    """How far the parameters went from the start, where they went least far."""
    found = policies(folder)
    start = {k.removeprefix("start/"): x for k, x in found.items() if k.startswith("start/")}
    roles = {k.partition("/")[0] for k in found} - {"start"}
    of_role = [{name: found[f"{role}/{name}"] for name in start} for role in roles]
    return min((apart(start, values) for values in of_role), default=0.0)


def state(folder: Path) -> Any:
    """All arrays of a run's last checkpoint, on the host, whatever devices wrote them."""
    steps = [int(p.name) for p in (folder / "checkpoints").iterdir() if p.name.isdigit()]
    where = (folder / "checkpoints" / str(max(steps)) / "state").absolute()
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # Orbax looks for a file of the parent's
    with ocp.PyTreeCheckpointer() as checkpointer:
        tree = checkpointer.metadata(where).item_metadata.tree
        as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
        values = checkpointer.restore(where, ocp.args.PyTreeRestore(restore_args=as_numpy))
    return {"step": np.asarray(max(steps)), "state": values}


def same(one: Any, other: Any) -> bool:
    """Whether two trees of arrays are equal, bit for bit."""
    if jax.tree.structure(one) != jax.tree.structure(other):
        return False
    equal = jax.tree.map(
        lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), one, other
    )
    return all(jax.tree.leaves(equal))


def table(found: Findings) -> Table:
    made = Table(box=None, pad_edge=False)
    for column in ("what", "found", ""):
        made.add_column(column, overflow="fold")
    tokens_equal, parameters, ended, went_on = found.hold
    rows = (
        (
            "one process and two: dialogues with the same tokens",
            f"{found.equal} of {found.dialogues}",
            tokens_equal,
        ),
        (
            "one process and two: largest difference of a parameter",
            f"{found.apart:.1e} (training moved them by {found.moved:.1e})",
            parameters,
        ),
        (
            f"process 1 of 2 killed after iteration {KILLED_AFTER}: process 0",
            f"ended after {found.seconds:.1f} s with exit code {found.code}: {found.sentence}",
            ended,
        ),
        (
            "started again: the end, against that of the run that was not killed",
            "the same, bit for bit" if found.bitwise else f"apart by {found.resumed:.1e}",
            went_on,
        ),
    )
    for what, value, holds in rows:
        made.add_row(what, value, "ok" if holds else "WRONG")
    return made


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config", "root"))
    own = [option.removeprefix("--config.") for option in options.overrides]
    work = Path(tempfile.mkdtemp(prefix="multihost-"))
    config = options.get("config", "configs/dond/smoke.py")
    try:
        found = check(Runs(config, (*SMALL, *own), DEVICES, work), notes(console))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    console.print(table(found), highlight=False, markup=False)
    holds = all(found.hold)
    sentence = (
        f"two processes train as one does: {found.equal} of {found.dialogues} dialogues have the "
        f"same tokens, parameters are {found.apart:.1e} apart; the run whose second process was "
        f"killed ended in {found.seconds:.1f} s and went on "
        + ("to the same bits" if found.bitwise else f"to parameters {found.resumed:.1e} apart")
    )
    file = Path(options.get("root", "runs")) / "multihost" / "summary.json"
    write_json(file, {**asdict(found), "holds": holds, "sentence": sentence})
    if not holds:
        console.print("what is marked WRONG does not hold", highlight=False, markup=False)
        sys.exit(1)
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
