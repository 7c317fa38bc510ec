"""A trajectory as one line of JSON: the format of every dialogue file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ibrl_jax.dialogue.tokenizers import Tokenizer
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView
from ibrl_jax.domains.base import Role
from ibrl_jax.rewards.types import Failed, Reward, Scored


def record(
    trajectory: Trajectory,
    tokenizer: Tokenizer,
    advantages: Mapping[Role, float | None],
    **where: Any,
) -> dict[str, Any]:
    """JSON-able; `where` comes first (the iteration, the cell of an evaluation)."""
    scenario = trajectory.scenario
    return {
        **where,
        "draw": trajectory.draw,
        "rollout": trajectory.rollout,
        "scenario": {
            "id": scenario.id,
            "cluster": scenario.cluster,
            "public": dict(scenario.public),
            "private": dict(scenario.private),
        },
        "first": trajectory.first,
        "matchup": sorted(trajectory.matchup),
        "speakers": dict(trajectory.speakers),
        "turns": [
            {
                "role": turn.role,
                "text": turn.text,
                "end": turn.end,
                "action": turn.action,
                "valid": turn.valid,
                "payload": turn.payload,
                "error_code": turn.error_code,
                "flags": list(turn.flags),
                "private": dict(turn.private),
            }
            for turn in trajectory.turns
        ],
        "views": {role: _view(view, tokenizer) for role, view in trajectory.views.items()},
        "outcome": {
            "end_reason": trajectory.outcome.end_reason,
            "success": trajectory.outcome.success,
            "facts": dict(trajectory.outcome.facts),
            "offender": trajectory.outcome.offender,
            "joint": list(trajectory.outcome.joint),
        },
        "rewards": {role: _reward(reward) for role, reward in trajectory.rewards.items()},
        "advantages": dict(advantages),
        "retries": dict(trajectory.retries),
    }


def _view(view: RoleView, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "policy": {"id": view.policy.id, "seat": view.policy.seat, "version": view.policy.version},
        "ids": view.ids.tolist(),
        "segment": view.segment.tolist(),
        "turn_index": view.turn_index.tolist(),
        "loss_mask": view.loss_mask.tolist(),
        "behaviour_logp": [round(float(p), 6) for p in view.behaviour_logp],
        "pieces": tokenizer.pieces(view.ids.tolist()),
    }


def _reward(reward: Reward) -> dict[str, Any]:
    match reward:
        case Scored(value=value, detail=detail):
            shown: dict[str, Any] = {"scored": value}
        case Failed(reason=reason, detail=detail):
            shown = {"failed": reason}
        case _:
            return {"pending": True}
    return {**shown, "detail": dict(detail)} if detail else shown
