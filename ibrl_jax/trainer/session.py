"""A run, told once from top to bottom.

Claim the folder, find the start, restore, compile, iterate, save, export.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax.dialogue.build import at_once, build_cast, build_domain, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.domains.base import Domain
from ibrl_jax.entry import notes
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.matches import columns_of, evaluation_scenarios
from ibrl_jax.identity import generator
from ibrl_jax.models.params import Params, init_params
from ibrl_jax.reporting.board import Board, flatten_metrics, transcript_markdown
from ibrl_jax.reporting.progress import TrainingProgress
from ibrl_jax.rl.learner import TrainingError
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.checkpoint import Checkpoints
from ibrl_jax.trainer.measure import dialogue_records, metrics_row
from ibrl_jax.trainer.policies import START, load_policy, save_policy
from ibrl_jax.trainer.run import RunFolder, read_json, write_lines
from ibrl_jax.trainer.start import Note, start_policy


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What every command on a config builds first."""

    config: ConfigDict
    domain: Domain
    speech: Speech
    start: Params
    algorithm: Algorithm


def set_up(config: ConfigDict, note: Note, folder: RunFolder | None = None) -> Stage:
    """The domain, the start, and the algorithm at iteration 0.

    A run that has begun keeps its own copy of its start, which is every role's reference for good.

    Raises:
        UserError: something that the config names does not exist or cannot be used, also where it
            would be needed only at the end.
    """
    domain = build_domain(config)
    speech = build_speech(config)
    ledgers = folder.path / "endpoints" if folder else None
    cast = build_cast(config, domain, speech, at_once(config), ledgers)
    check_names(config, cast)
    kept = folder.policy(START) if folder and folder.begun else None
    if kept and (kept / "policy.json").is_file():
        start = load_policy(kept, init_params(speech.model.config, 0), speech)
    else:
        start, _ = start_policy(config, domain, speech, note)
    frozen = frozen_counterparts(config, start, speech)
    algorithm = Algorithm(config, cast, start, frozen)
    return Stage(config=config, domain=domain, speech=speech, start=start, algorithm=algorithm)


def check_names(config: ConfigDict, cast: Cast) -> None:
    """Seat every scripted family that the config names once, and look for room in a view."""
    scenario = evaluation_scenarios(config, cast.domain)[0]
    names = [f"scripted:{family}" for family in config.sft.families]
    names += [name for role in config.roles.values() for name in role.counterpart]
    names += [column.counterpart for column in columns_of(config) if column.counterpart]
    for name in names:
        if name.startswith("scripted:"):
            role = cast.domain.roles[0]
            family = name.removeprefix("scripted:")
            cast.domain.scripted(family, scenario, role, generator(0, "check"))
        elif not name.startswith("frozen:"):
            cast.named(name)
    room, speech = config.rollout.max_view_tokens, cast.speech
    for role in cast.domain.roles:
        before, after = speech.chat.system()
        prompt = speech.tokenizer.encode(cast.domain.prompt(scenario, role))
        opening = len(before) + len(prompt) + len(after) + len(speech.chat.header())
        if opening + config.rollout.max_new_tokens > room:
            raise UserError(
                f"config.rollout.max_view_tokens is {room}, and {role}'s prompt takes {opening} "
                f"before a first turn of up to {config.rollout.max_new_tokens}; give it more"
            )


def frozen_counterparts(config: ConfigDict, start: Params, speech: Speech) -> dict[str, Params]:
    """The parameters of every counterpart of the form `frozen:...`, by that name."""
    names = {
        name
        for settings in config.roles.values()
        if not settings.train
        for name in settings.counterpart
        if name.startswith("frozen:")
    }
    found = {}
    for name in sorted(names):
        where = name.removeprefix("frozen:")
        run, _, role = where.rpartition(":")
        if where == START:
            found[name] = start
        elif run and role:
            found[name] = load_policy(RunFolder.existing(run).policy(role), start, speech)
        else:
            raise UserError(
                f"counterpart {name!r} must be frozen:start or frozen:<run folder>:<role>"
            )
    return found


def train(config: ConfigDict, console: Console) -> RunFolder:
    """Runs a config to its last iteration, from wherever an earlier start of it was stopped.

    Raises:
        UserError: the folder holds another run, or something that the config names cannot be used.
        TrainingError: a loss or gradient was not finite.
        Stopped: Ctrl-C; what was finished is saved.
    """
    note = notes(console)
    folder = RunFolder.of(config)
    folder.check(config)
    with folder.lock():
        stage = set_up(config, note, folder)
        algorithm = stage.algorithm
        checkpoints = Checkpoints(folder.path / "checkpoints", config.run.keep_checkpoints)
        stopped = False
        try:
            if checkpoints.restore(algorithm):
                note(f"going on from iteration {algorithm.iteration} of {config.iterations}")
            began = folder.begun
            folder.claim(config)
            folder.rewind(algorithm.iteration)
            about = {"source": START}
            save_policy(folder.policy(START), stage.start, stage.speech, about, keep=began)
            if algorithm.iteration < config.iterations:
                folder.forget_end(algorithm.learners)
                note("compiling")
                at = time.perf_counter()
                algorithm.warm()
                seconds = time.perf_counter() - at
                note(f"compiled {algorithm.compilations} programs in {seconds:.1f} s")
                stopped = _iterate(stage, folder, checkpoints, console)
        finally:
            checkpoints.close()
        if stopped and algorithm.iteration < config.iterations:
            raise Stopped(
                f"stopped after iteration {algorithm.iteration} of {config.iterations}, "
                "all saved; the same command goes on from here"
            )
        _export(stage, folder)
        if stopped:
            raise Stopped(f"all {config.iterations} iterations are done and saved in {folder.path}")
    return folder


def _export(stage: Stage, folder: RunFolder) -> None:
    """The trained policies as folders, and what came out."""
    algorithm = stage.algorithm
    for role in algorithm.learners:
        about = {"source": str(folder.path), "role": role, "updates": algorithm.version(role)}
        save_policy(folder.policy(role), algorithm.params(role), stage.speech, about)
    folder.summary(
        {
            "name": stage.config.name,
            "seed": stage.config.seed,
            "iterations": algorithm.iteration,
            "updates": {role: algorithm.version(role) for role in algorithm.learners},
            "endpoints": {n: e.ledger.summary() for n, e in algorithm.cast.endpoints.items()},
            **_last(folder),
        }
    )


def _iterate(stage: Stage, folder: RunFolder, checkpoints: Checkpoints, console: Console) -> bool:
    """Iterations up to the last one; True if a Ctrl-C came (then at the end of its iteration)."""
    config, algorithm = stage.config, stage.algorithm
    warmed = algorithm.compilations
    events = folder.path / "tensorboard"
    board = Board(events, purge_step=algorithm.iteration if events.is_dir() else None)
    progress = TrainingProgress(
        total=config.iterations, done=algorithm.iteration, every=10, console=console
    )
    with progress, _gentle_stop(progress.note) as stop:
        while algorithm.iteration < config.iterations and not stop.asked:
            try:
                done = algorithm.iterate()
            except TrainingError:  # another role may have moved: the last checkpoint counts
                raise
            except UserError:  # before any update: nothing that was finished is lost
                checkpoints.save(algorithm)
                raise
            row = metrics_row(algorithm, done, algorithm.compilations - warmed)
            records = dialogue_records(config, done, stage.speech.tokenizer)
            if records:
                write_lines(folder.dialogues(done.iteration), records)
            folder.record(row)
            board.scalars(done.iteration, flatten_metrics(row))
            if done.iteration % config.run.text_every == 0 and records:
                board.text("transcript", done.iteration, transcript_markdown(records[0]))
            progress.update(row)
            last = algorithm.iteration == config.iterations
            if last or stop.asked or algorithm.iteration % config.run.checkpoint_every == 0:
                checkpoints.save(algorithm)
    board.close()
    return stop.asked


def train_sentence(folder: RunFolder) -> str:
    """What came out of training, in a line."""
    found = read_json(folder.path / "summary.json")
    rewards = ", ".join(
        f"{role} {value:+.3f}" for role, value in found["reward"].items() if value is not None
    )
    return (
        f"{folder.path}: {found['iterations']} iterations in {found['train_seconds']:.0f} s, "
        f"reward {rewards}, agreement {_percent(found['agreement'])}"
    )


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"


class Stopped(KeyboardInterrupt):
    """Ctrl-C: the iteration was finished and saved. Its message says how to go on."""


class _Stop:
    asked = False


@contextmanager
def _gentle_stop(note: Note) -> Iterator[_Stop]:
    """The first Ctrl-C asks for a stop after the iteration; the second one interrupts at once."""
    stop = _Stop()

    def ask(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        note("finishing this iteration, then saving; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _last(folder: RunFolder) -> dict[str, Any]:
    """The end of the curves: means over the last ten iterations, and checks over all of them."""
    rows = [json.loads(line) for line in Path(folder.metrics).read_text().splitlines()]
    tail = rows[-10:]
    roles = {}
    for role in tail[-1]["roles"]:
        rewards = [
            r["roles"][role]["reward"] for r in tail if r["roles"][role]["reward"] is not None
        ]
        roles[role] = float(np.mean(rewards)) if rewards else None
    agreed = [r["dialogues"]["agreement"] for r in tail]
    agreed = [value for value in agreed if value is not None]
    gaps = [v["sampler_trainer_max"] for r in rows for v in r["roles"].values() if v.get("updated")]
    return {
        "reward": roles,
        "agreement": float(np.mean(agreed)) if agreed else None,
        "train_seconds": float(sum(r["seconds"]["total"] for r in rows)),
        "seconds_per_iteration": float(np.median([r["seconds"]["total"] for r in rows])),
        "compilations_after_warmup": max(r["compilations"] for r in rows),
        "sampler_trainer_max": max(gaps) if gaps else None,
        "coverage": min(r["coverage"] for r in rows),
    }
