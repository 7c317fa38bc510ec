"""How an update's rows are cut up, measured once: micro-batch, lengths, lanes.

```
                 rows a micro-batch      4     8    16    32
microseconds a token, one lane          71    60    58    61      the climb ends where it gets worse
                      two lanes         40    33    35    36      8 rows, two at a time
```

A result is kept by everything that shapes it, so that a second run of a network on a machine
measures nothing; and a run keeps its own, so that one that goes on later is cut up as it began:
other micro-batches are the same sums in another order, and round otherwise.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from ibrl_jax import host
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError
from ibrl_jax.rl.batches import RoleBatch
from ibrl_jax.rl.cut import places
from ibrl_jax.rl.learner import Learner
from ibrl_jax.trainer import build as builders
from ibrl_jax.trainer.placing import Place
from ibrl_jax.trainer.weights import Weights
from ibrl_jax.whole import replacing

CACHE = Path(".cache") / "tuned.json"
"""What was measured on this machine, by what was measured."""

FIRST, REPEATS = 4, 3
"""Rows of the first candidate on one device, and runs of each, of which the fastest counts."""

WORSE, BETTER = 1.03, 0.9
"""The climb ends at this much more time a token; more lanes or a cut must take this much less."""

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """`micro_batch` in rows; `lengths` in tokens, ascending, empty: never cut; `lanes` side by
    side (see `LearnerSettings`)."""

    micro_batch: int
    lengths: tuple[int, ...]
    lanes: int

    def into(self, config: ConfigDict) -> ConfigDict:
        """A copy of the config that asks for this."""
        settled = config.copy_and_resolve_references()
        with settled.unlocked():
            settled.optimiser.update(asdict(self))
        return settled

    @classmethod
    def of(cls, found: dict[str, Any]) -> Tuned:
        """From JSON. Raises KeyError, TypeError or ValueError for anything else."""
        lengths = tuple(int(n) for n in found["lengths"])
        return cls(
            micro_batch=int(found["micro_batch"]), lengths=lengths, lanes=int(found["lanes"])
        )


def choose(
    config: ConfigDict,
    speech: Speech,
    place: Place,
    start: Weights,
    note: Callable[[str], None],
    *,
    kept: Path | None,
    cache: Path = CACHE,
    clock: Clock = time.perf_counter,
) -> Tuned:
    """What the config says, and in the place of each 0 what is fastest here.

    Args:
        start: any values of the network, where they are trained.
        kept: the run's own file: what it holds counts, and it is written if it does not exist.
        cache: where results of all runs are kept.

    Raises:
        UserError: a run's own file is damaged, or not even the smallest micro-batch fits.
    """
    asked = config.optimiser
    if asked.micro_batch and asked.lanes:
        return Tuned(micro_batch=asked.micro_batch, lengths=tuple(asked.lengths), lanes=asked.lanes)
    if kept is not None and kept.is_file():
        try:
            return Tuned.of(json.loads(kept.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{kept} is damaged; give config.optimiser.micro_batch and config.optimiser.lanes "
                "the values that the run began with"
            ) from error
    key = _key(config, speech, place)
    tuned = _cached(cache, key)
    if tuned is None:
        note("measuring how to cut up an update")
        tuned = _measure(_Trial(config, speech, place, start, clock), note)
        _remember(cache, key, tuned)
    if kept is not None:
        _write(kept, asdict(tuned))
    return tuned


class _Trial:
    """Times passes of an update, forward and back, over full rows of random tokens."""

    def __init__(
        self, config: ConfigDict, speech: Speech, place: Place, start: Weights, clock: Clock
    ) -> None:
        self.config, self.place = config, place
        self._speech, self._start, self._clock = speech, start, clock
        self.rows = config.rollout.draws * config.rollout.group
        self.length = config.rollout.max_view_tokens
        self.budget = min(config.optimiser.memory_gb * 1e9 or _memory(), 2 * _memory())

    @property
    def share(self) -> int:
        """Devices over which a micro-batch is spread."""
        mesh = self.place.mesh
        return 1 if mesh is None else mesh.shape["data"] * mesh.shape["fsdp"]

    def lanes(self) -> tuple[int, ...]:
        """Numbers of lanes to try: several where cores would idle otherwise."""
        if self.config.optimiser.lanes:
            return (self.config.optimiser.lanes,)
        cores = host.cores()
        if self.place.mesh is not None or jax.default_backend() != "cpu" or cores == 1:
            return (1,)
        at_once = _updates_at_once(self.config)
        return tuple(sorted({1, max(1, cores // at_once)}))

    def sizes(self) -> Iterator[int]:
        """Micro-batches to try, the smallest first."""
        if self.config.optimiser.micro_batch:
            yield self.config.optimiser.micro_batch
            return
        size = min(max(FIRST, self.share), self.rows)
        while size < self.rows:
            yield size
            size *= 2
        yield self.rows

    def seconds(self, micro: int, length: int) -> dict[int, float] | None:
        """Seconds a token by number of lanes; None if it takes more memory than there may be."""
        most = max(self.lanes())
        lanes = Tuned(micro_batch=micro, lengths=(length,), lanes=most)
        learner: Learner = builders.build_learner(lanes.into(self.config), self._speech)
        vocabulary = self._speech.model.config.vocab_size
        trained = places(length, self.config.optimiser.trained_share)
        batch = self.place.batch(_batch(most * micro, length, trained, vocabulary), micro)
        hyper = builders.hyper_of(self.config, next(iter(self.config.roles)))
        args = (self._start.trained, self._start.frozen, batch, hyper)
        plan: Any = learner.compile_gradient(*args).memory_analysis()
        needed = plan.temp_size_in_bytes

        def timed(lanes: int) -> float:
            began = self._clock()
            jax.block_until_ready(learner.gradient(*args, lanes))
            return (self._clock() - began) / (most * micro * length)

        fit = [n for n in self.lanes() if n * needed <= self.budget]
        found: dict[int, float] = {}
        for n in fit:
            timed(n)
        for _ in range(REPEATS):  # one after the other, so that what else runs falls on all alike
            for n in fit:
                found[n] = min(found.get(n, np.inf), timed(n))
        return found or None


@dataclass(kw_only=True)
class _Best:
    micro: int = 0
    lanes: int = 1
    seconds: float = field(default=np.inf)


def _measure(trial: _Trial, note: Callable[[str], None]) -> Tuned:
    best = _Best()
    for micro in trial.sizes():
        found = trial.seconds(micro, trial.length)
        if found is None:
            break
        lanes = _lanes_of(found)
        if found[lanes] > best.seconds * WORSE:
            break
        if found[lanes] < best.seconds:
            best = _Best(micro=micro, lanes=lanes, seconds=found[lanes])
    if not best.micro:
        raise UserError(
            f"not even {next(trial.sizes())} rows of {trial.length} tokens fit into "
            f"{trial.budget / 1e9:.1f} GB; set config.optimiser.memory_gb, or micro_batch itself"
        )
    lengths = tuple(trial.config.optimiser.lengths)
    if not lengths and not trial.config.optimiser.micro_batch:
        lengths = _lengths(trial, best)
    tuned = Tuned(micro_batch=best.micro, lengths=lengths, lanes=best.lanes)
    cut = ", ".join(map(str, sorted({*lengths, trial.length})))
    note(
        f"measured: {best.micro} rows a pass, {best.lanes} at a time, of {cut} tokens: "
        f"{1 / best.seconds:,.0f} tokens/s in updates"
    )
    return tuned


def _lanes_of(seconds: dict[int, float]) -> int:
    """The fastest number of lanes; the fewest, unless more take so much less time."""
    few = min(seconds)
    fastest = min(seconds, key=lambda n: seconds[n])
    return fastest if seconds[fastest] < seconds[few] * BETTER else few


def _lengths(trial: _Trial, best: _Best) -> tuple[int, ...]:
    """Half of the longest view, if a row cut to it takes so much less; and the longest itself,
    where not all tokens of it need have log-probs (see `ibrl_jax.rl.cut`)."""
    whole = (trial.length,) if trial.config.optimiser.trained_share < 1 else ()
    half = -(-trial.length // 16) * 8
    found = trial.seconds(best.micro, half) if half < trial.length else None
    if found is None or best.lanes not in found:
        return whole
    pays = found[best.lanes] * half < best.seconds * trial.length * BETTER
    return (half, *whole) if pays else whole


def _updates_at_once(config: ConfigDict) -> int:
    """The most roles that update side by side in one iteration."""
    learners = [own for own in config.roles.values() if own.train]
    if config.isolation["update"] == "tied" or len(learners) < 2:
        return 1
    if not config.stabilise.stagger:
        return len(learners)
    span = int(np.lcm.reduce([own.update_every for own in learners]))
    return max(
        sum(k % own.update_every == own.update_offset % own.update_every for own in learners)
        for k in range(span)
    )


def _batch(rows: int, length: int, trained: int, vocabulary: int) -> RoleBatch:
    """Full rows of random tokens, so many of which, at the end of each, were sampled."""
    rng = np.random.default_rng(0)
    shape = (rows, length)
    first = max(1, length - trained)
    mask = np.broadcast_to(np.arange(length) >= first, shape)
    return RoleBatch(
        ids=rng.integers(vocabulary, size=shape, dtype=np.int32),
        positions=np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        segment_ids=np.ones(shape, np.int32),
        segment=mask.astype(np.int8),
        loss_mask=mask,
        behaviour_logp=np.zeros(shape, np.float32),
        reference_logp=np.zeros(shape, np.float32),
        importance=np.ones(shape, np.float32),
        advantage=np.ones(rows, np.float32),
        degenerate=np.zeros(rows, bool),
        weight=np.ones(rows, np.float32),
    )


def _memory() -> float:
    """Half of the bytes that the device, or the host where that is a CPU, has to give."""
    device = jax.local_devices()[0]
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return (stats["bytes_limit"] - stats.get("bytes_in_use", 0)) / 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def _key(config: ConfigDict, speech: Speech, place: Place) -> str:
    """Everything that a result depends on, as a digest."""
    said = {
        "device": jax.local_devices()[0].device_kind,
        "cores": host.cores(),
        "memory": _memory() // 1e9 if not config.optimiser.memory_gb else 0,
        "jax": jax.__version__,
        "model": repr(speech.model.config),
        "lora": repr(speech.model.lora),
        "mesh": None if place.mesh is None else dict(place.mesh.shape),
        "length": config.rollout.max_view_tokens,
        "rollouts": config.rollout.draws * config.rollout.group,
        "optimiser": config.optimiser.to_dict(),
        "at_once": _updates_at_once(config),
    }
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=repr).encode()).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _cached(cache: Path, key: str) -> Tuned | None:
    """A result that is known; a damaged one is measured anew."""
    try:
        return Tuned.of(_read(cache)[key])
    except (KeyError, TypeError, ValueError):
        return None


def _remember(cache: Path, key: str, tuned: Tuned) -> None:
    _write(cache, _read(cache) | {key: asdict(tuned)})


def _write(path: Path, value: Any) -> None:
    """Whole or not at all: another run may read or write it at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside:
        beside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
