"""`make bench`: ibrl_jax side by side with google-tunix, transformers and TRL, on this machine.

    python -m benchmarks.speed --sizes=0.1M,4M --cases=rollout8,update --repeats=5

The same random Qwen3 weights are loaded in each; nothing is timed until logits agree to 1e-4, and
no update until loss and gradient norm do to 1e-3. Each implementation is a process of its own with
the same cores and threads, and the repeats go round: ours, a peer, the next peer, ours again. What
is told is the median of the repeats, with the least and the most; the first call of each, which
compiles, is told apart. A case whose round takes long has fewer repeats (--budget: seconds a case).

Results lie in runs/bench/<date>/ (--out): bench.md, bench.csv, bench.png, bench.svg, and
results.json, from which the same command goes on: what was measured is not measured again.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.plot import draw
from benchmarks.protocol import Worker, WorkerError
from benchmarks.results import Case, Results, Spread, markdown, own_table, table
from benchmarks.workload import prompts, stop_ids
from ibrl_jax.entry import Options, notes, run
from ibrl_jax.errors import UserError
from ibrl_jax.trainer.run import write_text

PEERS = Path(".venv-bench/bin/python")
FOLDERS = Path(".cache/bench")
SIZES = ("0.1M", "4M", "25M")
ROLES = ("first", "second")
DRAWS, GROUP, PROMPT, TURN = 16, 4, 64, 16
"""64 dialogues; tokens of a prompt and of a turn."""
NEW = 128
"""Tokens of a single turn."""
LONGEST = 24
"""Tokens at which a turn of a whole iteration is cut, if nothing ended it before."""
LOGITS, LOSSES = 1e-4, 1e-3
"""How far apart implementations may be: logits, and losses and gradient norms relatively."""

CASES = (
    Case(
        name="rollout8",
        title="rollout of 8 turns",
        unit="tokens",
        sizes=SIZES,
        goals={"tunix": 3.0, "transformers": 10.0},
    ),
    Case(
        name="rollout20",
        title="rollout of 20 turns",
        unit="tokens",
        sizes=SIZES[:2],
        goals={"tunix": 3.0, "transformers": 10.0},
    ),
    Case(
        name="generate",
        title="single turn",
        unit="tokens",
        sizes=SIZES,
        goals={"tunix": 1.5, "transformers": 3.0},
    ),
    Case(
        name="update",
        title="GRPO update",
        unit="tokens",
        sizes=SIZES,
        goals={"TRL": 2.0, "tunix": 3.0},
    ),
    Case(
        name="iteration",
        title="whole iteration, both roles",
        unit="iterations",
        sizes=SIZES[:2],
        goals={"TRL": 5.0},
    ),
)

Call = Callable[[int], dict[str, Any]]
"""One repeat, by its seed; the worker's answer."""


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("sizes", "cases", "out", "repeats", "budget"))
    known = (*(case.name for case in CASES), "own")
    sizes = _named("sizes", options.get("sizes", ",".join(SIZES)), SIZES)
    wanted = _named("cases", options.get("cases", ",".join(known)), known)
    cases = [case for case in CASES if case.name in wanted]
    repeats, budget = options.number("repeats", 5), options.number("budget", 120)
    if not repeats:
        raise UserError("--repeats is 0; it must be at least 1")
    today = datetime.date.today().isoformat()
    results = Results(Path(options.get("out", f"runs/bench/{today}")))
    note = notes(console)
    if cases and not PEERS.is_file():
        raise UserError(f"{PEERS} is not there; `make bench` sets the peers' environment up")
    if not results.values["about"]:
        results.values["about"] = about(today)
    note(f"{results.values['about']['machine']}; results go to {results.folder}")
    try:
        for size in sizes:
            left = [
                c for c in cases if size in c.sizes and not results.has("cases", f"{c.name}/{size}")
            ]
            if left:
                compare(size, left, repeats, budget, results, note)
        if "own" in wanted:
            alone(results, note)
    except WorkerError as error:
        raise UserError(str(error)) from error
    finally:
        write(results)
    console.print(f"see {results.folder / 'bench.md'}", highlight=False)


def write(results: Results) -> None:
    """The results as they are told."""
    folder = results.folder
    write_text(folder / "bench.md", markdown(results, CASES))
    write_text(folder / "bench.csv", table(results, CASES))
    write_text(folder / "own.json", own_table(results))
    draw(results, CASES, folder)


# ------------------------------------------------------------------------------ side by side


def compare(
    size: str,
    cases: Sequence[Case],
    repeats: int,
    budget: float,
    results: Results,
    note: Callable[[str], None],
) -> None:
    """All cases of one size, each implementation in a process that lives through them."""
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(name)) for name in ("ours", "tunix", "torch")}
        folder = FOLDERS / size
        made = workers["ours"].call("make", folder=str(folder), size=size)
        vocab = made["vocab"]
        note(f"{size}: {made['parameters']:,} parameters, loading")
        for each in workers.values():
            each.call("load", folder=str(folder), seats=2)
        gaps = differences(workers, vocab)
        results.put("agree", size, gaps)
        note(f"{size}: logits agree, {', '.join(f'{n} {gap:.0e}' for n, gap in gaps.items())}")
        for case in cases:
            calls, amount = prepare(case, size, workers, vocab)
            note(f"{size}, {case.title}: first calls")
            found = measure(calls, amount, repeats, budget)
            results.put("cases", f"{case.name}/{size}", found)
            told = {
                name: Spread.of(each).told(case.unit)
                for name, each in found["implementations"].items()
            }
            note(
                f"{size}, {case.title}, {case.unit} a second: "
                + "; ".join(f"{name} {text}" for name, text in told.items())
            )


def worker(name: str) -> Worker:
    """A process of an implementation; all have the same cores and threads."""
    modules = {
        "ours": "benchmarks.ours",
        "tunix": "benchmarks.peers.tunix_peer",
        "torch": "benchmarks.peers.torch_peer",
        "own": "benchmarks.own",
    }
    python = str(PEERS) if name in ("tunix", "torch") else sys.executable
    env = {"PYTHONPATH": ".", "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    return Worker(name, [python, "-m", modules[name]], env)


def differences(workers: Mapping[str, Worker], vocab: int) -> dict[str, float]:
    """The largest difference of a peer's logits from ours.

    Raises:
        UserError: it is too large; then they are not the same network.
    """
    ids = prompts(vocab, 4, 1, 48, seed=1)
    found = {name: np.load(w.call("logits", ids=ids)["path"]) for name, w in workers.items()}
    gaps = {n: float(np.abs(x - found["ours"]).max()) for n, x in found.items() if n != "ours"}
    for name, gap in gaps.items():
        if not gap <= LOGITS:
            raise UserError(
                f"logits of {name} are {gap:.1e} from ours, and more than {LOGITS:g} is another "
                "network: nothing was timed"
            )
    return gaps


def prepare(
    case: Case, size: str, workers: Mapping[str, Worker], vocab: int
) -> tuple[dict[str, Call], float | None]:
    """What each implementation is to do; how much that is, where the answer does not say it."""
    ours, tunix, torch = workers["ours"], workers["tunix"], workers["torch"]
    if case.name == "update":
        file = str(FOLDERS / f"{size}.npz")
        made = ours.call(
            "write_batch", path=file, rows=64, prompt=PROMPT, turns=7, turn_tokens=TURN, seed=0
        )
        named = {"ours": ours, "tunix": tunix, "TRL": torch}
        for each in named.values():
            each.call("prepare_update", batch_file=file)
        check_updates(named)
        return {name: partial(_update, each) for name, each in named.items()}, made["tokens"]
    both = {role: prompts(vocab, DRAWS, GROUP, PROMPT, i) for i, role in enumerate(ROLES)}
    if case.name == "generate":
        args: dict[str, Any] = dict(prompts=both[ROLES[0]], new_tokens=NEW, stop_ids=[])
        named = {"ours": ours, "tunix": tunix, "transformers": torch}
        return {name: partial(_call, each, "generate", args) for name, each in named.items()}, None
    if case.name == "iteration":
        args = dict(
            prompts=both, turns=8, turn_tokens=LONGEST, stop_ids=stop_ids(vocab), group=GROUP
        )
        named = {"ours": ours, "TRL": torch}
        return {name: partial(_call, each, "iteration", args) for name, each in named.items()}, 1
    turns = int(case.name.removeprefix("rollout"))
    args = dict(prompts=both, turns=turns, turn_tokens=TURN, stop_ids=[])
    named = {"ours": ours, "tunix": tunix, "transformers": torch}
    calls: dict[str, Call] = {n: partial(_call, w, "rollout", args) for n, w in named.items()}
    calls["transformers, cache kept"] = partial(
        _call, torch, "rollout", {**args, "keep_cache": True}
    )
    return calls, None


def check_updates(workers: Mapping[str, Worker]) -> None:
    """One step each; raises UserError if they do not take the same one."""
    first = {name: each.call("update", repeat=1) for name, each in workers.items()}
    for name, found in first.items():
        for what in ("loss", "grad_norm"):
            here, there = first["ours"][what], found[what]
            if not abs(there - here) <= LOSSES * abs(here):
                raise UserError(
                    f"the update of {name} has {what} {there:.6f}, ours {here:.6f}: they do not "
                    "compute the same, and nothing was timed"
                )


def _call(worker: Worker, method: str, args: Mapping[str, Any], seed: int) -> dict[str, Any]:
    return worker.call(method, **args, seed=seed)


def _update(worker: Worker, seed: int) -> dict[str, Any]:
    del seed
    return worker.call("update", repeat=1)


def measure(
    calls: Mapping[str, Call], amount: float | None, repeats: int, budget: float
) -> dict[str, Any]:
    """First calls, then rounds of all implementations, as many as the budget has room for.

    Args:
        amount: what a call does; None: the tokens that it says.
        budget: seconds; there is one round in any case.
    """
    found: dict[str, dict[str, Any]] = {}
    load: list[float] = []
    for name, call in calls.items():
        began = time.perf_counter()
        call(0)
        found[name] = {"first_call": time.perf_counter() - began, "seconds": [], "amounts": []}
    began = time.perf_counter()
    while True:
        load.append(os.getloadavg()[0])
        for name, call in calls.items():
            answer = call(1 + len(load))
            found[name]["seconds"].append(answer["seconds"])
            found[name]["amounts"].append(answer["tokens"] if amount is None else amount)
            found[name].setdefault("answers", []).append(answer)
        spent = time.perf_counter() - began
        if len(load) == repeats or spent + spent / len(load) > budget:
            break
    _shared_rollout(found)
    return {"implementations": found, "load": load}


def _shared_rollout(found: dict[str, dict[str, Any]]) -> None:
    """TRL's two trainers once more, as if the second could learn from the first one's rollout."""
    answers = found.get("TRL", {}).get("answers", ())
    if any("shared_seconds" in answer for answer in answers):
        found["TRL, one rollout"] = {
            "seconds": [answer["shared_seconds"] for answer in answers],
            "amounts": found["TRL"]["amounts"],
        }


# ------------------------------------------------------------------------------ ours alone


def alone(results: Results, note: Callable[[str], None]) -> None:
    """Figures of ours that have no peer, each in a fresh process."""
    with worker("own") as first:
        names = first.call("names")["names"]
    for name in names:
        if results.has("own", name):
            continue
        note(f"ours alone: {name}")
        with worker("own") as each:
            figures = each.call(name)["figures"]
        results.put("own", name, figures)
        for figure in figures:
            note(f"{figure['figure']}: {figure['told']} (goal {figure['goal'] or 'none'})")


# ------------------------------------------------------------------------------ what it ran on


def about(today: str) -> dict[str, Any]:
    """The machine and the versions."""
    versions = {"ours": _listed(("jax", "jaxlib", "flax", "optax", "numpy"), metadata.version)}
    if PEERS.is_file():
        names = ("google-tunix", "jax", "flax", "torch", "transformers", "trl")
        code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
        found = subprocess.run(
            [str(PEERS), "-c", code, *names], capture_output=True, text=True, check=True
        )
        told: dict[str, str] = dict(zip(names, found.stdout.split(), strict=True))
        versions["peers"] = _listed(names, lambda name: told[name])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": today,
        "machine": (
            f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB, "
            f"{platform.system()}, Python {platform.python_version()}, load average "
            f"{os.getloadavg()[0]:.1f} at the start"
        ),
        "versions": versions,
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _listed(names: Sequence[str], version: Callable[[str], str | None]) -> str:
    return ", ".join(f"{name} {version(name)}" for name in names)


def _named(option: str, text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in known:
            raise UserError(f"--{option} has {name!r}; there are {', '.join(known)}")
    return names


if __name__ == "__main__":
    run(main, interrupted="interrupted; the same command goes on with what was not measured")
