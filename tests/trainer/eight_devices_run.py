"""Run in a process with 8 devices by `test_meshes`; prints what came out as JSON.

Two iterations of both roles on one device, on one mesh of eight and on a mesh of four a role: their
dialogues' tokens, and how far apart the parameters end. And a checkpoint, from mesh to mesh.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ibrl_jax.config import load
from ibrl_jax.parallel.place import gather
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.checkpoint import Checkpoints
from ibrl_jax.trainer.policies import about_policy
from ibrl_jax.trainer.session import set_up
from tests.trainer.conftest import SMOKE

ROLES = ("agent0", "agent1")
ONE_BUCKET = (
    "policy.start=random",
    "engine.rows=8",
    "engine.new_tokens=48",
    "engine.lengths=()",
    "optimiser.lengths=()",
    "roles.agent1.update_every=1",
    *(f"roles.{role}.{x}" for role in ROLES for x in ("learning_rate=0.01", "warmup_updates=0")),
    "optimiser.eps=0.01",  # far above rounding, or Adam makes steps of a zero gradient's noise
)


def algorithm(*options: str) -> Algorithm:
    config = load(SMOKE, [f"--config.{option}" for option in (*ONE_BUCKET, *options)])
    return set_up(config, lambda note: None).algorithm


def mesh(data: int, fsdp: int, tensor: int) -> list[str]:
    return [f"mesh.data={data}", f"mesh.fsdp={fsdp}", f"mesh.tensor={tensor}"]


def iterated(*options: str) -> tuple[Algorithm, list[list[int]]]:
    """The algorithm after two iterations, and every view of them."""
    made = algorithm(*options)
    views = []
    for _ in range(2):
        done = made.iterate()
        views += [t.views[r].ids.tolist() for t in done.trajectories for r in ROLES]
    return made, views


def host(tree: Any) -> list[np.ndarray]:
    return [gather(x) if isinstance(x, jax.Array) else x for x in jax.tree.leaves(tree)]


def apart(one: Any, other: Any) -> float:
    """The largest difference of two trees."""
    return max(
        float(np.abs(a - b).max()) for a, b in zip(host(one), host(other), strict=True) if a.size
    )


def compare(kind: list[str]) -> dict[str, Any]:
    """The same run on one device and on meshes."""
    alone, words = iterated(*kind)
    found = {}
    for name, options in {
        "shared": mesh(2, 2, 2),
        "split": [*mesh(1, 2, 2), "placement=split"],
    }.items():
        spread, theirs = iterated(*kind, *options)
        found[name] = {
            "same words": theirs == words,
            "apart": max(apart(alone.params(r), spread.params(r)) for r in ROLES),
            "moved": min(apart(alone._start[r].trained, alone.params(r)) for r in ROLES),
            "devices": [len(_devices(spread.states[r].params)) for r in ROLES],
            "in common": len(
                _devices(spread.states["agent0"].params) & _devices(spread.states["agent1"].params)
            ),
            "cut": any(
                not x.is_fully_replicated for x in jax.tree.leaves(spread.states["agent0"].params)
            ),
        }
    return found


def checkpoints(folder: Path) -> dict[str, bool]:
    """Written on (1, 8, 1), read on (2, 2, 2) and on one device, to the bit."""
    wide = ["pool.store=device", "optimiser.micro_batch=8"]
    written, _ = iterated(*mesh(1, 8, 1), *wide)
    kept = Checkpoints(folder, 1)
    kept.save(written)
    same = {}
    for name, options in {"(2, 2, 2)": mesh(2, 2, 2), "one device": mesh(1, 1, 1)}.items():
        read = algorithm(*options, *wide)
        assert kept.restore(read)
        states = [host(a.states) for a in (written, read)]
        pools = [host([p.state()["params"] for p in a.pools.values()]) for a in (written, read)]
        same[name] = all(
            a.tobytes() == b.tobytes() for x in (states, pools) for a, b in zip(*x, strict=True)
        )
        read.iterate()
    kept.close()
    return same


def supervised(folder: Path) -> dict[str, float]:
    """The loss of the supervised start, on one device and on the mesh."""
    losses = {}
    for name, options in {"one": mesh(1, 1, 1), "mesh": mesh(2, 2, 2)}.items():
        root = folder / name
        algorithm("policy.start=sft", "sft.batch=8", f"run.root={root}", *options)
        (start,) = (root / "starts").iterdir()
        losses[name] = about_policy(start)["loss"]
    return losses


def _devices(tree: Any) -> set[Any]:
    return {device for x in jax.tree.leaves(tree) for device in x.sharding.device_set}


def main() -> None:
    what, folder = sys.argv[1:]
    if what == "checkpoints":
        found = checkpoints(Path(folder))
    elif what == "supervised":
        found = supervised(Path(folder))
    else:
        kinds = {
            "dense": ["policy.preset=qwen3_micro"],
            "lora": ["policy.preset=qwen3_micro", "lora.rank=2"],
            # fresh delta layers normalise keys close to 0, and rounding with them: small steps
            "hybrid": [
                "policy.preset=qwen3_5_micro",
                *(f"roles.{role}.learning_rate=0.0001" for role in ROLES),
            ],
        }
        found = compare(kinds[what])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
