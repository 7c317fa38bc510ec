"""The one device program of the engine: read what is new, sample a block, keep what was computed.

For R dialogues, each with its cache in a slot of the store:

```
gather    the first S entries of the R slots                   cache  R rows of S entries
prefill   T right-padded new tokens, written into the cache    logits [R, V] after the last real one
decode    one token a step until each row has stopped          ids, logps [R, M]
scatter   the entries that were written, back to the slots     store  donated, updated in place
```

The last sampled token is in no cache: the next call feeds it, together with what follows it. Rows
that go on with a turn have that token alone to read (T = 1), which is a decode step like any other:
their program has no prefill.

```
begin     T T T T 1 2 3 4        T tokens are read, the block's first is sampled from their logits
go on             4 5 6 7 8      token 4 is read, 5 to 8 are sampled
```
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from ibrl_jax.models.cache import Cache
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.serving import Adapted, ServingParams, laid_out, next_logits, read
from ibrl_jax.parallel.rules import constrain
from ibrl_jax.sampler.sampling import Strategy, draw
from ibrl_jax.sampler.store import Start, Store, gather, scatter


class Shape(NamedTuple):
    """The static part of a program: rows R, new tokens T (1: rows that go on), cache length S.

    `aligned`: the rows are the slots, in order.
    """

    rows: int
    new_tokens: int
    length: int
    aligned: bool


@struct.dataclass
class Batch:
    """What a call asks for. A row of padding has a slot out of range, `counts` 0, `limits` 0.

    It travels to the device as one array (see `Table`).
    """

    start: Start
    ids: jax.Array  # [R, T] int32, the new tokens, right-padded
    counts: jax.Array  # [R] int32, how many of them are real
    keys: jax.Array  # [R, 2] uint32
    temperatures: jax.Array  # [R] float32
    limits: jax.Array  # [R] int32, tokens to sample at most; 0 only reads


class Table:
    """A batch on the host, one int32 array [R, 9 + T]; the fields are views of its columns.

    A new one is all padding, its slots `nobody`.
    """

    def __init__(self, shape: Shape, nobody: int) -> None:
        self.array = np.zeros((shape.rows, 9 + shape.new_tokens), np.int32)
        self.slots, self.starts, self.sources, self.marked, self.counts, self.limits = (
            self.array[:, i] for i in range(6)
        )
        self.keys = self.array[:, 6:8].view(np.uint32)
        self.temperatures = self.array[:, 8:9].view(np.float32)[:, 0]
        self.ids = self.array[:, 9:]
        self.slots[:] = nobody
        self.temperatures[:] = 1


def batch_of(table: jax.Array) -> Batch:
    """The inverse, on the device."""
    slots, starts, sources, marked, counts, limits = (table[:, i] for i in range(6))
    return Batch(
        start=Start(slots=slots, starts=starts, sources=sources, marked=marked != 0),
        ids=table[:, 9:],
        counts=counts,
        keys=jax.lax.bitcast_convert_type(table[:, 6:8], jnp.uint32),
        temperatures=jax.lax.bitcast_convert_type(table[:, 8], jnp.float32),
        limits=limits,
    )


@struct.dataclass
class Sampled:
    """What a call gives; entries of a row from `lengths` on mean nothing."""

    ids: jax.Array  # [R, M] int32
    logps: jax.Array  # [R, M] float32
    lengths: jax.Array  # [R] int32
    steps: jax.Array  # [] int32, decode steps that were run


@struct.dataclass
class _Loop:
    step: jax.Array  # [] the index of the next token
    last: jax.Array  # [R] the token sampled before
    done: jax.Array  # [R] bool
    cache: Cache
    ids: jax.Array  # [R, M]
    logps: jax.Array  # [R, M]
    lengths: jax.Array  # [R]


def sample_block(
    model: Decoder,
    strategy: Strategy,
    stop_ids: tuple[int, ...],
    block: int,
    stragglers: float,
    shape: Shape,
    params: ServingParams | Adapted,
    store: Store,
    table: jax.Array,
) -> tuple[Store, Sampled]:
    """Read each row's new tokens, then sample until a stop id or the row's limit.

    All but the last three arguments are static. `block`: the largest limit, M. `stragglers`: the
    share of the rows for whose end the others don't wait. `shape.length` is at least each row's
    `starts + counts + limits - 1`, the entries that it may write.
    """
    params = laid_out(model.config, params)
    batch = batch_of(table)
    start = batch.start
    first = start.starts + batch.counts  # [R] the position of the first sampled token
    rows = first.size

    def sample(logits: jax.Array, state: _Loop) -> _Loop:
        """Draw token `step` of each row that is not done, and record it."""
        ids, logps = draw(strategy, logits, batch.keys, first + state.step, batch.temperatures)
        lengths = jnp.where(state.done, state.lengths, state.step + 1)
        stopped = jnp.isin(ids, jnp.asarray(stop_ids, jnp.int32))
        return dataclasses.replace(
            state,
            step=state.step + 1,
            last=ids,
            done=state.done | stopped | (lengths >= batch.limits),
            ids=jax.lax.dynamic_update_slice(state.ids, ids[:, None], (0, state.step)),
            logps=jax.lax.dynamic_update_slice(state.logps, logps[:, None], (0, state.step)),
            lengths=lengths,
        )

    def decode(state: _Loop) -> _Loop:
        """Read the last token, sample the next; rows that are done write nothing."""
        position = (first + state.step - 1)[:, None]
        hidden, cache = read(
            model, params, state.last[:, None], position, ~state.done[:, None], state.cache
        )
        return sample(
            next_logits(model, params, hidden[:, 0]), dataclasses.replace(state, cache=cache)
        )

    before = gather(store, start, shape.length, shape.aligned)
    state = _Loop(
        step=jnp.zeros((), jnp.int32),
        last=batch.ids[:, 0],
        done=batch.limits <= 0,
        cache=before,
        ids=jnp.zeros((rows, block), jnp.int32),
        logps=jnp.zeros((rows, block), jnp.float32),
        lengths=jnp.zeros_like(first),
    )
    if shape.new_tokens > 1:
        with jax.named_scope("prefill"):
            offsets = jnp.arange(shape.new_tokens)
            real = offsets < batch.counts[:, None]
            positions = start.starts[:, None] + offsets
            hidden, cache = read(model, params, batch.ids, positions, real, before)
            last = jnp.maximum(batch.counts - 1, 0)
            hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]  # [R, D]
            logits = next_logits(model, params, constrain(hidden, "batch", None))
            state = sample(logits, dataclasses.replace(state, cache=cache))

    with jax.named_scope("decode"):
        begun = state.step
        few = jnp.sum(batch.limits > 0) * stragglers

        def goes_on(state: _Loop) -> jax.Array:
            return (state.step < block) & (jnp.sum(~state.done) > few)

        state = jax.lax.while_loop(goes_on, decode, state)

    with jax.named_scope("keep"):
        written = jnp.arange(shape.new_tokens + block - 1)
        total = batch.counts + jnp.maximum(state.lengths - 1, 0)
        store = scatter(store, before, state.cache, start, written < total[:, None], shape.aligned)
    return store, Sampled(
        ids=state.ids, logps=state.logps, lengths=state.lengths, steps=state.step - begun
    )
