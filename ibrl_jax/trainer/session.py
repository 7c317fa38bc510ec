"""A run, told once from top to bottom.

Claim the folder, find the start, restore, compile, iterate, save, export. What dialogues need is
compiled while the start is trained or read, what updates need while the first dialogues are played.

Several processes tell it together, each step at the same time. The first alone writes, beside
checkpoints, and what it reads of the run's folder counts for all.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax.dialogue.build import at_once, build_cast, build_domain, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.template_check import differences
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.entry import notes
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import columns_of, evaluation_scenarios
from ibrl_jax.identity import generator
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.hosts import ALONE, Hosts
from ibrl_jax.reporting.board import Board, flatten_metrics, transcript_markdown
from ibrl_jax.reporting.progress import TrainingProgress
from ibrl_jax.reporting.stages import medians, tokens_per_second
from ibrl_jax.rl.learner import TrainingError
from ibrl_jax.trainer import tune
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.checkpoint import Checkpoints
from ibrl_jax.trainer.clock import compiled
from ibrl_jax.trainer.contents import check_contents, keep_contents
from ibrl_jax.trainer.frozen import snapshot
from ibrl_jax.trainer.iteration import Iteration
from ibrl_jax.trainer.measure import dialogue_records, metrics_row
from ibrl_jax.trainer.placing import places, to_be_written
from ibrl_jax.trainer.policies import load_policy, save_policy
from ibrl_jax.trainer.run import RunFolder, as_json, difference, read_json, write_lines
from ibrl_jax.trainer.seating import check_room
from ibrl_jax.trainer.start import Note, start_policy
from ibrl_jax.trainer.weights import Weights, base_of, load_weights
from ibrl_jax.trainer.written import START


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What every command on a config builds first."""

    config: ConfigDict
    domain: Domain
    speech: Speech
    start: Weights
    algorithm: Algorithm


def set_up(
    config: ConfigDict,
    note: Note,
    folder: RunFolder | None = None,
    hosts: Hosts = ALONE,
    *,
    to_play: bool = False,
) -> Stage:
    """The domain, the start, and the algorithm at iteration 0.

    A run that has begun keeps its own copy of its start, which is every role's reference for good.
    `to_play`: start to compile what dialogues need, beside everything else.

    Raises:
        UserError: something that the config names does not exist or cannot be used, also where it
            would be needed only at the end.
    """
    domain = build_domain(config)
    speech = build_speech(config)
    if config.policy.folder:
        tell_template(config, speech, note)
    ledgers = folder.path / "endpoints" if folder else None
    cast = build_cast(config, domain, speech, at_once(config, hosts.count), ledgers, hosts)
    check_names(config, cast)
    if to_play and hosts.count == 1:
        for engine in cast.engines.values():
            engine.programs.begin_warmup()
    kept = folder.policy(START) if folder and folder.begun else None
    if not (kept and (kept / "policy.json").is_file()):
        kept = None
    kept = hosts.exchange("the run's own start", kept and str(kept))[0]
    if kept:
        place = places(config, speech, domain.roles)[domain.roles[0]]
        start = load_weights(config, speech, place, Path(kept))
    else:
        start, _ = start_policy(config, domain, speech, note, hosts)
    frozen = frozen_counterparts(config, start, speech)
    tuned = _tuned(config, speech, domain.roles, start, note, folder, hosts)
    algorithm = Algorithm(tuned, cast, start, frozen, hosts)
    return Stage(config=config, domain=domain, speech=speech, start=start, algorithm=algorithm)


def _tuned(
    config: ConfigDict,
    speech: Speech,
    roles: Sequence[Role],
    start: Weights,
    note: Note,
    folder: RunFolder | None,
    hosts: Hosts,
) -> ConfigDict:
    """The config with what it leaves to a measurement."""
    if config.optimiser.micro_batch and config.optimiser.lanes:
        return config
    if hosts.count > 1:
        raise UserError(
            "config.optimiser.micro_batch and config.optimiser.lanes must not be 0 where several "
            "processes train, since each would measure for itself; give them numbers"
        )
    place = places(config, speech, roles)[roles[0]]
    kept = folder.path / "tuned.json" if folder else None
    if kept is not None and folder is not None and not folder.begun:
        kept.unlink(missing_ok=True)  # of another config, perhaps; this machine's cache has it too
    return tune.choose(config, speech, place, start, note, kept=kept).into(config)


def tell_template(config: ConfigDict, speech: Speech, note: Note) -> None:
    """Say whether dialogues are spelled as the tokenizer's own chat template spells them."""
    found = differences(speech.chat, speech.tokenizer, config.policy.thinking)
    same = f"the chat format {speech.chat.name} is that of the tokenizer's own template"
    note(found or same)


def check_names(config: ConfigDict, cast: Cast) -> None:
    """Seat every scripted family that the config names once, and look for room in a view."""
    domain = cast.domain
    scenario = evaluation_scenarios(config, domain)[0]
    names = [(f"scripted:{family}", domain.roles) for family in config.sft.families]
    names += [(name, (r,)) for r, settings in config.roles.items() for name in settings.counterpart]
    names += [(name, domain.roles) for c in columns_of(config) for name in c.counterparts]
    for name, seats in names:
        if name.startswith("scripted:"):
            family = name.removeprefix("scripted:")
            role = next((r for r in seats if family in domain.families[r]), seats[-1])
            domain.scripted(family, scenario, role, generator(0, "check"))
        elif not name.startswith("frozen:"):
            _seat_one(cast, name, seats)
    check_room(config, cast)


def _seat_one(cast: Cast, name: str, seats: Sequence[Role]) -> None:
    """Raises UserError if a name can hold none of the seats."""
    for index, role in enumerate(seats):
        try:
            cast.named(name, role)
            return
        except UserError:
            if index == len(seats) - 1:
                raise


def frozen_counterparts(config: ConfigDict, start: Weights, speech: Speech) -> dict[str, Params]:
    """What was trained of every counterpart of the form `frozen:...`, by that name."""
    base = base_of(config)
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
            found[name] = start.trained
        elif run and role:
            folder = RunFolder.existing(run).policy(role)
            found[name] = load_policy(folder, start.trained, speech, base)
        else:
            raise UserError(
                f"counterpart {name!r} must be frozen:start or frozen:<run folder>:<role>"
            )
    return found


def train(
    config: ConfigDict, console: Console, hosts: Hosts = ALONE, began: float | None = None
) -> RunFolder:
    """Runs a config to its last iteration, from wherever an earlier start of it was stopped.

    `began`: when the command was started, by `time.perf_counter`; now, if it is not said.

    Raises:
        UserError: the folder holds another run, or something that the config names cannot be used.
        TrainingError: a loss, a gradient or parameters were not finite.
        Stopped: Ctrl-C; what was finished is saved.
    """
    note = notes(console)
    began = time.perf_counter() if began is None else began
    compiled.start()
    check_alike(config, hosts)
    folder = RunFolder.of(config)
    with ExitStack() as held:
        if hosts.is_first:
            folder.check(config)
            check_contents(folder, config)
            held.enter_context(folder.lock())
        hosts.barrier("the run's folder")
        stage = set_up(config, note, folder, hosts, to_play=folder.ended < config.iterations)
        algorithm = stage.algorithm
        for endpoint in algorithm.cast.endpoints.values():
            held.callback(endpoint.ledger.close)
        keep, stopped = config.run.keep_checkpoints, False
        speed: dict[str, float] = {}
        with Checkpoints(folder.path / "checkpoints", keep, hosts) as checkpoints:
            if checkpoints.restore(algorithm):
                note(f"going on from iteration {algorithm.iteration} of {config.iterations}")
            _claim(stage, folder)
            if algorithm.iteration < config.iterations:
                if hosts.is_first and folder.forget_end(algorithm.learners):
                    note("policies and evaluation of the earlier end go; this one writes its own")
                note("compiling")
                algorithm.begin_warm()
                speed["start_seconds"] = time.perf_counter() - began
                note(
                    f"the first dialogue begins after {speed['start_seconds']:.1f} s; what updates "
                    "need is compiled beside it"
                )
                stopped = _iterate(stage, folder, checkpoints, console)
                speed |= {"programs": algorithm.compilations, "compiled_anew": compiled.anew}
        if stopped and algorithm.iteration < config.iterations:
            hosts.close()
            raise Stopped(
                f"stopped after iteration {algorithm.iteration} of {config.iterations}, "
                "all saved; the same command goes on from here"
            )
        _export(stage, folder, speed)
        if stopped:
            hosts.close()
            raise Stopped(f"all {config.iterations} iterations are done and saved in {folder.path}")
    return folder


def check_alike(config: ConfigDict, hosts: Hosts) -> None:
    """Raises UserError, in every process, if they were started on different settings."""
    everyones = hosts.exchange("config", as_json(config))
    for index, other in enumerate(everyones):
        found = difference(everyones[0], other, ("hosts",))
        if found:
            key, first, here = found
            raise UserError(
                f"process 0 was started with config.{key} = {first!r} and process {index} with "
                f"{here!r}; start the same command on every host"
            )


def _claim(stage: Stage, folder: RunFolder) -> None:
    """Make the folder this run's, as it was at the iteration that it goes on from."""
    config, base, hosts = stage.config, base_of(stage.config), stage.algorithm.hosts
    start = to_be_written(stage.start.trained, hosts)
    if start is not None:
        began = folder.begun
        folder.claim(config)
        if not began:
            keep_contents(folder, config)
        folder.rewind(stage.algorithm.iteration)
        about, started = {"source": START}, folder.policy(START)
        save_policy(started, start, stage.speech, about, base=base, keep=began)
    hosts.barrier("the folder is claimed")


def _export(stage: Stage, folder: RunFolder, speed: Mapping[str, float]) -> None:
    """The trained policies as folders, and what came out; `speed` is of this start of the run."""
    algorithm, hosts = stage.algorithm, stage.algorithm.hosts
    _keep_policies(stage, folder)
    endpoints = _endpoints(stage)
    if not hosts.is_first:
        return
    folder.summary(
        {
            "name": stage.config.name,
            "seed": stage.config.seed,
            "iterations": algorithm.iteration,
            "updates": {role: algorithm.version(role) for role in algorithm.learners},
            "endpoints": endpoints,
            "remark": _remark(stage),
            **speed,
            **_last(folder, stage.domain.measured[0].key),
        }
    )


def _keep_policies(stage: Stage, folder: RunFolder, at: int | None = None) -> None:
    """What trains now, as policy folders; `at`: as snapshots of that iteration."""
    algorithm, base = stage.algorithm, base_of(stage.config)
    for role in algorithm.learners:
        about = {"source": str(folder.path), "role": role, "updates": algorithm.version(role)}
        about |= {} if at is None else {"iteration": at}
        params = to_be_written(algorithm.params(role), algorithm.hosts)
        if params is not None:
            name = role if at is None else snapshot(role, at)
            save_policy(folder.policy(name), params, stage.speech, about, base=base)


def _endpoints(stage: Stage) -> dict[str, Any]:
    """What was asked of each endpoint, by its name; of several processes, of each by itself."""
    found = {n: e.ledger.summary() for n, e in stage.algorithm.cast.endpoints.items()}
    everyones = stage.algorithm.hosts.exchange("endpoints", found)
    if len(everyones) == 1:
        return found
    return {
        f"{name}, process {index}": summary
        for index, theirs in enumerate(everyones)
        for name, summary in theirs.items()
    }


def _iterate(stage: Stage, folder: RunFolder, checkpoints: Checkpoints, console: Console) -> bool:
    """Iterations up to the last one; True if a Ctrl-C came (then at the end of its iteration)."""
    config, algorithm = stage.config, stage.algorithm
    hosts = algorithm.hosts
    with ExitStack() as entered:
        scribe = entered.enter_context(_Scribe(stage, folder, console)) if hosts.is_first else None
        note = scribe.note if scribe else notes(console)
        until = "up to the next checkpoint" if config.pipeline.max_staleness else "this iteration"
        stop = entered.enter_context(_gentle_stop(note, until))
        entered.callback(algorithm.close)
        stopping = False
        algorithm.clock.take()
        while algorithm.iteration < config.iterations and not stopping:
            try:
                done = algorithm.iterate()
            except TrainingError:  # another role may have moved: the last checkpoint counts
                raise
            except UserError:  # before any update: nothing that was finished is lost
                checkpoints.save(algorithm)
                raise
            if scribe:
                scribe.write(done)
            last = algorithm.iteration == config.iterations
            every = config.run.snapshots_every
            if every and (last or algorithm.iteration % every == 0):
                _keep_policies(stage, folder, at=algorithm.iteration)
            algorithm.clock.lap("write")
            # Played by older parameters, dialogues under way could not be played again.
            stopping = any(hosts.exchange("stop", stop.asked)) and algorithm.settled
            if last or stopping or algorithm.iteration % config.run.checkpoint_every == 0:
                checkpoints.save(algorithm)
            algorithm.clock.lap("save")
    return stopping


class _Scribe:
    """Writes every iteration into the run's folder, to TensorBoard and to the terminal."""

    def __init__(self, stage: Stage, folder: RunFolder, console: Console) -> None:
        self._stage, self._folder, self._told = stage, folder, False
        algorithm, events = stage.algorithm, folder.path / "tensorboard"
        again = algorithm.iteration if events.is_dir() else None
        self._board = Board(events, purge_step=again)
        self._progress = TrainingProgress(
            total=stage.config.iterations, done=algorithm.iteration, every=10, console=console
        )
        self.note = self._progress.note

    def write(self, done: Iteration) -> None:
        config, algorithm, folder = self._stage.config, self._stage.algorithm, self._folder
        row = metrics_row(algorithm, done, algorithm.compiled_late)
        records = dialogue_records(config, done, self._stage.speech.tokenizer)
        if records:
            write_lines(folder.dialogues(done.iteration), records)
        folder.record(row)
        self._board.scalars(done.iteration, flatten_metrics(row))
        if done.iteration % config.run.text_every == 0 and records:
            self._board.text("transcript", done.iteration, transcript_markdown(records[0]))
        self._progress.update(row)
        if not self._told and algorithm.warmed is not None:
            programs, seconds = algorithm.warmed
            self._told = True
            self.note(
                f"compiled {programs} programs in {seconds:.1f} s; of all that XLA was given, "
                f"{compiled.anew} anew and {compiled.cached} from the cache"
            )

    def __enter__(self) -> _Scribe:
        self._progress.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.__exit__(kind, error, trace)
        if error is None:
            self._board.close()


def train_sentence(folder: RunFolder) -> str:
    """What came out of training, in a line."""
    found = read_json(folder.path / "summary.json")
    rewards = ", ".join(
        f"{role} {value:+.3f}" for role, value in found["reward"].items() if value is not None
    )
    return (
        f"{folder.path}: {found['iterations']} iterations in {found['train_seconds']:.0f} s, "
        f"reward {rewards}, {found['measure']} {_percent(found[found['measure']])}"
        + (f" ({found['remark']})" if found["remark"] else "")
    )


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"


class Stopped(KeyboardInterrupt):
    """Ctrl-C: the iteration was finished and saved. Its message says how to go on."""


class _Stop:
    asked = False


@contextmanager
def _gentle_stop(note: Note, until: str) -> Iterator[_Stop]:
    """The first Ctrl-C asks for a stop after the iteration; the second one interrupts at once.

    `until`: what is finished first, in words.
    """
    stop = _Stop()

    def ask(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True
        note(f"finishing {until}, then saving; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


def _remark(stage: Stage) -> str:
    """What has to stand beside the rewards: that rules paid or answered some role."""
    roles = stage.config.roles.values()
    ruled = any(not role.judge for role in roles)
    scripted = any(name.startswith("scripted:") for role in roles for name in role.counterpart)
    return stage.domain.remark if ruled or scripted else ""


def _last(folder: RunFolder, success: str) -> dict[str, Any]:
    """The end of the curves: means over the last ten iterations, and checks over all of them."""
    rows = [json.loads(line) for line in Path(folder.metrics).read_text().splitlines()]
    tail = rows[-10:]
    roles = {}
    for role in tail[-1]["roles"]:
        rewards = [
            r["roles"][role]["reward"] for r in tail if r["roles"][role]["reward"] is not None
        ]
        roles[role] = float(np.mean(rewards)) if rewards else None
    successes = [r["dialogues"][success] for r in tail]
    successes = [value for value in successes if value is not None]
    gaps = [v.get("sampler_trainer_max") for r in rows for v in r["roles"].values()]
    gaps = [gap for gap in gaps if gap is not None]
    return {
        "reward": roles,
        "measure": success,
        success: float(np.mean(successes)) if successes else None,
        "train_seconds": float(sum(r["seconds"]["total"] for r in rows)),
        "seconds_per_iteration": float(np.median([r["seconds"]["total"] for r in rows])),
        "stages": medians([r["seconds"] for r in rows]),
        "tokens_per_second": medians([tokens_per_second(r) for r in rows]),
        "compilations_after_warmup": max(r["compilations"] for r in rows),
        "sampler_trainer_max": max(gaps) if gaps else None,
        "coverage": min(r["coverage"] for r in rows),
    }
