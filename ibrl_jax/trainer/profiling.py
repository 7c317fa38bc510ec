"""A few iterations of a config, the last of them traced; nothing of a run is written or changed.

The trace has a lane a thread. `rollout`, `reference` and `update` are spans of the host's threads.
The device's operations have the names that XLA gave them (`while.5`); on a CPU nothing in the trace
says from which scope of the code (`prefill`, `decode`, `micro_batch`, `adamw`) they come.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict
from rich.table import Table

from ibrl_jax.errors import UserError
from ibrl_jax.reporting.stages import tokens_per_second
from ibrl_jax.trainer.measure import metrics_row
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import set_up
from ibrl_jax.trainer.start import Note

_OF = {
    "rollout": ("sampling", "talking", "judging", "saved"),
    "update": ("reference", "update_"),
}
"""The parts of a stage, by their names' beginnings."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """`row`: the traced iteration's, as in metrics.jsonl. `trace`: the file for Perfetto."""

    row: Mapping[str, Any]
    folder: Path
    trace: Path


def profile(config: ConfigDict, iteration: int, note: Note) -> Profile:
    """Plays `iteration` iterations from the start and traces the one after them.

    The trace goes to `profile/` in the run's folder, beside whatever is there.

    Raises:
        UserError: the config has too few iterations, or something that it names cannot be used.
    """
    if iteration >= config.iterations:
        raise UserError(
            f"--iteration={iteration} is not below config.iterations = {config.iterations}"
        )
    folder = RunFolder.of(config).path / "profile"
    algorithm = set_up(config, note, to_play=True).algorithm
    note("compiling")
    algorithm.warm()
    note(f"playing {iteration} iterations, then the one that is traced")
    try:
        for _ in range(iteration):
            algorithm.iterate()
        algorithm.clock.take()
        how = jax.profiler.ProfileOptions()
        how.python_tracer_level = 0  # it would slow down what it shows
        before = set(folder.rglob("*.json.gz"))
        with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=how):
            done = algorithm.iterate()
    finally:
        algorithm.close()
    new = sorted(set(folder.rglob("*.json.gz")) - before)
    trace = next((file for file in new if "perfetto" in file.name), new[-1])
    row = metrics_row(algorithm, done, algorithm.compiled_late)
    return Profile(row=row, folder=folder, trace=trace)


def stage_table(found: Profile) -> Table:
    """Seconds and share of each stage, its parts below it, and tokens a second."""
    seconds, rates = found.row["seconds"], tokens_per_second(found.row)
    within, total = seconds["within"], seconds["total"]
    table = Table(box=None, pad_edge=False, title=f"iteration {found.row['iteration']}")
    for column in ("stage", "seconds", "share", "tokens/s"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage, spent in seconds.items():
        if not isinstance(spent, float) or not spent:
            continue
        rate = f"{rates[stage]:,.0f}" if stage in rates else ""
        table.add_row(stage, f"{spent:.3f}", f"{spent / total:.0%}", rate)
        for name, part in within.items():
            if name.startswith(_OF.get(stage, ("-",))):
                table.add_row(f"[dim]  {name}[/]", f"[dim]{part:.3f}[/]", "", "")
    return table


def profile_sentence(found: Profile) -> str:
    return (
        f"trace in {found.folder}: open {found.trace} in ui.perfetto.dev, or the folder in "
        "TensorBoard where its profiler is installed (pip install xprof)"
    )
