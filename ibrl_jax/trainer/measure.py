"""What is written down of an iteration: one row of `metrics.jsonl`, and its dialogues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.dialogue.record import record
from ibrl_jax.dialogue.tokenizers import Tokenizer
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.rewards.types import Scored
from ibrl_jax.trainer.algorithm import Algorithm
from ibrl_jax.trainer.iteration import Iteration

_UPDATE = {
    "loss": "loss",
    "kl": "kl",
    "entropy": "entropy",
    "clip_low": "clip_low",
    "clip_high": "clip_high",
    "grad_norm": "grad_norm",
    "learning_rate": "learning_rate",
    "sampler_trainer_max": "logp_gap_max",
    "sampler_trainer_mean": "logp_gap",
    "ratio_deviation_max": "ratio_deviation_max",
    "trained_tokens": "tokens",
    "batch_tokens": "batch_tokens",
}
_CORRECTED = ("importance", "importance_truncated")
"""Of an update of rows that were sampled by older parameters."""
_GAPS = ("sampler_trainer_max", "sampler_trainer_mean")
"""Of log-probs by the same parameters; such an update no longer has those that sampled."""


def metrics_row(algorithm: Algorithm, done: Iteration, compilations: int) -> dict[str, Any]:
    """The row of an iteration; `compilations` counts programs built since the warm-up."""
    trajectories = done.trajectories
    count = len(trajectories)
    rewards = [r for t in trajectories for r in t.rewards.values()]
    return {
        "iteration": done.iteration,
        "roles": {role: _role(algorithm, done, role) for role in algorithm.roles},
        "dialogues": {
            "count": count,
            algorithm.cast.domain.measured[0].key: success(trajectories),
            "turns": float(np.mean([len(t.turns) for t in trajectories])),
            "tokens": sum(int(v.loss_mask.sum()) for t in trajectories for v in t.views.values()),
            "retries": sum(sum(t.retries.values()) for t in trajectories),
        },
        "end_reasons": _counted(t.outcome.end_reason for t in trajectories),
        "format_failures": {
            role: _counted(
                str(turn.error_code)
                for t in trajectories
                for turn in t.turns
                if turn.role == role and not turn.valid
            )
            for role in algorithm.roles
        },
        **_instructing(done, algorithm.roles),
        "matchups": _counted("+".join(sorted(t.matchup)) for t in trajectories),
        "speakers": {
            role: _speakers(done, role)
            for role in algorithm.roles
            if role not in algorithm.learners
        },
        "pool": {
            role: {"size": len(pool), "drawn": done.drawn.get(role)}
            for role, pool in algorithm.pools.items()
        },
        "coverage": sum(isinstance(r, Scored) for r in rewards) / len(rewards),
        "compilations": compilations,
        **({"staleness": done.staleness} if algorithm.config.pipeline.max_staleness else {}),
        "seconds": {
            **done.seconds,
            "total": sum(done.seconds.values()),
            "within": done.within,
        },
    }


def _instructing(done: Iteration, roles: Sequence[Role]) -> dict[str, dict[str, int]]:
    """Turns that tried to instruct a judge, by role; nothing in a domain that does not look."""
    found = [t.outcome.facts.get("instructing") for t in done.trajectories]
    if all(one is None for one in found):
        return {}
    return {"instructing": {r: sum((one or {}).get(r, 0) for one in found) for r in roles}}


def success(trajectories: Sequence[Trajectory]) -> float | None:
    """Share of successes among the dialogues that came to an end; an aborted one is no failure."""
    ended = [t for t in trajectories if any(isinstance(r, Scored) for r in t.rewards.values())]
    return sum(t.outcome.success for t in ended) / len(ended) if ended else None


def _role(algorithm: Algorithm, done: Iteration, role: Role) -> dict[str, Any]:
    """One role's figures. Rewards are what its own judge paid the role, over its live seats."""
    live = [t for t in done.trajectories if role in t.matchup]
    paid = [r.value for t in live if isinstance(r := t.rewards[role], Scored)]
    row: dict[str, Any] = {
        "rows": len(paid),
        "reward": float(np.mean(paid)) if paid else None,
        "reward_std": float(np.std(paid)) if paid else None,
    }
    if role not in algorithm.learners:
        return row
    stats = done.credits.stats[role]
    update = done.updates.get(algorithm.owner(role))
    row |= {
        "advantage_spread": stats.mean_spread,
        "groups": stats.groups,
        "degenerate_groups": stats.degenerate,
        "updated": update is not None,
        "updates": algorithm.version(role),
    }
    if update is not None:
        row |= {name: update[key] for name, key in _UPDATE.items()}
        if corrected := {name: update[name] for name in _CORRECTED if name in update}:
            row |= corrected | dict.fromkeys(_GAPS)
    return row


def _speakers(done: Iteration, role: Role) -> dict[str, dict[str, float]]:
    """Returns by counterpart (the paper's Table 4): a learner's against each who held this seat."""
    returns: dict[str, list[float]] = {}
    for t in done.trajectories:
        for other in t.matchup:
            if other != role and isinstance(reward := t.rewards[other], Scored):
                returns.setdefault(t.speakers[role], []).append(reward.value)
    return {
        name: {"episodes": len(values), "return": float(np.sum(values))}
        for name, values in sorted(returns.items())
    }


def dialogue_records(
    config: ConfigDict, done: Iteration, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """The dialogues of an iteration, or none if this is not one whose dialogues are kept."""
    if done.iteration % config.run.dialogues_every:
        return []
    return [
        record(
            t,
            tokenizer,
            {
                role: seat.advantage
                if (seat := done.credits.seats.get((role, t.draw, t.rollout)))
                else None
                for role in t.rewards
            },
            iteration=done.iteration,
        )
        for t in done.trajectories
    ]


def _counted(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))
