"""The start of both roles: one policy, by supervised steps on the teachers' dialogues.

    loss = - sum_t w_t log p(id_t | ids_<t) / sum_t w_t        w as in `trainer.teachers`

Weights are random before, or a released model's; what trains is all of them, or adapters. A start
is kept in `<run.root>/starts/<key>/` and serves every experiment of the same key, a hash of all
that shapes it: settings of the policy, the domain and `sft`, the network, the weights and adapters
that it grows from, the tokenizer, the chat format, the prompts, the scenarios. How strong it is, is
a setting: `sft.steps`.
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
import numpy as np
import optax
from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.tokenizers import fingerprint as tokenizer_fingerprint
from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.identity import generator
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.hosts import ALONE, Hosts
from ibrl_jax.trainer.placing import Place, places, to_be_written
from ibrl_jax.trainer.policies import about_policy, load_policy, save_policy
from ibrl_jax.trainer.supervised import Rows, stepper
from ibrl_jax.trainer.teachers import Example, examples
from ibrl_jax.trainer.weights import (
    Weights,
    base_of,
    fingerprint,
    first_weights,
    load_weights,
    seed_of,
)

Note = Callable[[str], None]


def start_policy(
    config: ConfigDict, domain: Domain, speech: Speech, note: Note, hosts: Hosts = ALONE
) -> tuple[Weights, Path | None]:
    """The values that `config.policy.start` asks for, and the folder that holds what was trained.

    They lie where the first role trains. Several processes train a start together, as they do
    everything else, and the first writes it.

    Raises:
        UserError: a folder that it names holds no such policy or weights.
    """
    place = places(config, speech, domain.roles)[domain.roles[0]]
    start, base = config.policy.start, base_of(config)
    if start in ("random", "pretrained"):
        return first_weights(config, speech, place), None
    if start != "sft":
        folder = Path(start)
        if base is not None and "lora" not in about_policy(folder):  # new adapters over all of it
            return first_weights(config, speech, place), folder
        return load_weights(config, speech, place, folder), folder
    key = start_key(config, domain, speech, seed_of(config))
    folder = Path(config.run.root) / "starts" / key
    if hosts.exchange("start", (folder / "policy.json").is_file())[0]:
        note(f"the start is {folder}, made before")
        return load_weights(config, speech, place, folder), folder
    first = first_weights(config, speech, place)
    trained, about = supervise(config, domain, speech, first, place, note)
    written = to_be_written(trained, hosts)
    if written is not None:
        save_policy(folder, written, speech, about, base=base, keep=True)
    hosts.barrier("the start is written")
    trained = load_policy(folder, place.like, speech, base)  # for all the one of whoever was first
    return Weights(trained=place.trained(trained), frozen=first.frozen), folder


def supervise(
    config: ConfigDict,
    domain: Domain,
    speech: Speech,
    first: Weights,
    place: Place,
    note: Note,
) -> tuple[Params, dict[str, Any]]:
    """Supervised training; gives what was trained and what `policy.json` says of it."""
    seed = seed_of(config)
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
    step = stepper(speech, optimiser, config.optimiser.logp_chunk, sft.batch, first.frozen, place)
    params, state = step.init(first.trained)
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


def _lengths(data: Sequence[Example]) -> tuple[int, int]:
    """Two padded lengths, multiples of 16: one for the shorter half, one for all."""
    lengths = sorted(-(-len(example.ids) // 16) * 16 for example in data)
    return lengths[len(lengths) // 2], lengths[-1]


def _batch(data: Sequence[Example], length: int, size: int, rng: np.random.Generator) -> Rows:
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
    weights = fingerprint(Path(config.policy.folder)) if config.policy.folder else None
    shaping = {
        "settings": {key: values[key] for key in ("domain", "policy", "sft", config.domain)},
        "seed": seed,
        "network": dataclasses.asdict(speech.model.config),
        "lora": values["lora"] if config.lora.rank else None,
        "weights": weights,
        "tokenizer": tokenizer_fingerprint(speech.tokenizer),
        "chat": speech.chat.name,
        "prompts": [domain.prompt(scenarios[0], role) for role in domain.roles],
        "scenarios": [scenario.id for scenario in scenarios],
    }
    shaping["settings"]["policy"].pop("folder")  # wherever it lies: its weights count
    text = json.dumps(shaping, sort_keys=True)
    return f"seed{seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
