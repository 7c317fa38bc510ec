"""`make resume-check`: a run that is killed again and again ends bitwise as one that never was.

The same config runs undisturbed once, and then with SIGKILL at random instants (while it compiles,
rolls out, updates, or writes a checkpoint), started anew each time; if it ends before all kills are
done, again from the beginning. Compared are all parameters, optimiser states, pools, policies,
dialogues and metrics; of the metrics only the seconds may differ.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from rich.console import Console
from safetensors.numpy import load_file

from ibrl_jax.entry import Options, notes, run
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.trainer.run import write_json


def differences(one: Path, other: Path) -> list[str]:
    """What is not the same in two run folders, in sentences; empty if nothing is."""
    found = []
    rows = [_metrics(path / "metrics.jsonl") for path in (one, other)]
    if rows[0] != rows[1]:
        at = next((i for i, (a, b) in enumerate(zip(*rows, strict=False)) if a != b), "the length")
        found.append(f"metrics.jsonl differs at {at}")
    names = [sorted(p.name for p in (path / "dialogues").glob("*.jsonl")) for path in (one, other)]
    if names[0] != names[1]:
        found.append("other iterations have dialogues")
    for name in set(names[0]) & set(names[1]):
        if (one / "dialogues" / name).read_bytes() != (other / "dialogues" / name).read_bytes():
            found.append(f"dialogues/{name} differs")
    for file in sorted((one / "policies").glob("*/*.safetensors")):
        twin = other / file.relative_to(one)
        if not twin.is_file() or _unequal(load_file(file), load_file(twin)):
            found.append(f"{file.relative_to(one)} differs")
    if _unequal(_newest(one / "checkpoints"), _newest(other / "checkpoints")):
        found.append("the last checkpoints (parameters, moments, counters, pools) differ")
    return found


def _metrics(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def _newest(folder: Path) -> Any:
    step = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore((folder / str(step) / "state").absolute())
    return {"step": np.asarray(step), "state": state}


def _unequal(one: Any, other: Any) -> bool:
    if jax.tree.structure(one) != jax.tree.structure(other):
        return True
    same = jax.tree.map(lambda x, y: np.asarray(x).tobytes() == np.asarray(y).tobytes(), one, other)
    return not all(jax.tree.leaves(same))


@dataclass(kw_only=True)
class Tally:
    """Kills before a run had its first checkpoint and after it, and the runs that were finished."""

    early: int = 0
    late: int = 0
    runs: int = 0

    @property
    def kills(self) -> int:
        return self.early + self.late


def kill_and_compare(
    command: Callable[[Path], Sequence[str]],
    work: Path,
    kills: int,
    seconds: float,
    rng: np.random.Generator,
    compare: Callable[[Path], list[str]],
    note: Callable[[str], None],
) -> tuple[Tally, list[str]]:
    """Kill runs so many times in all, let each end, and compare it.

    A run that ends before it is killed again is followed by a fresh one.

    Args:
        command: starts a run in a folder, or goes on with it.
        work: where the folders are made.
        seconds: how long a run takes.
        compare: what is not as it should be in the folder of a finished run.

    Returns:
        the tally, and what was found in any of the runs.
    """
    tally, found = Tally(), []
    while tally.kills < kills and not found:
        root, fresh = work / f"killed{tally.runs}", True
        while tally.kills < kills:
            delay = float(rng.uniform(0.1, 0.9)) * seconds
            began = time.perf_counter()
            if not _killed(command(root), delay):
                if fresh:  # runs have become faster, such as by what is compiled by now
                    seconds = time.perf_counter() - began
                break
            fresh = False
            saved = any(path.name.isdigit() for path in root.glob("*/seed*/checkpoints/*"))
            tally.late, tally.early = tally.late + saved, tally.early + (not saved)
            note(f"killed after {delay:.1f} s, {'after' if saved else 'before'} a first checkpoint")
        _finish(command(root))
        tally.runs += 1
        found = compare(root)
    return tally, found


def _killed(command: Sequence[str], delay: float) -> bool:
    """Start a command and kill it after so many seconds; False if it ends before."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(timeout=delay)
    except subprocess.TimeoutExpired:
        return True
    finally:
        process.kill()
        process.wait()
    return False


def _finish(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(f"a run that is checked failed: {last}")


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config", "kills", "seed", "root"))
    config = options.get("config", "configs/dond/smoke.py")
    kills = options.number("kills", 10)
    rng = generator(options.number("seed", 0), "kills")
    work = Path(tempfile.mkdtemp(prefix="resume-check-"))
    note = notes(console)

    def command(root: Path) -> list[str]:
        length = ["--config.iterations=60", "--config.run.checkpoint_every=3"]
        where = [f"--config={config}", *length, *options.overrides, f"--config.run.root={root}"]
        return [sys.executable, "-m", "ibrl_jax.train", *where]

    def run_in(root: Path) -> Path:
        return next(root.glob("*/seed*/config.json")).parent

    try:
        note("the undisturbed run")
        began = time.perf_counter()
        _finish(command(work / "whole"))
        seconds = time.perf_counter() - began
        note(f"took {seconds:.0f} s; now {kills} kills")
        tally, found = kill_and_compare(
            command,
            work,
            kills,
            seconds,
            rng,
            lambda root: differences(run_in(work / "whole"), run_in(root)),
            note,
        )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    after = f"after {tally.kills} kills ({tally.early} before a first checkpoint)"
    sentence = (
        f"{after} a run is not that of an undisturbed one: {'; '.join(found)}"
        if found
        else f"{after} each of the runs ({tally.runs}) is bitwise that of an undisturbed one"
    )
    file = Path(options.get("root", "runs")) / "resume-check" / "summary.json"
    write_json(file, {**vars(tally), "differences": found, "sentence": sentence})
    if found:
        raise UserError(sentence)
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
