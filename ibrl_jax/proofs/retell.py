"""A finished dialogue as it would be had the same words been said in another scenario.

For the audit: whatever is made of a scenario is made anew (prompts, the opening of each view, the
outcome, the cases that judges see, the rewards); the utterances stay.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Hall
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView, Segment, ViewBuilder
from ibrl_jax.domains.base import Role, Scenario
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Case

_ARRAYS = ("ids", "segment", "turn_index", "loss_mask", "behaviour_logp")


def with_other_observation(cast: Cast, scenario: Scenario, role: Role) -> Scenario:
    """The scenario, with the role's observation that of another one with the same public part.

    Raises:
        UserError: there is no such scenario.
    """
    domain, encode = cast.domain, cast.speech.tokenizer.encode
    length = len(encode(domain.prompt(scenario, role)))
    for other in domain.scenarios("train"):
        if other.public == scenario.public and other.private[role] != scenario.private[role]:
            changed = replace(scenario, private={**scenario.private, role: other.private[role]})
            if len(encode(domain.prompt(changed, role))) <= length:  # so that its view still fits
                return changed
    raise UserError(f"no training scenario differs from {scenario.id} in what {role} observes")


def retold(cast: Cast, hall: Hall, trajectory: Trajectory, scenario: Scenario) -> Trajectory:
    """The dialogue's words in another scenario, ruled on and judged again."""
    domain, turns = cast.domain, trajectory.turns
    referee = domain.referee(scenario, trajectory.first)
    for turn in turns:
        if referee.to_move is None:  # what was said there ends a dialogue sooner here
            break
        referee.play(turn)
    outcome = referee.outcome or trajectory.outcome
    return replace(
        trajectory,
        scenario=scenario,
        outcome=outcome,
        views={
            role: _reopened(cast.speech, view, domain.prompt(scenario, role))
            for role, view in trajectory.views.items()
        },
        rewards={
            role: asyncio.run(hall.judges[role].score(Case.of(scenario, role, turns, outcome)))
            for role in domain.roles
        },
    )


def _reopened(speech: Speech, view: RoleView, prompt: str) -> RoleView:
    """The view with another prompt in place of its own."""
    before, after = speech.chat.system()
    builder = ViewBuilder(role=view.role, policy=view.policy)
    builder.read([*before, *speech.tokenizer.encode(prompt), *after], -1, Segment.TEMPLATE)
    opening, rest = builder.finish(), view.turn_index >= 0
    arrays = {
        name: np.concatenate([getattr(opening, name), getattr(view, name)[rest]])
        for name in _ARRAYS
    }
    return replace(view, **arrays)
