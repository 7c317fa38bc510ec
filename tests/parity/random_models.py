"""Our networks against the reference implementation, on small random networks of every family.

    make parity                                     (needs torch)
    python tests/parity/random_models.py 1          the same, of one network a family

Everything is float32 with exact matrix products. A network is written by the reference as a folder,
and read from it as any other. What must agree, for every token and every tensor:

- logits: rows without padding, as training computes them
- padded: the same rows padded on the right, on the left, and on both sides
- packed: rows one after another, with padding before, between and after them
- decode: with a cache, a prefill and then token after token, at every split; rows of one batch are
  split at different places
- turns: with a cache, two or three pieces at every split, padded on either side, and then tokens
- gradients: of a loss in log-probabilities and entropies at a temperature, from packed rows
- export: what our adapters and a base give is what the reference gives after reading the folder
  that we write of both merged

A difference is absolute, where logits have a standard deviation of 1; that of a gradient is
divided by its tensor's largest entry where this is above 1. The largest allowed is 1e-4.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from references import DEVIATION, FAMILIES, LENGTHS, Reference, loaded, reference

from ibrl_jax.models import hf, hf_config, hf_folder
from ibrl_jax.models.cache import Cache, empty_cache
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings, merge, variables
from ibrl_jax.models.params import Params, init_adapters
from ibrl_jax.models.score import score
from ibrl_jax.models.serving import next_logits, read, serving_params

SEEDS = 4
ALLOWED = 1e-4
TEMPERATURE = 0.7
QUICK = {"xla_backend_optimization_level": 0}  # a program runs a few times
WIDTH = 27  # columns of a padded row
PACKS = ([(0, 0), (2, 2), (0, 4), (0, 5)], [(3, 1), (4, 3)])
"""Rows of each pack, with the padding before each."""
PACK_WIDTH = 40


class Ours:
    """The same network by us; its programs, each compiled once."""

    def __init__(self, config: ModelConfig, params: Params) -> None:
        self.config, self.params, self.model = config, params, Decoder(config, None)

        @functools.partial(jax.jit, compiler_options=QUICK)
        def train(params: Params, ids: Any, positions: Any, segments: Any) -> Any:
            hidden = self.model.apply({"params": params}, ids, positions, segments)
            return self.model.apply({"params": params}, hidden, method=Decoder.logits)

        @functools.partial(jax.jit, compiler_options=QUICK)
        def advance(served: Any, ids: Any, at: Any, real: Any, cache: Cache) -> Any:
            hidden, cache = read(self.model, served, ids, at, real, cache)
            return next_logits(self.model, served, hidden), cache

        @functools.partial(jax.jit, compiler_options=QUICK)
        def gradient(params: Params, ids: Any, positions: Any, segments: Any, weights: Any) -> Any:
            def loss(params: Params) -> jax.Array:
                logp, entropy = score(
                    self.model, params, None, ids, positions, segments, TEMPERATURE, 16
                )
                return jnp.sum(weights[0] * logp + weights[1] * entropy) / sum(LENGTHS)

            return jax.grad(loss)(params)

        self.train, self.advance, self.gradient = train, advance, gradient
        self.served = jax.jit(functools.partial(serving_params, config))(params)


# ------------------------------------------------------------------------------- what is compared


def logits(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    ids = np.stack(ref.rows[:2])
    got = ours.train(ours.params, ids, np.broadcast_to(np.arange(ids.shape[1]), ids.shape), None)
    return largest(got, want[:2])


def padded(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    worst = 0.0
    for before in (lambda t: 0, lambda t: WIDTH - t, lambda t: (WIDTH - t) // 2):
        places = [(b, before(len(row))) for b, row in enumerate(ref.rows)]
        got = ours.train(ours.params, *laid(ref.rows, places, WIDTH))
        worst = np.maximum(worst, largest(taken(got, places), want))
    return float(worst)


def packed(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    places = packs(ref.rows)
    got = ours.train(ours.params, *laid(ref.rows, places, PACK_WIDTH))
    return largest(taken(got, places), want)


def decode(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    return at_every_split(ours, ref, want, lambda split, t: [split])


def turns(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    all_at_once = at_every_split(ours, ref, want, lambda split, t: [split, t - split])
    in_halves = at_every_split(ours, ref, want, lambda split, t: [split, (t - split) // 2])
    return float(np.maximum(all_at_once, in_halves))


def gradients(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    places = packs(ref.rows)
    weights = np.stack([spread([w[i] for w in ref.weights], places, PACK_WIDTH) for i in (0, 1)])
    got = ours.gradient(ours.params, *laid(ref.rows, places, PACK_WIDTH), weights)
    theirs = ref.gradients(TEMPERATURE)
    names = dict(hf.to_tensors(ours.config, got))
    assert names.keys() == theirs.keys(), names.keys() ^ theirs.keys()
    return max(
        largest([names[name]], [x]) / max(1.0, float(np.abs(x).max())) for name, x in theirs.items()
    )


def export(ours: Ours, ref: Reference, want: Sequence[np.ndarray]) -> float:
    lora = LoraSettings(rank=3, alpha=6.0, targets=("q", "v", "o", "up", "down"))
    fresh, rng = init_adapters(ours.config, lora, 0), np.random.default_rng(0)
    adapters = jax.tree.map(lambda x: x + 0.05 * rng.normal(size=x.shape).astype(np.float32), fresh)
    model = Decoder(ours.config, lora)

    @functools.partial(jax.jit, compiler_options=QUICK)
    def adapted(ids: Any, positions: Any, segments: Any) -> Any:
        values = variables(adapters, ours.params)
        hidden = model.apply(values, ids, positions, segments)
        return model.apply(values, hidden, method=Decoder.logits)

    places = packs(ref.rows)
    got = taken(adapted(*laid(ref.rows, places, PACK_WIDTH)), places)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "merged"
        hf_folder.write(
            folder,
            ours.config,
            merge(lora, ours.params, adapters),
            as_type=lambda path: np.dtype("float32"),
            ids=hf_config.TokenIds(bos=None, eos=(0,), pad=None),
            max_positions=512,
            files={},
            max_shard=1 << 15,  # several files
        )
        theirs = loaded(folder, ref.rows)
    assert largest(theirs, want) > 0.1  # the adapters do change what is said
    return largest(got, theirs)


CHECKS: tuple[Callable[[Ours, Reference, Sequence[np.ndarray]], float], ...] = (
    logits,
    padded,
    packed,
    decode,
    turns,
    gradients,
    export,
)


def at_every_split(
    ours: Ours,
    ref: Reference,
    want: Sequence[np.ndarray],
    pieces: Callable[[int, int], list[int]],
) -> float:
    """The largest difference when each row is read in `pieces(split, t)`, then token by token."""
    worst = 0.0
    for first in range(1, max(LENGTHS)):
        plans = []
        for b, t in enumerate(LENGTHS):
            split = 1 + (first - 1 + 3 * b) % t
            plans.append(pieces(split, t))
            plans[-1] += [1] * (t - sum(plans[-1]))
        got = read_in_pieces(ours, ref.rows, plans)
        worst = np.maximum(worst, largest(got, want))
    return float(worst)


def read_in_pieces(
    ours: Ours, rows: Sequence[np.ndarray], plans: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """Logits [t, V] of each row, read with a cache in pieces of its plan's lengths.

    A piece of several tokens is padded: the first on the right, the second on the left.
    """
    cache = empty_cache(ours.config, len(rows), max(LENGTHS) + 3)
    seen = np.zeros(len(rows), int)
    out: list[list[np.ndarray]] = [[] for _ in rows]
    for step in range(max(map(len, plans))):
        counts = np.array([plan[step] if step < len(plan) else 0 for plan in plans])
        width = max(LENGTHS) if counts.max() > 1 else 1
        before = width - counts if step % 2 else np.zeros_like(counts)
        offsets = np.arange(width) - before[:, None]  # [B, T]
        real = (offsets >= 0) & (offsets < counts[:, None])
        ids = np.full(real.shape, 1)  # padding holds a token like any other
        for b, row in enumerate(rows):
            ids[b, real[b]] = row[seen[b] : seen[b] + counts[b]]
        given = ours.advance(ours.served, ids, seen[:, None] + offsets, real, cache)
        said, cache = np.asarray(given[0]), given[1]
        for b in range(len(rows)):
            out[b].extend(said[b, real[b]])
        seen += counts
    return [np.stack(row) for row in out]


# ------------------------------------------------------------------------------------ rows in place


Places = Sequence[tuple[int, int]]
"""Of each row, the row of a batch and the column where it begins."""


def packs(rows: Sequence[np.ndarray]) -> Places:
    places = [(0, 0)] * len(rows)
    for at, pack in enumerate(PACKS):
        column = 0
        for padding, row in pack:
            places[row] = (at, column + padding)
            column += padding + len(rows[row])
    return places


def spread(rows: Sequence[np.ndarray], places: Places, width: int) -> np.ndarray:
    """[B, T], the rows where their places say, 0 elsewhere."""
    out = np.zeros((1 + max(b for b, _ in places), width), rows[0].dtype)
    for row, (b, column) in zip(rows, places, strict=True):
        assert not out[b, column : column + len(row)].any()
        out[b, column : column + len(row)] = row
    return out


def laid(rows: Sequence[np.ndarray], places: Places, width: int) -> tuple[np.ndarray, ...]:
    """ids, positions and segment ids [B, T]; padding holds tokens like any other."""
    segments = spread([np.full(len(row), 1 + i) for i, row in enumerate(rows)], places, width)
    ids = spread([row + 1 for row in rows], places, width) - 1
    positions = spread([np.arange(len(row)) for row in rows], places, width)
    return np.where(segments > 0, ids, 1), positions, segments


def taken(values: Any, places: Places) -> list[np.ndarray]:
    """The inverse of `spread`."""
    values = np.asarray(values)
    return [values[b, column : column + t] for (b, column), t in zip(places, LENGTHS, strict=True)]


def largest(got: Sequence[Any], want: Sequence[np.ndarray]) -> float:
    """The largest absolute difference; NaN where there is one on either side."""
    pairs = zip(got, want, strict=True)
    return float(np.max([np.max(np.abs(np.asarray(a) - b)) for a, b in pairs]))


# ------------------------------------------------------------------------------------------- a case


def compiled_as(seed: int) -> dict[str, Any]:
    """How the network is compiled: by turns as a scan with recomputation, or straight."""
    scanned = seed % 2 == 1
    return dict(
        dtype="float32",
        remat=scanned,
        unroll=1 if scanned else True,
        attention="xla",
        attention_block=(0, 4, 8)[seed % 3],
        chunk=(16, 8, 32)[seed % 3],
    )


def case(family: str, seed: int) -> dict[str, float]:
    """The largest difference of each check, for one network."""
    ref = reference(family, seed)
    want = ref.logits()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ref.save(folder)
        config = hf_config.network(folder, **compiled_as(seed))
        params = hf_folder.read(folder, config, None, lambda path: np.dtype("float32"))
    ours = Ours(config, params)
    return {check.__name__: check(ours, ref, want) for check in CHECKS}


def main(seeds: int) -> int:
    """The exit code: 0 when all that was compared agrees."""
    if seeds < 1:
        raise SystemExit("at least one network a family must be compared")
    start = time.monotonic()
    print(f"largest difference, of {seeds} networks a family; logits deviate by {DEVIATION}")
    print(f"{'':8}" + "".join(f"{check.__name__:>11}" for check in CHECKS), flush=True)
    failures = []
    for family in FAMILIES:
        worst = {check.__name__: 0.0 for check in CHECKS}
        for seed in range(seeds):
            for check, difference in case(family, seed).items():
                worst[check] = float(np.maximum(worst[check], difference))
                if not difference <= ALLOWED:
                    failures.append(f"{family}, seed {seed}, {check}: {difference:.2e}")
        print(f"{family:8}" + "".join(f"{x:11.1e}" for x in worst.values()), flush=True)
    for failure in failures:
        print(f"more than {ALLOWED:g}: {failure}")
    print(f"{'differs' if failures else 'agrees'}, in {time.monotonic() - start:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    with jax.default_matmul_precision("highest"):
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else SEEDS))
