"""From a config to the learner and its settings."""

from __future__ import annotations

import jax
from ml_collections import ConfigDict

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.domains.base import Role
from ibrl_jax.models.params import Params
from ibrl_jax.models.score import score
from ibrl_jax.rl.advantages import AdvantageSettings
from ibrl_jax.rl.batches import BatchSettings
from ibrl_jax.rl.learner import Hyper, Learner, LearnerSettings
from ibrl_jax.rl.losses import LossSettings
from ibrl_jax.rl.pool import OpponentPool, PoolSettings


def advantage_settings(config: ConfigDict) -> AdvantageSettings:
    return AdvantageSettings(
        reward=config.isolation.reward,
        advantage=config.isolation.advantage,
        ddof=config.advantage.ddof,
        eps=config.advantage.eps,
    )


UNMEASURED = 16
"""Rows a pass where the config leaves them to a measurement, and nobody has measured."""

PLACES = 8
"""Views that may share a row, where any may: as many as are ever worth it."""


def batch_settings(config: ConfigDict, seats: int) -> BatchSettings:
    """Rows for every rollout of an iteration, times the seats of one rollout that a learner has."""
    rollouts = config.rollout.draws * config.rollout.group
    micro = min(config.optimiser.micro_batch or UNMEASURED, rollouts)
    step = micro * max(1, config.optimiser.lanes)
    return BatchSettings(
        lengths=(config.rollout.max_view_tokens,),
        rows=-(-rollouts * seats // step) * step,
        micro_batch=micro,
        pad_id=0,
        places=PLACES if config.optimiser.packed else 1,
    )


def build_learner(config: ConfigDict, speech: Speech) -> Learner:
    """The learner of all roles."""

    def scored(
        params: Params,
        frozen: Params | None,
        ids: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        temperature: jax.Array,
        at: jax.Array | None,
        /,
    ) -> tuple[jax.Array, jax.Array]:
        values, tokens = (params, frozen), (ids, positions, segment_ids)
        chunk = config.optimiser.logp_chunk
        return score(speech.model, *values, *tokens, temperature, chunk, at)

    return Learner(
        scored,
        LearnerSettings(
            loss=LossSettings(
                normalise=config.loss.normalise,
                constant=config.loss.constant,
                mask=config.isolation.mask,
                kl_on_degenerate=config.loss.kl_on_degenerate,
            ),
            micro_batch=batch_settings(config, 1).micro_batch,
            lengths=tuple(config.optimiser.lengths),
            # Trained on both sides' words, hardly a token could be left out.
            trained_share=config.optimiser.trained_share if config.isolation.mask == "own" else 1.0,
            lanes=max(1, config.optimiser.lanes),
            b1=config.optimiser.b1,
            b2=config.optimiser.b2,
            eps=config.optimiser.eps,
            stacked=("layers",),
        ),
    )


def hyper_of(config: ConfigDict, role: Role) -> Hyper:
    """One role's numbers: constant rate after its warm-up."""
    own = config.roles[role]
    return Hyper(
        learning_rate=own.learning_rate,
        warmup_updates=own.warmup_updates,
        weight_decay=own.weight_decay,
        clip_norm=own.clip_norm,
        kl=own.kl,
        entropy=own.entropy,
        clip_low=config.loss.clip_low,
        clip_high=config.loss.clip_high,
        temperature=own.temperature,
    )


def build_pool(config: ConfigDict, role: Role) -> OpponentPool:
    settings = PoolSettings(size=config.pool.size, store=config.pool.store)
    return OpponentPool(role, settings)
