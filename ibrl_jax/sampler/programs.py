"""The one device program of the engine: read what is new, sample a turn, keep what was computed.

For R dialogues, each with its cache in a slot of the store:

```
gather    the first S entries of the R slots                   cache  R rows of S entries
prefill   T right-padded new tokens, written into the cache    logits [R, V] after the last real one
decode    one token a step until each row has stopped          ids, logps [R, M]
scatter   the entries that were written, back to the slots     store  donated, updated in place
```

The last sampled token is in no cache: the next request feeds it together with what follows it.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from ibrl_jax.models.cache import Cache
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.serving import Adapted, ServingParams, laid_out, next_logits, read
from ibrl_jax.parallel.rules import constrain
from ibrl_jax.sampler.sampling import Strategy, draw
from ibrl_jax.sampler.store import Start, Store, gather, scatter


@struct.dataclass
class Batch:
    """What a call asks for. A row of padding has a slot out of range, `counts` 0, `limits` 0."""

    start: Start
    ids: jax.Array  # [R, T] int32, the new tokens, right-padded
    counts: jax.Array  # [R] int32, how many of them are real
    keys: jax.Array  # [R, 2] uint32
    temperatures: jax.Array  # [R] float32
    limits: jax.Array  # [R] int32, tokens to sample at most; 0 only reads


@struct.dataclass
class Sampled:
    """What a call gives; entries of a row from `lengths` on mean nothing."""

    ids: jax.Array  # [R, M] int32
    logps: jax.Array  # [R, M] float32
    lengths: jax.Array  # [R] int32
    steps: jax.Array  # [] int32, decode steps that were run


class Shape(NamedTuple):
    """The static part of a program: rows R, new tokens T, cache length S.

    `aligned`: the rows are the slots, in order.
    """

    rows: int
    new_tokens: int
    length: int
    aligned: bool


@struct.dataclass
class _Loop:
    step: jax.Array  # [] the index of the next token
    last: jax.Array  # [R] the token sampled before
    done: jax.Array  # [R] bool
    cache: Cache
    ids: jax.Array  # [R, M]
    logps: jax.Array  # [R, M]
    lengths: jax.Array  # [R]


def sample_turns(
    model: Decoder,
    strategy: Strategy,
    stop_ids: tuple[int, ...],
    max_new: int,
    shape: Shape,
    params: ServingParams | Adapted,
    store: Store,
    batch: Batch,
) -> tuple[Store, Sampled]:
    """Read each row's new tokens, then sample until a stop id or the row's limit.

    All but the last three arguments are static. `shape.length` is at least each row's
    `starts + counts + limits - 1`, the entries that it may write.
    """
    params = laid_out(model.config, params)
    start = batch.start
    rows = jnp.arange(start.slots.shape[0])
    first = start.starts + batch.counts  # [R] the position of the first sampled token

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

    with jax.named_scope("prefill"):
        offsets = jnp.arange(batch.ids.shape[1])
        real = offsets < batch.counts[:, None]
        positions = start.starts[:, None] + offsets
        before = gather(store, start, shape.length, shape.aligned)
        hidden, cache = read(model, params, batch.ids, positions, real, before)
        last = jnp.maximum(batch.counts - 1, 0)
        hidden = jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0]  # [R, D]
        logits = next_logits(model, params, constrain(hidden, "batch", None))

    with jax.named_scope("decode"):
        blank = _Loop(
            step=jnp.zeros((), jnp.int32),
            last=jnp.zeros_like(start.slots),
            done=batch.limits <= 0,
            cache=cache,
            ids=jnp.zeros((rows.size, max_new), jnp.int32),
            logps=jnp.zeros((rows.size, max_new), jnp.float32),
            lengths=jnp.zeros_like(start.slots),
        )
        state = jax.lax.while_loop(
            lambda s: (s.step < max_new) & ~jnp.all(s.done), decode, sample(logits, blank)
        )

    with jax.named_scope("keep"):
        written = jnp.arange(offsets.size + max_new - 1)
        total = batch.counts + jnp.maximum(state.lengths - 1, 0)
        store = scatter(store, before, state.cache, start, written < total[:, None], shape.aligned)
    return store, Sampled(
        ids=state.ids, logps=state.logps, lengths=state.lengths, steps=state.step - 1
    )
