"""`make resume-check`: a run that is killed again and again ends bitwise as one that never was.

The same config runs twice: once undisturbed, once with SIGKILL at random instants (while it
compiles, rolls out, updates, or writes a checkpoint), started anew each time. Compared are all
parameters, optimiser states, pools, policies, dialogues and metrics; of the metrics only the
seconds may differ.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from rich.console import Console
from safetensors.numpy import load_file

from ibrl_jax.entry import Options, run
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator


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
    for file in sorted((one / "policies").glob("*/params.safetensors")):
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


def run_killed(command: Sequence[str], delays: Sequence[float], note: Any) -> int:
    """Start the command once for each delay and kill it after so many seconds; then let it end.

    Returns:
        how often it was killed; a command that ends before its delay needs no further start.
    """
    kills = 0
    for delay in delays:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:
            process.communicate(timeout=delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
            note(f"killed after {delay:.1f} s")
            continue
        break
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return kills


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config", "kills", "seed"))
    config = options.get("config", "configs/dond/smoke.py")
    kills = int(options.get("kills", "10"))
    rng = generator(int(options.get("seed", "0")), "kills")
    work = Path(tempfile.mkdtemp(prefix="resume-check-"))

    def command(root: Path) -> list[str]:
        length = ["--config.iterations=60", "--config.run.checkpoint_every=3"]
        where = [f"--config={config}", f"--config.run.root={root}", *length, *options.overrides]
        return [sys.executable, "-m", "ibrl_jax.train", *where]

    def note(text: str) -> None:
        console.print(f"[dim]· {text}[/]", highlight=False)

    try:
        note("the undisturbed run")
        began = time.perf_counter()
        subprocess.run(command(work / "whole"), stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - began
        note(f"took {seconds:.0f} s; now {kills} kills")
        delays = [float(rng.uniform(0.1, 0.9)) * seconds for _ in range(kills)]
        done = run_killed(command(work / "killed"), delays, note)
        folders = [next((work / name).glob("*/seed*")) for name in ("whole", "killed")]
        found = differences(*folders)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if found:
        raise UserError(f"after {done} kills the run is not the same: {'; '.join(found)}")
    console.print(
        f"after {done} kills the run is bitwise that of an undisturbed one", highlight=False
    )


if __name__ == "__main__":
    run(main)
