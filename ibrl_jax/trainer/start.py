"""The start of both roles: one policy, by supervised steps on the teachers' dialogues.

    loss = - sum_t w_t log p(id_t | ids_<t) / sum_t w_t        w as in `trainer.teachers`

Or on transcripts of the user's own (`trainer.transcripts`). Weights are random before, or a
released model's; what trains is all of them, or adapters. A start is kept in
`<run.root>/starts/<key>/` and serves every experiment of the same key, a hash of all that shapes
it: settings of the policy, the domain and `sft`, the network, the weights and adapters that it
grows from, the tokenizer, the chat format, the prompts, the scenarios, the transcripts. How strong
it is, is a setting: `sft.steps`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable
from functools import partial
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
from ibrl_jax.trainer import halfway
from ibrl_jax.trainer.lessons import Lessons
from ibrl_jax.trainer.placing import Place, places, to_be_written
from ibrl_jax.trainer.policies import about_policy, load_policy, save_policy
from ibrl_jax.trainer.supervised import Stepper, stepper
from ibrl_jax.trainer.teachers import Example, Renderer, examples, recitals
from ibrl_jax.trainer.transcripts import read_transcripts
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
    part = None if hosts.count > 1 else folder.with_name(f"{key}.part")
    trained, about = supervise(config, domain, speech, first, place, note, part)
    written = to_be_written(trained, hosts)
    if written is not None:
        save_policy(folder, written, speech, about, base=base, keep=True)
    if part is not None:
        halfway.forget(part)
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
    part: Path | None = None,
) -> tuple[Params, dict[str, Any]]:
    """Supervised training; gives what was trained and what `policy.json` says of it.

    `part` is a folder where it is kept from time to time, and where it goes on from.
    """
    seed = seed_of(config)
    sft = config.sft
    began = time.perf_counter()
    data = _data(config, domain, speech, note)
    lessons = Lessons(sft, data, _recitals(config, domain, speech))
    step = build_stepper(config, speech, first.frozen, place)
    params, state = step.init(first.trained)
    rng = generator(seed, "sft")
    losses: list[Any] = []
    note(
        f"compiling and taking {sft.steps} supervised steps of {sft.batch} on {len(data)} examples"
    )
    if part and (kept := halfway.find(part, (params, state))):
        note(f"going on from step {kept.step}")
        (params, state), losses = kept.trees, list(kept.losses)
        rng.bit_generator.state = kept.draws
    keeping = halfway.Pace()
    for index in range(len(losses), sft.steps):
        params, state, loss = step(params, state, lessons.rows(index, rng))
        losses.append(loss)
        if (index + 1) % 100 == 0:
            recent = float(np.mean(jax.device_get(losses[-100:])))
            note(f"supervised step {index + 1}/{sft.steps}: loss {recent:.3f}")
        if part and (index + 1) % halfway.EVERY == 0 and keeping.due():
            now = halfway.Halfway(
                trees=(params, state),
                step=index + 1,
                draws=rng.bit_generator.state,
                losses=np.asarray(jax.device_get(losses), np.float32),
            )
            keeping.timed(partial(halfway.keep, part, now))
    final = float(np.mean(jax.device_get(losses[-50:])))
    if not np.isfinite(final):
        raise UserError(
            f"the supervised start came to a loss of {final}; config.sft.learning_rate = "
            f"{sft.learning_rate:g} is too high, or config.sft.steps too many"
        )
    seconds = time.perf_counter() - began
    about = {"source": "sft", "seed": seed, "steps": sft.steps, "loss": final, "seconds": seconds}
    return params, about


def build_stepper(
    config: ConfigDict, speech: Speech, frozen: Params | None, place: Place
) -> Stepper:
    """The supervised step of a config; `frozen` is a base under adapters, abstract or not.

    Raises:
        UserError: the mesh does not divide the rows.
    """
    sft = config.sft
    schedule = optax.cosine_decay_schedule(sft.learning_rate, sft.steps, alpha=0.05)
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.99, weight_decay=0.01)
    )
    chunk, packed = config.optimiser.logp_chunk, sft.packed or sft.recitals > 0
    return stepper(speech, optimiser, chunk, sft.batch, frozen, place, packed=packed)


def _data(config: ConfigDict, domain: Domain, speech: Speech, note: Note) -> list[Example]:
    """The examples: of a file of transcripts, or of scripted teachers.

    Raises:
        UserError: there are none, or one is longer than a view may be.
    """
    sft = config.sft
    if sft.transcripts:
        note(f"reading the transcripts of {sft.transcripts}")
        renderer = Renderer(domain, speech, sft.number_weight)
        data = [
            renderer.example(prompt, role, transcript.turns, transcript.scenario)
            for transcript in read_transcripts(sft.transcripts, domain)
            for role, prompt in transcript.prompts.items()
        ]
    else:
        note(f"making {sft.dialogues} dialogues of scripted teachers ({', '.join(sft.families)})")
        data = examples(
            domain,
            speech,
            families=sft.families,
            count=sft.dialogues,
            seed=seed_of(config),
            number_weight=sft.number_weight,
            deals_only=sft.deals_only,
        )
    room = _room(config)
    fitting = [e for e in data if len(e.ids) <= room and e.weight.any()]
    if len(fitting) < len(data):
        note(
            f"{len(data) - len(fitting)} of {len(data)} examples are left out: longer than "
            f"config.rollout.max_view_tokens = {room}, or without a turn of the role"
        )
    if not fitting:
        raise UserError(
            f"no example of a start fits into config.rollout.max_view_tokens = {room}; give it more"
        )
    return fitting


def _recitals(config: ConfigDict, domain: Domain, speech: Speech) -> list[Example]:
    """As many recitals as there are dialogues; none where nobody recites."""
    if not config.sft.recitals:
        return []
    return recitals(
        domain,
        speech,
        count=config.sft.dialogues,
        seed=seed_of(config),
        number_weight=config.sft.number_weight,
    )


def _room(config: ConfigDict) -> float:
    """The longest example, tokens. Deal-or-No-Deal's teachers are never longer than a horizon."""
    bounded = config.domain != "dond" or config.sft.transcripts
    return config.rollout.max_view_tokens if bounded else math.inf


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
    referee = domain.referee(scenarios[0], domain.roles[0])
    beside = [
        domain.beside(scenarios[0].seen_by(role), role, referee.turns) for role in domain.roles
    ]
    if any(beside):
        shaping["beside"] = beside
    if (room := _room(config)) < math.inf:
        shaping["room"] = room
    sft = shaping["settings"]["sft"]
    for name, said in (
        ("transcripts", _content(config.sft.transcripts)),
        ("packed", True),
        ("cut", config.sft.cut),
        ("recitals", config.sft.recitals),
    ):
        if sft.pop(name):  # what is read from a file is what stands in it, wherever it lies
            sft[name] = said
    shaping["settings"]["policy"].pop("folder")  # wherever it lies: its weights count
    text = json.dumps(shaping, sort_keys=True)
    return f"seed{seed}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _content(path: str) -> str | None:
    """A hash of a file; None where there is no such file, which is told when it is read."""
    file = Path(path)
    return hashlib.sha256(file.read_bytes()).hexdigest() if path and file.is_file() else None
