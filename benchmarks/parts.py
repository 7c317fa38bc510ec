"""Engines and learners as a run builds them from its config, for views of token ids alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from ibrl_jax.config import default_config
from ibrl_jax.dialogue.build import build_programs
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.identity import key_data
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import Params
from ibrl_jax.rl.batches import RoleBatch, abstract_batch
from ibrl_jax.rl.learner import Hyper, Learner
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import Request
from ibrl_jax.trainer.build import build_learner
from ibrl_jax.trainer.placing import Place
from ibrl_jax.trainer.tune import Tuned, choose
from ibrl_jax.trainer.weights import Weights

Ids = Sequence[Sequence[int]]

GROUP = 4
"""Rows of a draw; rows are a multiple of it."""

HYPER = Hyper(
    learning_rate=1e-5,
    warmup_updates=0.0,
    weight_decay=0.0,
    clip_norm=1.0,
    kl=0.02,
    entropy=0.0,
    clip_low=0.2,
    clip_high=0.2,
    temperature=1.0,
)


def engines(
    model: Decoder,
    policies: Sequence[Params],
    *,
    slots: int,
    rows: int,
    new_tokens: Sequence[int],
    lengths: Sequence[int],
    max_length: int,
    max_new: int,
    stop_ids: Sequence[int],
) -> list[Engine]:
    """An engine a policy, its parameters loaded as "policy", as a run builds them from its config.

    Turns are sampled whole, since all that run together are of one length. `rows` go into a call:
    half of the dialogues, where two engines are to run side by side.
    """
    config = default_config()
    config.rollout.max_view_tokens = max_length
    config.rollout.max_new_tokens = max_new
    config.engine.rows = (rows,)
    config.engine.new_tokens = tuple(sorted({_rounded(n, 8) for n in new_tokens}))
    config.engine.lengths = (*lengths, max_length)
    config.engine.block = max_new
    programs = build_programs(config, speech_of(model, stop_ids), ("any",), slots)["any"]
    made = [Engine(programs) for _ in policies]
    for engine, params in zip(made, policies, strict=True):
        engine.load("policy", params)
    return made


def learner(model: Decoder, params: Params, rows: int, length: int) -> tuple[Learner, Tuned]:
    """The learner that a run builds whose roles update in turns, for views of one length.

    How rows are cut up is measured first, as at the start of a run that asks for it, and given too.
    """
    config = default_config()
    config.rollout.draws, config.rollout.group = rows // GROUP, GROUP
    config.rollout.max_view_tokens = length
    config.optimiser.micro_batch = config.optimiser.lanes = 0
    for offset, role in enumerate(config.roles.values()):
        role.update_every, role.update_offset = 2, offset
    speech, weights = speech_of(model, ()), Weights(trained=params, frozen=None)
    with TemporaryDirectory() as place:
        cache = Path(place) / "tuned.json"
        tuned = choose(config, speech, Place(model, None), weights, print, kept=None, cache=cache)
    tuned = replace(tuned, lengths=(length,))
    return build_learner(tuned.into(config), speech), tuned


def scorer(model: Decoder, rows: int) -> Learner:
    """A learner for the log-probs of so many rows alone."""
    config = default_config()
    config.optimiser.micro_batch = math.gcd(rows, 16)
    return build_learner(config, speech_of(model, ()))


def speech_of(model: Decoder, stop_ids: Sequence[int]) -> Speech:
    """A network without words: token ids in, token ids out."""
    chat: Any = SimpleNamespace(stop_ids=tuple(stop_ids))
    tokenizer: Any = None
    return Speech(model=model, tokenizer=tokenizer, chat=chat)


def requests(
    slots: Sequence[int], views: Ids, new_tokens: int, seed: int, turn: int | str
) -> list[Request]:
    return [
        Request("policy", slot, view, key_data(seed, turn, row), 1.0, new_tokens)
        for row, (slot, view) in enumerate(zip(slots, views, strict=True))
    ]


def row_batch(ids: np.ndarray, mask: np.ndarray) -> RoleBatch:
    """Rows without padding; log-probs and advantages are still 0."""
    rows, length = ids.shape
    blank: RoleBatch = jax.tree.map(
        lambda x: np.zeros(x.shape, x.dtype), abstract_batch(rows, length)
    )
    return blank.replace(
        ids=ids.astype(np.int32),
        positions=np.tile(np.arange(length, dtype=np.int32), (rows, 1)),
        segment_ids=np.ones((rows, length), np.int32),
        loss_mask=mask,
        importance=np.ones((rows, length), np.float32),
        weight=np.ones(rows, np.float32),
    )


def _rounded(n: int, step: int) -> int:
    return -(-n // step) * step
