"""`make bench-gpu`: how near decoding and updating come to what the accelerator can do.

    python -m benchmarks.gpu --preset=qwen3_5_4b --rows=64 --view=2048 --new=128

Decoding is bound by memory: each step reads all weights once, and each row's cache. The update is
bound by arithmetic: 6 FLOP a parameter and token (8 with rematerialisation), and attention's own.
Both bounds are measured in the same process, by a copy and by a matrix product in bf16, so that
the shares need no data sheet. Weights are random; nothing is read from disk. On a CPU it runs too,
with a small preset, to show that it does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console

from benchmarks.parts import speech_of
from ibrl_jax.config import default_config
from ibrl_jax.entry import Options, run
from ibrl_jax.models.cache import empty_cache
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import abstract_params, count_params, init_params
from ibrl_jax.models.presets import SCRATCH, preset
from ibrl_jax.rl.batches import RoleBatch, abstract_batch
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings, Request
from ibrl_jax.trainer.build import build_learner, hyper_of

REPEATS = 5


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("preset", "rows", "view", "new", "micro"))
    name = options.get("preset", "qwen3_5_4b")
    config = preset(name, **(dict(vocab_size=640) if name in SCRATCH else {}))
    rows, view = options.number("rows", 64), options.number("view", 2048)
    new, micro = options.number("new", 128), options.number("micro", 1)
    device = jax.devices()[0]
    bandwidth, flops = peak_bandwidth(), peak_flops(config.dtype)
    params = init_params(config, 0)
    size = count_params(abstract_params(config))
    say = partial(console.print, highlight=False, markup=False, soft_wrap=True)
    say(f"{name}, {size:,} parameters, random; {device.device_kind}, jax {jax.__version__}")
    say(
        f"measured peaks: {bandwidth / 1e9:.0f} GB/s copied, {flops / 1e12:.1f} TFLOP/s in products"
    )
    say(decode(config, params, rows, view, new, bandwidth))
    say(update(config, params, micro, view, flops))


def decode(
    config: ModelConfig, params: Any, rows: int, view: int, new: int, bandwidth: float
) -> str:
    """Tokens a second of rows that decode side by side, and the share of the memory bound."""
    length = view + new
    settings = EngineSettings(
        slots=rows,
        max_length=length,
        rows=(rows,),
        new_tokens=(min(view, 512),),
        lengths=(length,),
        max_new=new,
        block=new,
        stragglers=0.0,
    )
    engine = Engine(Programs(Decoder(config, None), settings, ()))
    engine.load("random", params)
    rng = np.random.default_rng(0)
    slots = [engine.acquire() for _ in range(rows)]
    views = rng.integers(config.vocab_size, size=(rows, view)).tolist()

    def turn(tokens: int) -> float:
        """Seconds of a call whose views are in the caches by now."""
        requests = [
            Request("random", slot, ids, (0, slot), 1.0, tokens)
            for slot, ids in zip(slots, views, strict=True)
        ]
        began = time.perf_counter()
        engine.run(requests)
        return time.perf_counter() - began

    turn(new)  # reads the views
    one = statistics.median(turn(1) for _ in range(REPEATS))
    many = statistics.median(turn(new) for _ in range(REPEATS))
    step = (many - one) / (new - 1)
    width = np.dtype(jnp.dtype(config.dtype)).itemsize
    weights = count_params(abstract_params(config)) * width
    if not config.tied:
        weights -= config.vocab_size * config.hidden * width  # of the embedding few rows are read
    cache = jax.eval_shape(lambda: empty_cache(config, rows, length))
    read = weights + sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
    return (
        f"decode: {rows / step:.0f} tokens/s with {rows} rows at {view} tokens "
        f"({step * 1e3:.2f} ms a step), {read / step / bandwidth:.0%} of the memory bound"
    )


def update(config: ModelConfig, params: Any, rows: int, view: int, flops: float) -> str:
    """Tokens a second of the whole update, and the share of the arithmetic bound."""
    settings = default_config()
    settings.rollout.draws = settings.optimiser.micro_batch = rows
    learner = build_learner(settings, speech_of(Decoder(config, None), ()))
    state, hyper = learner.init(params), hyper_of(settings, "agent0")
    batch = _batch(config, rows, view)
    seconds = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        state, metrics = learner.update(state, None, batch, hyper)
        jax.block_until_ready((state, metrics))
        seconds.append(time.perf_counter() - began)
    took = statistics.median(seconds[1:])
    tokens = rows * view
    size = count_params(abstract_params(config)) - (
        0 if config.tied else config.vocab_size * config.hidden
    )
    full = config.layers * config.period.count("full") / len(config.period)
    attention = 12 * full * config.heads * config.head_dim * view / 2  # a token; causal
    needed = tokens * (6 * size + attention)
    return (
        f"update: {tokens / took:.0f} tokens/s with {rows} views of {view} tokens "
        f"({took:.2f} s), MFU {needed / took / flops:.0%} of the measured peak"
    )


def peak_bandwidth() -> float:
    """Bytes a second of reading and writing one large array."""
    size = 2**28 if jax.default_backend() == "gpu" else 2**25
    x = jnp.ones(size, jnp.float32)
    copy = jax.jit(lambda x: x * 1.5)
    return 2 * x.nbytes / _fastest(lambda: copy(x))


def peak_flops(dtype: str) -> float:
    """Operations a second of one large square product."""
    n = 8192 if jax.default_backend() == "gpu" else 1024
    x = jnp.ones((n, n), dtype)
    product = jax.jit(jnp.matmul)
    return 2 * n**3 / _fastest(lambda: product(x, x))


def _fastest(work: Callable[[], jax.Array]) -> float:
    """Seconds of the fastest of some runs: what the hardware can do."""
    jax.block_until_ready(work())
    found = []
    for _ in range(10):
        began = time.perf_counter()
        jax.block_until_ready(work())
        found.append(time.perf_counter() - began)
    return min(found)


def _batch(config: ModelConfig, rows: int, view: int) -> RoleBatch:
    rng = np.random.default_rng(0)
    blank: RoleBatch = jax.tree.map(
        lambda x: np.zeros(x.shape, x.dtype), abstract_batch(rows, view)
    )
    mask = np.ones((rows, view), bool)
    mask[:, : view // 2] = False
    return blank.replace(
        ids=rng.integers(config.vocab_size, size=(rows, view)).astype(np.int32),
        positions=np.tile(np.arange(view, dtype=np.int32), (rows, 1)),
        segment_ids=np.ones((rows, view), np.int32),
        loss_mask=mask,
        importance=np.ones((rows, view), np.float32),
        advantage=rng.normal(size=rows).astype(np.float32),
        weight=np.ones(rows, np.float32),
    )


if __name__ == "__main__":
    run(main)
