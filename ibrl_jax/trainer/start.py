"""The start of both roles: one policy, by supervised steps on the teachers' dialogues.

    loss = - sum_t w_t log p(id_t | ids_<t) / sum_t w_t        w as in `trainer.teachers`

Weights are random before. A start is kept in `<run.root>/starts/<key>/` and serves every experiment
of the same key, a hash of all that shapes it: settings of the policy, the domain and `sft`, the
network, the tokenizer, the prompts, the scenarios. How strong it is, is a setting: `sft.steps`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.models.params import Params, init_params
from ibrl_jax.models.score import score
from ibrl_jax.trainer.policies import load_policy, save_policy
from ibrl_jax.trainer.teachers import Example, examples

Note = Callable[[str], None]


def start_policy(
    config: ConfigDict, domain: Domain, speech: Speech, note: Note
) -> tuple[Params, Path | None]:
    """The parameters that `config.policy.start` asks for, and the folder that holds them.

    Raises:
        UserError: the folder it names holds no such policy.
    """
    seed = config.seed if config.sft.seed < 0 else config.sft.seed
    fresh = init_params(speech.model.config, seed)
    if config.policy.start == "random":
        return fresh, None
    if config.policy.start != "sft":
        return load_policy(Path(config.policy.start), fresh, speech), Path(config.policy.start)
    folder = Path(config.run.root) / "starts" / start_key(config, domain, speech, seed)
    if (folder / "policy.json").is_file():
        note(f"the start is {folder}, made before")
        return load_policy(folder, fresh, speech), folder
    params, about = supervise(config, domain, speech, fresh, seed, note)
    save_policy(folder, params, speech, about, keep=True)
    return load_policy(folder, fresh, speech), folder  # of whoever was first, for all the same


def supervise(
    config: ConfigDict, domain: Domain, speech: Speech, params: Params, seed: int, note: Note
) -> tuple[Params, dict[str, Any]]:
    """Supervised training; gives the parameters and what `policy.json` says of them."""
    sft = config.sft
    began = time.perf_counter()
    note(f"making {sft.dialogues} dialogues of scripted negotiators ({', '.join(sft.families)})")
    data = examples(
        domain,
        speech,
        families=sft.families,
        count=sft.dialogues,
        seed=seed,
        number_weight=sft.number_weight,
        deals_only=sft.deals_only,
    )
    short, whole = _lengths(data)
    halves = {
        short: [e for e in data if len(e.ids) <= short],
        whole: [e for e in data if len(e.ids) > short],
    }
    share = len(halves[short]) / len(data)
    schedule = optax.cosine_decay_schedule(sft.learning_rate, sft.steps, alpha=0.05)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.99, weight_decay=0.01)
    )
    step = _Step(speech, optimiser, config.optimiser.logp_chunk, sft.batch)
    params, state = step.init(params)
    rng = generator(seed, "sft")
    losses: list[jax.Array] = []
    note(
        f"compiling and taking {sft.steps} supervised steps of {sft.batch} on {len(data)} examples"
    )
    for index in range(sft.steps):
        simple = index < sft.curriculum * sft.steps or not halves[whole]
        length = short if simple or rng.random() < share else whole
        batch = _batch(halves[length], length, sft.batch, rng)
        params, state, loss = step(params, state, batch)
        losses.append(loss)
        if (index + 1) % 100 == 0:
            recent = float(np.mean(jax.device_get(losses[-100:])))
            note(f"supervised step {index + 1}/{sft.steps}: loss {recent:.3f}")
    final = float(np.mean(jax.device_get(losses[-50:])))
    if not np.isfinite(final):
        raise UserError(
            f"the supervised start came to a loss of {final}; config.sft.learning_rate = "
            f"{sft.learning_rate:g} is too high, or config.sft.steps too many"
        )
    seconds = time.perf_counter() - began
    about = {"source": "sft", "seed": seed, "steps": sft.steps, "loss": final, "seconds": seconds}
    return params, about


Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
"""ids, segment ids and weights of a batch, [B, T] each."""


class _Step:
    """One supervised step.

    Each local device takes a share of the rows; the sums meet on the first one.
    """

    def __init__(
        self, speech: Speech, optimiser: optax.GradientTransformation, chunk: int, batch: int
    ) -> None:
        devices = jax.local_devices()
        count = next(n for n in range(len(devices), 0, -1) if batch % n == 0)
        self._devices = devices[:count]
        self._optimiser = optimiser

        def loss_sum(
            params: Params, rows: tuple[jax.Array, jax.Array, jax.Array]
        ) -> tuple[jax.Array, jax.Array]:
            ids, segments, weight = rows
            positions = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
            logp, _ = score(speech.model, params, ids, positions, segments, 1.0, chunk)
            return -jnp.sum(weight * logp), jnp.sum(weight)

        def apply(params: Params, state: Any, parts: Any) -> tuple[Params, Any, jax.Array]:
            (loss, weight), gradient = jax.tree.map(lambda *leaves: sum(leaves), *parts)
            gradient = jax.tree.map(lambda g: g / weight, gradient)
            updates, state = optimiser.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, loss / weight

        self._gradient = jax.jit(jax.value_and_grad(loss_sum, has_aux=True))
        self._apply = jax.jit(apply)

    def init(self, params: Params) -> tuple[Params, Any]:
        params = jax.device_put(params, self._devices[0])
        return params, self._optimiser.init(params)

    def __call__(self, params: Params, state: Any, rows: Rows) -> tuple[Params, Any, jax.Array]:
        size = len(rows[0]) // len(self._devices)
        parts = []
        for index, device in enumerate(self._devices):
            share = tuple(x[index * size : (index + 1) * size] for x in rows)
            parts.append(self._gradient(*jax.device_put((params, share), device)))
        return self._apply(params, state, jax.device_put(parts, self._devices[0]))


def _lengths(data: Sequence[Example]) -> tuple[int, int]:
    """Two padded lengths, multiples of 16: one for the shorter half, one for all."""
    lengths = sorted(-(-len(example.ids) // 16) * 16 for example in data)
    return lengths[len(lengths) // 2], lengths[-1]


def _batch(
    data: Sequence[Example], length: int, size: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, segment ids and weights [B, T], right-padded."""
    ids = np.zeros((size, length), np.int32)
    segments = np.zeros((size, length), np.int32)
    weight = np.zeros((size, length), np.float32)
    for row, index in enumerate(rng.integers(len(data), size=size)):
        example = data[index]
        n = len(example.ids)
        ids[row, :n], segments[row, :n], weight[row, :n] = example.ids, 1, example.weight
    return ids, segments, weight


def start_key(config: ConfigDict, domain: Domain, speech: Speech, seed: int) -> str:
    """The name of a start: its seed, and a hash of everything that it is made from."""
    values = configs.to_dict(config)
    scenarios = domain.scenarios("train")
    shaping = {
        "settings": {key: values[key] for key in ("domain", "policy", "sft", config.domain)},
        "seed": seed,
        "network": dataclasses.asdict(speech.model.config),
        "tokenizer": hashlib.sha256(speech.tokenizer.model).hexdigest(),
        "prompts": [domain.prompt(scenarios[0], role) for role in domain.roles],
        "scenarios": [scenario.id for scenario in scenarios],
    }
    text = json.dumps(shaping, sort_keys=True)
    return f"seed{seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
