"""A finished dialogue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ibrl_jax.dialogue.views import RoleView
from ibrl_jax.domains.base import Outcome, Role, Scenario, Turn
from ibrl_jax.rewards.types import Reward


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Public turns, what happened, a reward a role, a private view a role that a local policy held.

    `draw` identifies the group (one drawing of a scenario), `rollout` the member; `matchup` names
    the live roles. `speakers[role]` names who held the seat (`live:agent0@12`, `past:agent1@8`,
    `scripted:fair`). `retries[role]` counts refused utterances that were sampled again.
    """

    scenario: Scenario
    draw: str
    rollout: int
    first: Role
    matchup: frozenset[Role]
    speakers: Mapping[Role, str]
    turns: Sequence[Turn]
    views: Mapping[Role, RoleView]
    outcome: Outcome
    rewards: Mapping[Role, Reward]
    retries: Mapping[Role, int]
