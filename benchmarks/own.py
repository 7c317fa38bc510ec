"""Figures of ours that have no peer: how cost grows, what compiles, how soon it starts.

    python -m benchmarks.own        a worker of the bench, one handler a figure

A figure is a line of the bench's table: what it is, its value as a number and as told, its goal,
whether that was met, and what it was read from.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from benchmarks.choices import LEARNED, halves, jobs, packing, staleness
from benchmarks.figure import Figures, figure
from benchmarks.gpu import peak_flops
from benchmarks.parts import HYPER, engines, learner, requests, row_batch
from benchmarks.protocol import serve
from benchmarks.sizes import SIZES
from benchmarks.training import CALLS, DOND, SPEAKS, TELESALES, TINY, Run, judged_by, slow_judge
from benchmarks.workload import CLOSER, FIRST, HEADER
from ibrl_jax import host
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import abstract_params, count_params, init_params

ROUNDS = (5, 10, 20, 40, 80)

SETTLED, LAST = 300, 1500
"""Iterations between which memory is looked at: the heap grows in the first ones."""
SHOWN = 20
"""KB an iteration: no growth is claimed of a slope whose error is larger."""


def exponent() -> Figures:
    """How the cost of a dialogue grows with its rounds: the slope of log seconds on log rounds."""
    network = SIZES["4M"].network
    model, params = Decoder(network, None), init_params(SIZES["4M"].network, 0)
    rows, prompt, said = 16, 64, 8
    turn = len(HEADER) + said + len(CLOSER)
    longest = prompt + 2 * ROUNDS[-1] * turn
    pair = engines(
        model,
        [params, params],
        slots=rows,
        rows=rows,
        new_tokens=(1 + len(CLOSER) + turn + len(HEADER), prompt + turn + len(HEADER)),
        lengths=[n for n in (128, 256, 512, 1024, 1536) if n < longest],
        max_length=longest,
        max_new=said,
        stop_ids=(),
    )
    pair[0].warmup()
    seconds = {}
    for rounds in ROUNDS:
        took = [_talk(pair, rows, prompt, 2 * rounds, said, seed) for seed in range(3)]
        seconds[rounds] = min(took) / rows
    slope = float(np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0])
    return figure(
        "cost of a dialogue over 5 to 80 rounds: exponent",
        slope,
        f"{slope:.2f}",
        "<= 1.10",
        slope <= 1.10,
        seconds_a_dialogue=seconds,
    )


def _talk(pair: Sequence[Any], rows: int, prompt: int, turns: int, said: int, seed: int) -> float:
    """Seconds of dialogues of so many turns."""
    rng = np.random.default_rng(seed)
    views = [rng.integers(FIRST, 2048, size=(rows, prompt)).tolist() for _ in pair]
    began = time.perf_counter()
    slots = [[engine.acquire() for _ in range(rows)] for engine in pair]
    for number in range(turns):
        who = number % 2
        for view in views[who]:
            view += HEADER
        done = pair[who].run(requests(slots[who], views[who], said, seed, number))
        for own, other, one in zip(views[who], views[1 - who], done, strict=True):
            own += (*one.ids, *CLOSER)
            other += (*HEADER, *one.ids, *CLOSER)
    for engine, held in zip(pair, slots, strict=True):
        for slot in held:
            engine.release(slot)
    return time.perf_counter() - began


def compilations() -> Figures:
    """Programs built after the warm-up, in 50 iterations of the real trainer with mixed lengths.

    From a start that talks: one that learned next to nothing ends its dialogues at the first turn.
    """
    with tempfile.TemporaryDirectory() as place:
        options = (*LEARNED, "iterations=50", "rollout.draws=4", "run.checkpoint_every=50")
        rows = Run(DOND, Path(place), options).finish()
    built = max(row["compilations"] for row in rows)
    tokens = [row["dialogues"]["tokens"] for row in rows]
    return figure(
        "compilations after warm-up, 50 iterations of mixed lengths",
        built,
        str(built),
        "0",
        built == 0,
        tokens_an_iteration=[min(tokens), max(tokens)],
    )


def start() -> Figures:
    """Seconds from the command to the first iteration, when a config is started again."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        kept = Run(DOND, root / "kept", (*TINY, "iterations=1"))
        kept.finish()
        options = (f"policy.start={kept.folder / 'policies' / 'start'}", "iterations=1")
        seconds, first, anew = [], [], []
        for again in range(4):
            run = Run(DOND, root / f"again{again}", options)
            there = 0.0
            for count in run.watch():
                if count and not there:
                    there = time.time()
            row = run.rows()[0]
            first.append(there - run.began)
            seconds.append(first[-1] - row["seconds"]["total"])
            anew.append(run.summary()["compiled_anew"])
    imports = [_importing() for _ in range(3)]
    value, done = statistics.median(seconds[1:]), statistics.median(first[1:])
    most = max(anew[1:])  # the first of them is the first that begins from a kept start
    return figure(
        "seconds from start to first iteration, second start of a config",
        value,
        f"{value:.1f} s ({done:.1f} s to its end; imports {statistics.median(imports):.1f} s; "
        f"{most} programs compiled anew)",
        "<= 6",
        value <= 6,
        to_its_beginning=seconds,
        to_its_end=first,
        imports=imports,
        compiled_anew=anew,
    )


def _importing() -> float:
    """Seconds of a process that imports what a run does, and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import ibrl_jax.trainer.session"], check=True)
    return time.perf_counter() - began


def judge() -> Figures:
    """An iteration whose judges take a second a call, 16 at once, against its slowest stage."""
    options = ("iterations=5", "run.checkpoint_every=5", "run.text_every=100", *CALLS)
    with tempfile.TemporaryDirectory() as place, slow_judge(1.0) as (url, calls):
        run = Run(TELESALES, Path(place) / "alone", (*options, *SPEAKS))
        alone = run.finish()
        slow = (f"policy.start={run.folder / 'policies' / 'start'}", *judged_by(url))
        judged = Run(TELESALES, Path(place) / "judged", (*options, *slow)).finish()
    stages = {
        name: statistics.median(row["seconds"][name] for row in alone[1:])
        for name in ("rollout", "update")
    }
    stages["judging"] = len(calls) / len(judged) / 16
    whole = statistics.median(row["seconds"]["total"] for row in judged[1:])
    slowest = max(stages, key=stages.__getitem__)
    value = whole / stages[slowest]
    return figure(
        "iteration with a judge of 1 s a call (16 at once), against its slowest stage alone",
        value,
        f"{value:.2f} ({whole:.1f} s against {stages[slowest]:.1f} s of {slowest})",
        "<= 1.15",
        value <= 1.15,
        stages_alone=stages,
        iteration=whole,
        calls=len(calls),
        coverage=min(row["coverage"] for row in judged),
    )


def flops() -> Figures:
    """Arithmetic done in the update and in decoding, of what one large product reaches."""
    network = SIZES["25M"].network
    model, params = Decoder(network, None), init_params(network, 0)
    size, peak = count_params(abstract_params(network)), peak_flops("float32")
    rows, view = 32, 256
    rng = np.random.default_rng(0)
    mask = np.zeros((rows, view), bool)
    mask[:, view // 2 :] = True  # more than `optimiser.trained_share`: all of it is computed
    batch = row_batch(rng.integers(network.vocab_size, size=(rows, view)), mask)
    batch = jax.device_put(batch.replace(advantage=rng.normal(size=rows).astype(np.float32)))
    learns, cut = learner(model, params, rows, view)
    state = learns.init(params)

    def step() -> None:
        nonlocal state
        state, metrics = learns.update(state, None, batch, HYPER)
        jax.block_until_ready((state, metrics))

    # A weight: 2 operations a token, thrice with its two gradients. A pair of tokens: 4 a head's
    # width and layer, thrice; half of the pairs are ahead.
    pairs = network.layers * network.heads * network.head_dim
    needed = rows * view * (6 * size + 12 * pairs * view / 2)
    took = _median(step, 3)
    update_rate = needed / took

    slots, new, read = 64, 64, 128
    engine = engines(
        model,
        [params],
        slots=slots,
        rows=slots,
        new_tokens=(read,),
        lengths=(),
        max_length=read + new,
        max_new=new,
        stop_ids=(),
    )[0]
    held = [engine.acquire() for _ in range(slots)]
    views = rng.integers(network.vocab_size, size=(slots, read)).tolist()
    # Views are in the caches after the first call; then one token and many differ by decoding.
    one = _median(lambda: engine.run(requests(held, views, 1, 0, "one")), 3)
    many = _median(lambda: engine.run(requests(held, views, new, 0, "many")), 3)
    steps = slots * (new - 1) / (many - one)
    decode_rate = steps * (2 * size + 4 * pairs * (read + new / 2))
    shares = {"update": update_rate / peak, "decode": decode_rate / peak}
    found = [
        figure(
            "FLOP/s of the update at 25M, of a product's",
            shares["update"],
            f"{shares['update']:.0%} ({update_rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s)",
            ">= 50%",
            shares["update"] >= 0.5,
            seconds=took,
            tokens=rows * view,
            cut=asdict(cut),
        ),
        figure(
            "FLOP/s of decoding at 25M, 64 rows, of a product's",
            shares["decode"],
            f"{shares['decode']:.0%} ({decode_rate / 1e9:.0f} of {peak / 1e9:.0f} GFLOP/s)",
            "",
            None,
            tokens_a_second=steps,
        ),
    ]
    return {"figures": [one for each in found for one in each["figures"]]}


def memory() -> Figures:
    """How resident memory of the trainer grows, once its heap has settled."""
    every = 100
    options = (
        *(f"iterations={LAST}", f"run.checkpoint_every={every}", f"run.text_every={every}"),
        "run.dialogues_every=10",
    )
    sizes: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as place:
        run = Run("configs/dond/smoke.py", Path(place), options)
        for count in run.watch():
            if count and count not in sizes:
                sizes[count] = _resident(run.pid)
    kept = {count: size for count, size in sizes.items() if SETTLED < count < LAST}
    slope, error = slope_of(list(kept), list(kept.values()))
    met = no_growth(slope, error)
    unshown = "" if met is not None else f": not shown to {SHOWN} KB"
    return figure(
        f"resident memory over iterations {SETTLED} to {LAST:,}, KB an iteration",
        slope,
        f"{slope:+.1f} ± {error:.1f} (of {max(kept.values()) / 1e6:.2f} GB){unshown}",
        "0",
        met,
        resident_kb={count: size for count, size in sizes.items() if count % 25 == 0},
    )


def no_growth(slope: float, error: float) -> bool | None:
    """Whether a slope is 0; None: its error is too large to say, or it falls and has not settled.

    A slope of 0 within a large error would be met by any leak smaller than that.
    """
    if slope > error:
        return False
    return True if abs(slope) <= error <= SHOWN else None


def slope_of(at: ArrayLike, values: ArrayLike, blocks: int = 8) -> tuple[float, float]:
    """The least squares' slope, and half of its 95% interval by the slopes' spread.

    Neighbours resemble each other, so the error is that of a line through the means of `blocks`
    pieces, not of one through all values.
    """
    at, values = np.asarray(at, float), np.asarray(values, float)
    slope = float(np.polyfit(at, values, 1)[0])
    x = np.array([part.mean() for part in np.array_split(at, blocks)])
    y = np.array([part.mean() for part in np.array_split(values, blocks)])
    line = np.polyfit(x, y, 1)
    left = y - np.polyval(line, x)
    error = np.sqrt(np.sum(left**2) / (blocks - 2) / np.sum((x - x.mean()) ** 2))
    return slope, float(_T95[blocks - 2] * error)


_T95 = {2: 4.303, 6: 2.447, 8: 2.306}
"""Student's t at 97.5% by degrees of freedom."""


def _resident(pid: int) -> int:
    """KB, or 0 of a process that is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def _median(work: Callable[[], Any], times: int) -> float:
    """Seconds of the median call; one before is not counted."""
    work()
    found = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


CASES = (exponent, compilations, start, judge, flops, memory, staleness, packing, halves, jobs)


def main() -> None:
    host.prepare()
    names = [case.__name__ for case in CASES]
    serve({"names": lambda: {"names": names}, **dict(zip(names, CASES, strict=True))})


if __name__ == "__main__":
    main()
