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

Requests wait in line. A step of the engine takes the first of them and samples a block of tokens
for each; who has stopped leaves, and the others go on in the next step, beside those who have come
meanwhile:

```
step         1          2          3
request 0    # # # #    # # |                    a turn of 6 tokens in blocks of 4
request 1    # # # |    .          # # # #       it asks again, and is heard at once
request 2    .          # # # #    # # # #       it came later
```

What is taken together depends on the requests and the tokens alone, never on the clock.

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

from ibrl_jax.models.cache import Cache
from ibrl_jax.models.params import Params
from ibrl_jax.models.serving import Adapted, ServingParams
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.programs import Sampled, Table
from ibrl_jax.sampler.store import FRESH, MARK, NOW
from ibrl_jax.sampler.types import Completion, EngineStats, Request

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Slot:
    """What the host knows of a slot: which ids its cache holds, and whose they are."""

    owner: int = -1  # the load that the cache was computed with; -1: of none
    ids: list[int] = field(default_factory=list)
    length: int = 0  # how many of the ids have been read
    mark: int = 0  # where the last request began to read

    def held(self, owner: int, ids: list[int]) -> int:
        """How many of `ids` the cache holds; the last is always read anew, for its logits."""
        if self.owner != owner:
            return 0
        n = min(self.length, len(ids) - 1)
        if self.ids[:n] == ids[:n]:
            return n
        return next(i for i in range(n) if self.ids[i] != ids[i])

    def start(self, owner: int, ids: list[int], rewinds: bool) -> tuple[int, int]:
        """From which entry to read, and the state that a delta layer has there."""
        held = self.held(owner, ids)
        if rewinds or held == self.length > 0:
            return held, NOW
        return (self.mark, MARK) if 0 < self.mark <= held else (0, FRESH)


@dataclass(eq=False)
class _Row:
    """A request on its way: where its reading stands, and how much it may sample."""

    ticket: int
    request: Request
    slot: _Slot
    owner: int  # the load of its parameters
    ids: list[int]  # the view, what has been sampled of it included
    start: int
    source: int  # of a delta layer's state: FRESH, MARK or NOW
    left: int  # tokens that it may still sample
    logps: list[float] = field(default_factory=list)
    at: int = 0  # its row of the call
    begun: bool = False  # whether a call has read a part of it

    @property
    def going_on(self) -> bool:
        return bool(self.logps)


class Engine:
    """Samples for many dialogues and several sets of parameters, from one thread at a time.

    Slots may be acquired and released by another thread during a step.

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
        self._line: list[_Row] = []
        self._tickets = 0
        self._opening: list[int] = []
        self._openings: dict[str, tuple[int, Cache]] = {}  # the load that each was read with

    # Parameters

    def load(self, name: str, params: Params) -> None:
        """Set or replace a named policy; caches computed under that name are forgotten.

        `params` is what trains: all parameters, or adapters over the base that the programs hold.
        The engine keeps a copy of its own (in the compute type), so the caller may donate `params`
        afterwards.

        Raises:
            ValueError: if structure, shapes or types are not the model's.
            RuntimeError: if a request under that name is on its way.
        """
        _check_same(self.programs.abstract, params, f"parameters '{name}'")
        if any(row.request.params == name for row in self._waiting()):
            raise RuntimeError(f"parameters '{name}' are replaced while a request is on its way")
        self._loads += 1
        self._openings.pop(name, None)
        self._params[name] = (self._loads, self.programs.serve(params))

    def share(self, ids: Sequence[int]) -> None:
        """Declare what most views begin with; none by default.

        It is read once with each set of parameters, when a view that begins so is first met, and
        copied from then on.
        """
        self._opening, self._openings = list(ids), {}
        if self._opening:
            self.programs.expect_opening(len(self._opening))

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

    @property
    def busy(self) -> bool:
        """Whether a request is on its way."""
        return bool(self._waiting())

    def submit(self, request: Request) -> int:
        """Put a request in line; its ticket comes back with its completion from a `step`.

        Raises:
            ValueError: for a request that is not sound, before anything is changed: an unknown
                name, a slot that is free or asked for twice, no ids, ids outside the vocabulary.
        """
        self._join([self._row(request)])
        return self._line[-1].ticket

    def run(self, requests: Sequence[Request]) -> list[Completion]:
        """Sample for each request to its end, in order; nothing else is on its way.

        A view that leaves no room below `max_length` ends with "length" and no tokens.

        Raises:
            ValueError: as `submit`, of any of them before anything is changed.
        """
        if self.busy:
            raise RuntimeError("other requests are on their way")
        rows = [self._row(request) for request in requests]
        self._join(rows)
        done: dict[int, Completion] = {}
        while self.busy:
            done.update(self.step())
        return [done[row.ticket] for row in rows]

    def step(self) -> list[tuple[int, Completion]]:
        """Sample a block for the first in line, as many as a call has rows.

        Requests of one set of parameters that begin share a call, and so do those that go on.

        Returns:
            who has come to an end, in order: tickets and completions.
        """
        begun = time.perf_counter()
        aligned = self.programs.aligned
        most = self.settings.slots if aligned else self.settings.rows[-1]
        rows = self._waiting()[:most]
        groups: dict[tuple[str, bool], list[_Row]] = {}
        for row in rows:
            if row.left > 0:
                groups.setdefault((row.request.params, row.going_on), []).append(row)
        try:
            with self.programs.alone if aligned else nullcontext():
                flights = [
                    (group, self._fly(name, group, going_on))
                    for (name, going_on), group in groups.items()
                ]
                landed = jax.device_get([sampled for _, sampled in flights])
        except BaseException:  # what the store holds is not known: all of it is forgotten
            self._slots = [_Slot() for _ in self._slots]
            self._line, self._openings = [], {}
            self._store = self.programs.empty_store()
            raise
        for (group, _), sampled in zip(flights, landed, strict=True):
            self._land(group, sampled)
        done = [row for row in rows if row.left <= 0]
        left = {row.ticket for row in done}
        self._line = [row for row in self._line if row.ticket not in left]
        self.stats.steps += 1
        self.stats.seconds += time.perf_counter() - begun
        return [(row.ticket, self._completion(row)) for row in done]

    def _waiting(self) -> list[_Row]:
        """Those in line; who has given its slot back is no longer."""
        self._line = [r for r in self._line if self._slots[r.request.slot] is r.slot]
        return self._line

    def _fly(self, name: str, rows: list[_Row], going_on: bool) -> Sampled:
        """Start the calls of one group: pieces of long texts first, then the one that samples."""
        stops = [len(row.ids) for row in rows]
        if not going_on:
            self._copy_opening(name, rows)
            self._read_ahead(name, rows, stops)
        return self._call(name, rows, stops, sample=True)

    def _read_ahead(self, name: str, rows: list[_Row], stops: list[int]) -> None:
        """Read pieces until no more is left before each row's stop than one call should read."""
        ends = list(zip(rows, stops, strict=True))
        unread = [stop - row.start for row, stop in ends]
        width = self.settings.width(unread, aligned=self.programs.aligned)
        while long := [row for row, stop in ends if stop - row.start > width]:
            self._call(name, long, [row.start + width for row in long], sample=False)

    def _copy_opening(self, name: str, rows: list[_Row]) -> None:
        """Let rows that read from the beginning start after the opening, if theirs is it."""
        opening = self._opening
        n = len(opening)
        fresh = [
            row for row in rows if row.start == 0 and row.ids[:n] == opening and len(row.ids) > n
        ]
        if not n or not fresh:
            return
        if name not in self._openings:
            first = fresh.pop(0)
            self._read_ahead(name, [first], [n])
            self._call(name, [first], [n], sample=False)
            copied = self.programs.take(self._store, first.request.slot, n)
            self._openings[name] = (self._params[name][0], copied)
            first.source, first.begun = NOW, False  # its request begins after the opening
        owner, copied = self._openings[name]
        assert owner == self._params[name][0], "an opening of other parameters"
        if not fresh:
            return
        slots = [row.request.slot for row in fresh]
        self._store = self.programs.give(self._store, copied, slots, n)
        for row in fresh:
            row.start, row.source = n, NOW
        self.stats.tokens_shared += n * len(fresh)

    def _call(self, name: str, rows: list[_Row], stops: list[int], *, sample: bool) -> Sampled:
        """Start one call that reads `ids[start:stop]` of each row."""
        block = self.settings.samples_at_once if sample else 0
        limits = [min(row.left, block) for row in rows]
        spans = list(zip(rows, stops, limits, strict=True))
        entries = max(stop + max(limit - 1, 0) for _, stop, limit in spans)
        newest = max(stop - row.start for row, stop, _ in spans)
        going_on = rows[0].going_on
        shape = self.programs.shape(len(rows), None if going_on else newest, entries)
        table = Table(shape, self.settings.slots)
        at = [row.request.slot for row in rows] if shape.aligned else list(range(len(rows)))
        table.slots[at] = [row.request.slot for row in rows]
        table.starts[at] = [row.start for row in rows]
        table.sources[at] = [NOW if row.begun else row.source for row in rows]
        table.marked[at] = [not row.begun for row in rows]
        table.counts[at] = [stop - row.start for row, stop, _ in spans]
        table.limits[at] = limits
        table.keys[at] = [row.request.key for row in rows]
        table.temperatures[at] = [row.request.temperature for row in rows]
        for r, (row, stop, _) in zip(at, spans, strict=True):
            row.at = r
            table.ids[r, : stop - row.start] = row.ids[row.start : stop]
            slot = row.slot
            slot.owner, slot.ids, slot.length = row.owner, row.ids, stop
            if not row.begun:
                slot.mark = row.start
            self.stats.tokens_read += 0 if going_on else stop - row.start
            row.start, row.begun = stop, True
        self.stats.calls += 1
        self.stats.rows_run += shape.rows
        _, params = self._params[name]
        self._store, sampled = self.programs.run(shape, params, self._store, table)
        return sampled

    def _land(self, rows: list[_Row], sampled: Sampled) -> None:
        """Note what a call gave, and what the slots now hold: all but the last token."""
        self.stats.decode_steps += int(sampled.steps)
        all_ids, all_logps = sampled.ids.tolist(), sampled.logps.tolist()
        lengths = sampled.lengths.tolist()
        for row in rows:
            n = lengths[row.at]
            row.ids += all_ids[row.at][:n]
            row.logps += all_logps[row.at][:n]
            row.slot.length = row.start = len(row.ids) - 1
            row.left = 0 if row.ids[-1] in self.stop_ids else row.left - n
            self.stats.tokens_sampled += n

    def _completion(self, row: _Row) -> Completion:
        ids = row.ids[len(row.ids) - len(row.logps) :]
        end = "stop" if ids and ids[-1] in self.stop_ids else "length"
        return Completion(ids, row.logps, end)

    def _row(self, request: Request) -> _Row:
        """Refuse what is not sound; then find what the slot holds."""
        ids = list(request.ids)
        what = f"a request of slot {request.slot}"
        if request.slot in self._free or not 0 <= request.slot < self.settings.slots:
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
        owner, slot = self._params[request.params][0], self._slots[request.slot]
        start, source = slot.start(owner, ids, self._rewinds)
        if min(ids[start:]) < 0 or max(ids[start:]) >= self._config.vocab_size:
            raise ValueError(
                f"{what}: an id is outside the vocabulary of {self._config.vocab_size}"
            )
        left = min(request.max_new, self.settings.max_length - len(ids))
        return _Row(-1, request, slot, owner, ids, start, source, left)

    def _join(self, rows: list[_Row]) -> None:
        taken = [row.request.slot for row in (*self._waiting(), *rows)]
        if len(set(taken)) < len(taken):
            raise ValueError("two requests on their way have the same slot")
        for row in rows:
            row.ticket = self._tickets
            self._tickets += 1
            self.stats.tokens_cached += row.start
        self._line += rows


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
