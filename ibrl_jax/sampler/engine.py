"""Many dialogues sampled at once: slots that keep caches between turns, and fixed shapes.

A dialogue (one role's side of it) holds a slot for its whole life. A request brings all ids of its
view; what the slot's cache already holds of them is not read again:

```
slot holds     a b c d e f g
request        a b c d X Y             a turn was retracted: the common prefix stays
read anew              X Y             then sampling goes on from position 6
```

A network with delta layers cannot go back to any place in a view: it goes on from the end of what
the slot holds, from where the last request began to read, or from nothing.

Calls take their shapes from the settings' buckets: rows R, new tokens T, cache length S. `warmup`
compiles each program that can occur; after it nothing compiles.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from ibrl_jax.models.params import Params
from ibrl_jax.models.serving import Adapted, ServingParams
from ibrl_jax.sampler.compiled import Programs, padding
from ibrl_jax.sampler.programs import Batch, Sampled
from ibrl_jax.sampler.store import FRESH, MARK, NOW
from ibrl_jax.sampler.types import Completion, EngineStats, Request

log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """What the host knows of a slot: which ids its cache holds, and whose they are."""

    owner: int = -1  # the load that the cache was computed with; -1: of none
    ids: list[int] = field(default_factory=list)
    mark: int = 0  # where the last request began to read

    def held(self, owner: int, ids: list[int]) -> int:
        """How many of `ids` the cache holds; the last is always read anew, for its logits."""
        if self.owner != owner:
            return 0
        n = min(len(self.ids), len(ids) - 1)
        if self.ids[:n] == ids[:n]:
            return n
        return next(i for i in range(n) if self.ids[i] != ids[i])

    def start(self, owner: int, ids: list[int], rewinds: bool) -> tuple[int, int]:
        """From which entry to read, and the state that a delta layer has there."""
        held = self.held(owner, ids)
        if rewinds or held == len(self.ids) > 0:
            return held, NOW
        return (self.mark, MARK) if 0 < self.mark <= held else (0, FRESH)


@dataclass
class _Row:
    """A request on its way: where its reading stands, and how much it may sample."""

    index: int
    request: Request
    ids: list[int]
    start: int
    source: int  # of a delta layer's state: FRESH, MARK or NOW
    limit: int
    at: int = 0  # its row of the call
    begun: bool = False  # whether a call has read a part of it


class Engine:
    """Samples for many dialogues and several sets of parameters, from one thread at a time.

    Args:
        programs: the network, sizes and compiled programs; other engines may share them, while
            slots and parameters are an engine's own.
    """

    def __init__(self, programs: Programs) -> None:
        model, settings = programs.model, programs.settings
        self.programs = programs
        self.settings = settings
        self.stop_ids = programs.stop_ids
        self.stats = EngineStats()
        self._config = model.config
        self._params: dict[str, tuple[int, ServingParams | Adapted]] = {}
        self._loads = 0
        self._slots = [_Slot() for _ in range(settings.slots)]
        self._free = list(range(settings.slots))
        self._store = programs.empty_store()
        self._rewinds = "delta" not in model.config.period

    # Parameters

    def load(self, name: str, params: Params) -> None:
        """Set or replace a named policy; caches computed under that name are forgotten.

        `params` is what trains: all parameters, or adapters over the base that the programs hold.
        The engine keeps a copy of its own (in the compute type), so the caller may donate `params`
        afterwards.

        Raises:
            ValueError: if structure, shapes or types are not the model's.
        """
        _check_same(self.programs.abstract, params, f"parameters '{name}'")
        self._loads += 1
        self._params[name] = (self._loads, self.programs.serve(params))

    # Slots

    def acquire(self) -> int:
        """The lowest free slot.

        Raises:
            RuntimeError: if none is free.
        """
        if not self._free:
            raise RuntimeError(f"all {self.settings.slots} slots of the engine are taken")
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        """Give a slot back; its cache is forgotten."""
        if slot in self._free or not 0 <= slot < self.settings.slots:
            raise ValueError(f"slot {slot} was not acquired")
        self._slots[slot] = _Slot()
        heapq.heappush(self._free, slot)

    # Programs

    @property
    def compilations(self) -> int:
        """Programs built so far, by whichever of the engines that share them."""
        return self.programs.compilations

    def warmup(self) -> None:
        """Compile every program that can occur."""
        self.programs.warmup()

    # Sampling

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample for each request, in order. Requests of one set of parameters share calls.

        A view that leaves no room below `max_length` ends with "length" and no tokens.

        Raises:
            ValueError: for a request that is not sound, before anything is changed: an unknown
                name, a slot that is free or asked for twice, no ids, ids outside the vocabulary.
        """
        begun = time.perf_counter()
        groups: dict[str, list[_Row]] = {}
        for row in self._check(requests):
            if row.limit > 0:
                groups.setdefault(row.request.params, []).append(row)
        flights: list[tuple[list[_Row], Sampled]] = []
        aligned = self.programs.aligned
        most = self.settings.slots if aligned else self.settings.rows[-1]
        try:
            with self.programs.alone if aligned else nullcontext():
                for name, rows in groups.items():
                    for i in range(0, len(rows), most):
                        flights.append((rows[i : i + most], self._fly(name, rows[i : i + most])))
                landed = jax.device_get([sampled for _, sampled in flights])
        except BaseException:  # what the store holds is not known: all of it is forgotten
            self._slots = [_Slot() for _ in self._slots]
            self._store = self.programs.empty_store()
            raise
        done = [Completion([], [], "length")] * len(requests)
        for (rows, _), sampled in zip(flights, landed, strict=True):
            self._land(rows, sampled, done)
        self.stats.seconds += time.perf_counter() - begun
        return done

    def _fly(self, name: str, rows: list[_Row]) -> Sampled:
        """Start the calls of one group: pieces of long texts first, then the one that samples."""
        widest = self.settings.new_tokens[-1]
        while long := [row for row in rows if len(row.ids) - row.start > widest]:
            self._call(name, long, [row.start + widest for row in long], sample=False)
        return self._call(name, rows, [len(row.ids) for row in rows], sample=True)

    def _call(self, name: str, rows: list[_Row], stops: list[int], *, sample: bool) -> Sampled:
        """Start one call that reads `ids[start:stop]` of each row."""
        entries = max(
            stop + (row.limit - 1 if sample else 0) for row, stop in zip(rows, stops, strict=True)
        )
        newest = max(stop - row.start for row, stop in zip(rows, stops, strict=True))
        shape = self.programs.shape(len(rows), newest, entries)
        owner, params = self._params[name]
        batch = padding(self.settings, shape)
        start = batch["start"]
        for index, (row, stop) in enumerate(zip(rows, stops, strict=True)):
            count = stop - row.start
            r = row.at = row.request.slot if shape.aligned else index
            start.slots[r] = row.request.slot
            start.starts[r] = row.start
            start.sources[r] = NOW if row.begun else row.source
            start.marked[r] = not row.begun
            batch["ids"][r, :count] = row.ids[row.start : stop]
            batch["counts"][r] = count
            batch["keys"][r] = row.request.key
            batch["temperatures"][r] = row.request.temperature
            batch["limits"][r] = row.limit if sample else 0
            self.stats.tokens_read += count
            slot = self._slots[row.request.slot]
            slot.owner, slot.ids = owner, row.ids[:stop]
            if not row.begun:
                slot.mark = row.start
            row.start, row.begun = stop, True
        self.stats.calls += 1
        self._store, sampled = self.programs.run(shape, params, self._store, Batch(**batch))
        return sampled

    def _land(self, rows: list[_Row], sampled: Sampled, done: list[Completion]) -> None:
        """Turn what a call gave into completions, and note what the slots now hold."""
        self.stats.decode_steps += int(sampled.steps)
        all_ids, all_logps = sampled.ids.tolist(), sampled.logps.tolist()
        for row in rows:
            ids, logps, n = all_ids[row.at], all_logps[row.at], int(sampled.lengths[row.at])
            end = "stop" if ids[n - 1] in self.stop_ids else "length"
            done[row.index] = Completion(ids[:n], logps[:n], end)
            self._slots[row.request.slot].ids.extend(ids[: n - 1])  # the last was not read
            self.stats.tokens_sampled += n

    def _check(self, requests: Sequence[Request]) -> list[_Row]:
        """Refuse what is not sound before anything is changed; then find what each slot holds."""
        slots = [request.slot for request in requests]
        if len(set(slots)) < len(slots):
            raise ValueError("two requests of one call have the same slot")
        free, rows = set(self._free), []
        for index, request in enumerate(requests):
            ids = list(request.ids)
            what = f"request {index} of slot {request.slot}"
            if request.slot in free or not 0 <= request.slot < self.settings.slots:
                raise ValueError(f"{what}: the slot was not acquired")
            if request.params not in self._params:
                raise ValueError(f"{what}: no parameters are loaded as '{request.params}'")
            if not ids:
                raise ValueError(f"{what}: there are no ids to go on from")
            if not 0 < request.max_new <= self.settings.max_new:
                raise ValueError(
                    f"{what}: max_new is {request.max_new}, not in 1 to {self.settings.max_new}"
                )
            if not 0 <= request.temperature < float("inf"):
                raise ValueError(f"{what}: temperature is {request.temperature}")
            if len(request.key) != 2 or not all(0 <= k < 2**32 for k in request.key):
                raise ValueError(f"{what}: key {request.key} is not two numbers of 32 bits")
            owner = self._params[request.params][0]
            start, source = self._slots[request.slot].start(owner, ids, self._rewinds)
            if min(ids[start:]) < 0 or max(ids[start:]) >= self._config.vocab_size:
                raise ValueError(
                    f"{what}: an id is outside the vocabulary of {self._config.vocab_size}"
                )
            limit = min(request.max_new, self.settings.max_length - len(ids))
            rows.append(_Row(index, request, ids, start, source, limit))
        self.stats.tokens_cached += sum(row.start for row in rows)
        return rows


def _check_same(wanted: Params, given: Params, what: str) -> None:
    """Raise ValueError at the first leaf that is missing, too many, or of another shape or type."""

    def leaves(tree: Params) -> dict[str, tuple]:
        flat = jax.tree_util.tree_leaves_with_path(tree)
        return {jax.tree_util.keystr(p): (x.shape, jnp.dtype(x.dtype)) for p, x in flat}

    want, got = leaves(wanted), leaves(given)
    for path in want | got:
        if want.get(path) != got.get(path):
            found, expected = got.get(path, "missing"), want.get(path, "nothing")
            raise ValueError(f"{what} at {path}: {found}, expected {expected}")
