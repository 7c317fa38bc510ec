"""The caches of all slots, and the way of a call's rows out of them and back.

A row of a call works on a copy of its slot's cache, cut to the entries that the call needs:

```
store   slot 0 | slot 1 | slot 2 | slot 3        gather     row 0 <- slot 2, row 1 <- slot 0
                                                 scatter    what was read goes back to 2 and 0
```

On a mesh of several devices the rows of a call are the slots themselves, in order (`aligned`), so
that each device works on its own slots and nothing crosses over.

Keys and values can be rewound by reading on from an earlier entry; a delta layer's state cannot.
So the store keeps two states of each: now, and where the last request began to read (the mark),
which is where a turn that is sampled again starts from.

What many views begin with (the opening) is read in one slot, and copied from there into others:

```
take       opening <- slot 2               give       slot 0 <- opening, slot 5 <- opening
```
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from ibrl_jax.models import cache as caches
from ibrl_jax.models.cache import KV, Cache, DeltaState, LayerCache, cache_axes, empty_cache
from ibrl_jax.models.config import ModelConfig

FRESH, MARK, NOW = 0, 1, 2
"""Which state of its slot a row of a call starts from: that of no token, the mark, or the last."""


@struct.dataclass
class Store:
    """The caches of all slots."""

    now: Cache
    marks: tuple[DeltaState, ...]  # of the delta layers, in their order


@struct.dataclass
class Start:
    """Where the rows of a call begin; a row of padding has a slot out of range."""

    slots: jax.Array  # [R] int32
    starts: jax.Array  # [R] int32, entries of the slot that hold
    sources: jax.Array  # [R] int32, FRESH, MARK or NOW; read for delta layers alone
    marked: jax.Array  # [R] bool, whether the state it starts from becomes the mark


def empty_store(config: ModelConfig, slots: int, length: int) -> Store:
    """Nothing has been read."""
    now = empty_cache(config, slots, length)
    return Store(now=now, marks=tuple(jax.tree.map(jnp.zeros_like, x) for x in _states(now)))


def store_axes(config: ModelConfig) -> Store:
    """The same tree with a `PartitionSpec` of logical axis names at each leaf."""
    now = cache_axes(config)
    return Store(now=now, marks=_states(now))


def gather(store: Store, start: Start, length: int, aligned: bool) -> Cache:
    """Each row's cache of `length` entries, as it is before the row reads anything.

    Values from `starts` on are zeros: an unseen one has weight 0, but 0 x NaN would be NaN.
    """
    holds = (jnp.arange(length) < start.starts[:, None])[:, None, :, None]  # [R, 1, S, 1]

    def rows(x: jax.Array) -> jax.Array:
        return x if aligned else x.at[start.slots].get(mode="clip")

    def state(now: jax.Array, mark: jax.Array) -> jax.Array:
        now, mark = rows(now), rows(mark)
        source = start.sources.reshape(-1, *[1] * (now.ndim - 1))
        return jnp.where(source == NOW, now, jnp.where(source == MARK, mark, 0))

    marks, layers = iter(store.marks), []
    for layer in store.now.layers:
        if isinstance(layer, KV):
            value = jnp.where(holds, rows(layer.v)[:, :, :length], 0)
            layers.append(KV(k=rows(layer.k)[..., :length], v=value))
        else:
            layers.append(jax.tree.map(state, layer, next(marks)))
    return Cache(layers=tuple(layers))


def scatter(
    store: Store, before: Cache, after: Cache, start: Start, written: jax.Array, aligned: bool
) -> Store:
    """The store with what the rows have read.

    Args:
        before: the rows' delta states when the call began, from `gather`.
        after: their caches now.
        written: [R, n] bool, whether a row has read entry `starts + i`.
    """
    if aligned:
        return _scatter_aligned(store, before, after, start, written)
    rows = jnp.arange(start.slots.shape[0])[:, None]
    source = start.starts[:, None] + jnp.arange(written.shape[1])
    target = jnp.where(written, source, store.now.length)
    nowhere = store.now.layers[0]
    slots = jax.tree.leaves(nowhere)[0].shape[0]
    to_mark = jnp.where(start.marked, start.slots, slots)
    layers, marks, old_marks = [], [], iter(store.marks)
    for kept, old, new in zip(store.now.layers, before.layers, after.layers, strict=True):
        if isinstance(kept, KV):
            assert isinstance(new, KV)
            keys, values = caches.read(new, rows, source)
            layers.append(caches.write(kept, keys, values, start.slots[:, None], target))
        else:
            assert isinstance(new, DeltaState)
            assert isinstance(old, DeltaState)
            layers.append(_put(kept, new, start.slots))
            marks.append(_put(next(old_marks), old, to_mark))
    return Store(now=Cache(layers=tuple(layers)), marks=tuple(marks))


def take(store: Store, slot: jax.Array, length: int) -> Cache:
    """A copy of the first `length` entries, and the states, of one slot; rows: 1."""

    def row(x: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(x, slot, keepdims=True)

    def layer(x: LayerCache) -> LayerCache:
        if isinstance(x, KV):
            return KV(k=row(x.k)[..., :length], v=row(x.v)[:, :, :length])
        return jax.tree.map(row, x)

    return Cache(layers=tuple(layer(x) for x in store.now.layers))


def give(store: Store, opening: Cache, slots: jax.Array, aligned: bool) -> Store:
    """The store with an opening (see `take`) at the beginning of several slots.

    Args:
        slots: [slots] int32; one out of range is nobody's.
    """
    count = jax.tree.leaves(store.now.layers[0])[0].shape[0]
    chosen = jnp.zeros(count, bool).at[slots].set(True, mode="drop")

    def put(kept: jax.Array, row: jax.Array) -> jax.Array:
        row = row.astype(kept.dtype)
        if aligned:  # every device looks at its own slots
            return jnp.where(chosen.reshape(-1, *[1] * (kept.ndim - 1)), row, kept)
        return kept.at[slots].set(jnp.broadcast_to(row, (count, *row.shape[1:])), mode="drop")

    def layer(kept: LayerCache, row: LayerCache) -> LayerCache:
        if isinstance(kept, KV):
            assert isinstance(row, KV)
            n = row.k.shape[-1]
            return KV(
                k=kept.k.at[..., :n].set(put(kept.k[..., :n], row.k)),
                v=kept.v.at[:, :, :n].set(put(kept.v[:, :, :n], row.v)),
            )
        return jax.tree.map(put, kept, row)

    pairs = zip(store.now.layers, opening.layers, strict=True)
    return Store(now=Cache(layers=tuple(layer(x, y) for x, y in pairs)), marks=store.marks)


def _scatter_aligned(
    store: Store, before: Cache, after: Cache, start: Start, written: jax.Array
) -> Store:
    """Row r is slot r: what was written replaces what was there, entry by entry."""
    slots = jax.tree.leaves(store.now.layers[0])[0].shape[0]
    active = start.slots < slots  # [R]
    offset = jnp.arange(after.length) - start.starts[:, None]  # [R, S]
    inside = (offset >= 0) & (offset < written.shape[1])
    place = jnp.clip(offset, 0, written.shape[1] - 1)
    fresh = inside & jnp.take_along_axis(written, place, axis=1) & active[:, None]

    def choose(where: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(where.reshape(-1, *[1] * (old.ndim - 1)), new, old)

    layers, marks, old_marks = [], [], iter(store.marks)
    for kept, old, new in zip(store.now.layers, before.layers, after.layers, strict=True):
        if isinstance(kept, KV):
            assert isinstance(new, KV)
            length = new.k.shape[-1]
            k = jnp.where(fresh[:, None, None, :], new.k, kept.k[..., :length])
            v = jnp.where(fresh[:, None, :, None], new.v, kept.v[:, :, :length])
            layers.append(KV(k=kept.k.at[..., :length].set(k), v=kept.v.at[:, :, :length].set(v)))
        else:
            layers.append(jax.tree.map(lambda n, o: choose(active, n, o), new, kept))
            mark = next(old_marks)
            where = active & start.marked
            marks.append(jax.tree.map(lambda n, o, w=where: choose(w, n, o), old, mark))
    return Store(now=Cache(layers=tuple(layers)), marks=tuple(marks))


def _put(kept: DeltaState, new: DeltaState, slots: jax.Array) -> DeltaState:
    """Rows of `new` in their slots; a slot out of range is nobody's."""
    return jax.tree.map(lambda x, y: x.at[slots].set(y, mode="drop"), kept, new)


def _states(cache: Cache) -> tuple[DeltaState, ...]:
    return tuple(x for x in cache.layers if isinstance(x, DeltaState))
