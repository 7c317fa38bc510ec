"""An iteration on its way, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ibrl_jax.dialogue.loop import Match
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.rl.advantages import Credits
from ibrl_jax.trainer.beside import Ahead, Course


@dataclass(kw_only=True)
class Rollout:
    """An iteration's dialogues on their way.

    `drawn`: the version of each role's past seats; `versions`: that of each owner's live ones.
    `course`: what runs beside them. `ahead`: where they are played already; None: they have yet to
    be.
    """

    drawn: dict[Role, int | None]
    matches: list[Match]
    course: Course
    versions: dict[Role, int]
    ahead: Ahead | None = None


@dataclass(kw_only=True)
class Iteration:
    """What one iteration did, for whoever writes it down.

    `staleness`: how many updates behind its dialogues' live policies were, at most. `seconds`: the
    laps of `trainer.clock`, which add up. `within`: seconds of parts of them. Of the dialogues
    `sampling` (the busier engine), `judging` (nobody talks any more) and `talking` (the rest) add
    up to `rollout` and `saved`, the time for which nobody waited; `reference` and `update_<role>`
    may run side by side, and beside the dialogues.
    """

    iteration: int
    trajectories: list[Trajectory]
    credits: Credits
    updates: dict[Role, dict[str, float]]
    drawn: dict[Role, int | None]
    staleness: int
    seconds: dict[str, float] = field(default_factory=dict)
    within: dict[str, float] = field(default_factory=dict)
