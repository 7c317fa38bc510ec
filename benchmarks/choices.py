"""What a setting changes in seconds: the same runs with and without it, by turns.

Each figure is the time with the setting over that without it, so below 1 it is a gain. All runs of
a figure begin with one start, and what a round measures is the median of its iterations after the
first ones, which still meet new shapes.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figure import Figures, figure
from benchmarks.training import CALLS, DOND, SPEAKS, TELESALES, Run, judged_by, slow_judge

ROUNDS = 3
LEARNED = ("sft.steps=600", "sft.dialogues=1200")
"""A start that mostly follows the protocol, so that dialogues are as long as they are."""

Row = dict[str, Any]


def staleness() -> Figures:
    """Dialogues beside the updates of the iteration before (`pipeline.max_staleness=1`)."""
    both = {"on-policy": ["pipeline.max_staleness=0"], "stale": ["pipeline.max_staleness=1"]}
    long = ("iterations=40", "run.checkpoint_every=40")
    with tempfile.TemporaryDirectory() as place:
        rules = by_turns(DOND, Path(place), LEARNED, long, both, _seconds("total"), skip=5)
    with tempfile.TemporaryDirectory() as place, slow_judge(1.0) as (url, _):
        judged = ("iterations=6", "run.checkpoint_every=6", *CALLS, *judged_by(url))
        slow = by_turns(TELESALES, Path(place), SPEAKS, judged, both, _seconds("total"), skip=2)
    made = [
        _compared(f"iteration, max_staleness 1 against 0, {told}", "stale", "on-policy", found)
        for told, found in (("rewards by rule", rules), ("judges of 1 s a call", slow))
    ]
    return {"figures": [line for figures in made for line in figures["figures"]]}


def packing() -> Figures:
    """Several short views in a row of an update (`optimiser.packed`)."""
    both = {"a row each": ["optimiser.packed=False"], "packed": ["optimiser.packed=True"]}
    long = ("iterations=30", "run.checkpoint_every=30")
    with tempfile.TemporaryDirectory() as place:
        found = by_turns(DOND, Path(place), LEARNED, long, both, _seconds("update"), skip=5)
    return _compared("updates, packed against a row a view", "packed", "a row each", found)


def halves() -> Figures:
    """Half of the dialogues a call where one role opens all, so that both engines have one."""
    both = {"all": ["engine.rows=32"], "half": ["engine.rows=16"]}
    long = ("iterations=15", "run.checkpoint_every=15")
    with tempfile.TemporaryDirectory() as place:
        found = by_turns(TELESALES, Path(place), SPEAKS, long, both, _seconds("rollout"), skip=3)
    return _compared(
        "TeleSales: rollouts, half of the dialogues a call against all", "half", "all", found
    )


def jobs() -> Figures:
    """Two seeds, side by side on a share of the cores each and one after the other on all."""
    with tempfile.TemporaryDirectory() as place:
        kept = Run(DOND, Path(place) / "kept", (*LEARNED, "iterations=1"))
        kept.finish()
        options = [f"policy.start={kept.folder / 'policies' / 'start'}", "iterations=60"]
        found: dict[str, list[float]] = {"2": [], "1": []}
        for again in range(ROUNDS):
            for at_once, seconds in found.items():
                root = Path(place) / f"{at_once}-{again}"
                began = time.perf_counter()
                _seeds(at_once, root, options)
                seconds.append(time.perf_counter() - began)
    return _compared("two seeds of 60 iterations, JOBS=2 against 1, whole", "2", "1", found)


def by_turns(
    config: str,
    root: Path,
    start: Sequence[str],
    options: Sequence[str],
    choices: Mapping[str, Sequence[str]],
    of: Callable[[Row], float],
    *,
    skip: int,
) -> dict[str, list[float]]:
    """Of each choice, the median of `of` over a run's iterations, a run a round.

    Args:
        start: settings of the one start of all runs.
        options: settings of all runs; `choices` those in which they differ.
        skip: iterations that are not counted; they warm up.
    """
    kept = Run(config, root / "kept", (*start, "iterations=1"))
    kept.finish()
    begins = f"policy.start={kept.folder / 'policies' / 'start'}"
    found: dict[str, list[float]] = {name: [] for name in choices}
    for again in range(ROUNDS):
        for number, (name, choice) in enumerate(choices.items()):
            place = root / f"{number}-{again}"
            rows = Run(config, place, (begins, *options, *choice)).finish()
            found[name].append(statistics.median(of(row) for row in rows[skip:]))
    return found


def _seconds(lap: str) -> Callable[[Row], float]:
    return lambda row: row["seconds"][lap]


def _seeds(at_once: str, root: Path, options: Sequence[str]) -> None:
    root.mkdir()
    command = [sys.executable, "-m", "ibrl_jax.many", f"--config={DOND}", "--seeds=0,1"]
    command += [f"--jobs={at_once}", "--", f"--config.run.root={root}"]
    with (root / "log.txt").open("wb") as log:
        subprocess.run(
            [*command, *(f"--config.{option}" for option in options)],
            stdout=log,
            stderr=log,
            check=True,
        )


def _compared(name: str, with_it: str, without: str, found: Mapping[str, list[float]]) -> Figures:
    """The ratio of the medians, with both."""
    one, other = statistics.median(found[with_it]), statistics.median(found[without])
    told = f"{one / other:.2f} ({one:.2f} s for {other:.2f} s)"
    return figure(name, one / other, told, "", None, seconds=dict(found))
