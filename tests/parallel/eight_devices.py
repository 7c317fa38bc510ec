"""Run in a process with 8 devices by the tests beside it; prints what came out as JSON.

The same two updates on one device and on each mesh, of a dense network, a hybrid, and adapters on
the dense one, and how far apart they end; and one learner on each half of the devices.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings
from ibrl_jax.models.params import (
    abstract_adapters,
    abstract_params,
    adapter_axes,
    logical_axes,
)
from ibrl_jax.models.presets import preset
from ibrl_jax.models.score import score
from ibrl_jax.parallel.mesh import MeshSettings, build_mesh, local_mesh, split
from ibrl_jax.parallel.place import gather, put
from ibrl_jax.parallel.rules import batch_sharding, shardings, use
from ibrl_jax.rl.batches import RoleBatch
from ibrl_jax.rl.cut import places
from ibrl_jax.rl.learner import Hyper, Learner, LearnerSettings, LearnerState
from ibrl_jax.rl.losses import LossSettings

VOCAB, MICRO, ROWS, TIME, SHARE = 40, 2, 8, 24, 0.8
MESHES = ((8, 1, 1), (1, 8, 1), (2, 2, 2))

HYPER = Hyper(
    learning_rate=1e-3,
    warmup_updates=0,
    weight_decay=0.1,
    clip_norm=1.0,
    kl=0.02,
    entropy=0.1,
    clip_low=0.2,
    clip_high=0.2,
    temperature=0.9,
)


class Case:
    """A network, values for it on the host, and where the rules put them."""

    def __init__(self, config: ModelConfig, lora: LoraSettings | None) -> None:
        base = random_like(abstract_params(config), 0)
        base_axes = logical_axes(config)
        self.trained, self.axes, self.frozen, self.frozen_axes = base, base_axes, None, None
        if lora is not None:
            self.trained = random_like(abstract_adapters(config, lora), 1)
            self.axes = adapter_axes(config, lora)
            self.frozen, self.frozen_axes = base, base_axes
        loss = LossSettings(normalise="tokens", constant=8.0, mask="own", kl_on_degenerate=True)
        self.learner = Learner(
            partial(scored, Decoder(config, lora)),
            LearnerSettings(
                loss=loss,
                micro_batch=ROWS,
                lengths=(TIME,),
                trained_share=SHARE,
                b1=0.9,
                b2=0.99,
                eps=1e-3,  # less, and Adam makes a step of the noise in a gradient of zero
                stacked=("layers",),
            ),
        )

    def place(self, mesh: Mesh | None) -> tuple[Any, Any, RoleBatch]:
        """(trained, frozen, batch) where they belong."""
        batch = a_batch()
        if mesh is None:
            return self.trained, self.frozen, batch
        trained = put(self.trained, shardings(mesh, self.axes, self.trained, "the policy"))
        frozen = self.frozen
        if frozen is not None:
            frozen = put(frozen, shardings(mesh, self.frozen_axes, frozen, "the base"))
        return trained, frozen, put(batch, batch_sharding(mesh, batch))

    def updates(self, mesh: Mesh | None) -> tuple[LearnerState, dict[str, Any]]:
        """The state after two updates; what the first did: its gradient, loss, and so on."""
        trained, frozen, batch = self.place(mesh)
        with use(mesh):
            state = self.learner.init(trained)
            where = jax.tree.map(lambda x: x.sharding, state)
            state, metrics = jax.block_until_ready(self.learner.update(state, frozen, batch, HYPER))
            first = {
                "gradient": jax.tree.map(gather, optax.tree.get(state.opt_state, "mu")),
                "loss": float(metrics["loss"]),
                "norm": float(metrics["grad_norm"]),
            }
            state, _ = jax.block_until_ready(self.learner.update(state, frozen, batch, HYPER))
        assert jax.tree.map(lambda x: x.sharding, state) == where
        return state, first

    def logp(self, mesh: Mesh | None) -> np.ndarray:
        trained, frozen, batch = self.place(mesh)
        with use(mesh):
            return gather(self.learner.reference_logp(trained, frozen, batch, HYPER.temperature))


def scored(model: Decoder, trained, frozen, ids, positions, segment_ids, temperature, at, /):
    return score(model, trained, frozen, ids, positions, segment_ids, temperature, 8, at)


def random_like(abstract: Any, seed: int) -> Any:
    rng = np.random.default_rng(seed)

    def leaf(path: tuple[Any, ...], x: Any) -> np.ndarray:
        noise = rng.normal(size=x.shape).astype(np.float32)
        return 1 + 0.1 * noise if path[-1].key == "scale" else 0.2 * noise

    return jax.tree_util.tree_map_with_path(leaf, abstract)


def a_batch() -> RoleBatch:
    """Micro-batches [M, b, T] of rows of one to two segments, padded on the right."""
    rng = np.random.default_rng(0)
    shape = (MICRO, ROWS, TIME)
    length = rng.integers(6, TIME + 1, size=(MICRO, ROWS, 1))
    border = rng.integers(3, TIME, size=(MICRO, ROWS, 1))
    at = np.arange(TIME)
    real, second = at < length, at >= border
    sampled = real & (at > 0) & (at != border) & (rng.random(shape) < 0.7)
    assert sampled.sum(axis=-1).max() <= places(TIME, SHARE)  # or all would be computed
    return RoleBatch(
        ids=rng.integers(VOCAB, size=shape, dtype=np.int32),
        positions=np.where(second, at - border, at).astype(np.int32),
        segment_ids=np.where(real, 1 + second, 0).astype(np.int32),
        segment=np.where(sampled, 1, 0).astype(np.int8),
        loss_mask=sampled,
        behaviour_logp=np.where(sampled, rng.uniform(-5, -3, shape), 0).astype(np.float32),
        reference_logp=np.where(sampled, rng.uniform(-5, -3, shape), 0).astype(np.float32),
        importance=np.ones(shape, np.float32),
        advantage=rng.normal(size=shape[:2]).astype(np.float32),
        degenerate=np.zeros(shape[:2], bool),
        weight=np.ones(shape[:2], np.float32),
    )


def apart(a: Any, b: Any) -> float:
    """The largest difference between two trees of arrays."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def largest(tree: Any) -> float:
    return max(float(np.abs(x).max()) for x in jax.tree.leaves(tree))


def a_mesh(sizes: tuple[int, int, int], devices: list[Any]) -> Mesh:
    data, fsdp, tensor = sizes
    return build_mesh(MeshSettings(data=data, fsdp=fsdp, tensor=tensor), devices)


def compare(case: Case) -> dict[str, dict[str, float]]:
    """How far each mesh ends from one device."""
    state, first = case.updates(None)
    out = {}
    for sizes in MESHES:
        there, found = case.updates(a_mesh(sizes, jax.devices()))
        held = jax.tree.leaves((there.params, optax.tree.get(there.opt_state, ("mu", "nu"))))
        out[str(sizes)] = {
            "gradient": apart(first["gradient"], found["gradient"]) / largest(first["gradient"]),
            "loss": abs(first["loss"] - found["loss"]),
            "norm": abs(found["norm"] / first["norm"] - 1),
            "params": apart(state.params, there.params),
            "moved": apart(case.trained, there.params),
            "share": sum(x.addressable_shards[0].data.size for x in held)
            / sum(x.size for x in held),
        }
    return out


def two_halves(case: Case) -> float:
    """One learner on a mesh of each half of the devices, and how far apart the log-probs are."""
    halves = [a_mesh((1, 2, 2), share) for share in split(jax.devices(), 2)]
    for half in halves:
        assert local_mesh(half) == half
    logp = [case.logp(half) for half in halves]
    assert case.learner.compilations == 2
    return max(apart(logp[0], logp[1]), apart(case.logp(None), logp[0]))


def main() -> None:
    assert jax.device_count() == 8
    dense = replace(preset("qwen3_micro", vocab_size=VOCAB), unroll=1)
    hybrid = replace(preset("qwen3_5_micro", vocab_size=VOCAB), unroll=1)
    adapters = LoraSettings(rank=4, alpha=8.0, targets=("q", "k", "o", "down"))
    cases = {
        "dense": Case(dense, None),
        "hybrid": Case(hybrid, None),
        "lora": Case(replace(dense, unroll=True), adapters),
    }
    found = {name: compare(case) for name, case in cases.items()}
    print(json.dumps({"meshes": found, "halves": two_halves(Case(dense, adapters))}))


if __name__ == "__main__":
    main()
