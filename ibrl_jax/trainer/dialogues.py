"""An iteration's dialogues: who sits where, who plays them, whether enough could be scored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ml_collections import ConfigDict

from ibrl_jax.dialogue.agents import Speaker
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Hall, Match, Watch, play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef, Seating
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.parallel.hosts import Hosts
from ibrl_jax.rewards.types import Failed
from ibrl_jax.trainer.draws import draw_scenarios, live_roles

LIVE, PAST = "live", "past"
"""The names under which an engine holds a role's live policy and the one past snapshot."""


def seat(
    config: ConfigDict,
    cast: Cast,
    iteration: int,
    learners: Sequence[Role],
    frozen: Collection[str],
    live: Mapping[Role, int],
    past: Mapping[Role, int | None],
) -> list[Match]:
    """The matches of an iteration, its draws' rollouts side by side.

    Args:
        learners: the roles that train.
        frozen: the counterparts that are policies, under the names by which engines hold them.
        live: each learner's version.
        past: the version of each learner's snapshot that holds its past seats, or None.
    """

    def policy(role: Role, params: str, ref: str, kind: Seating, version: int) -> Speaker:
        of = PolicyRef(id=ref, seat=kind, version=version)
        return cast.local(role, params, of, config.roles[role].temperature)

    def speaker(role: Role, is_live: bool, counterpart: str) -> Speaker:
        if is_live:
            return policy(role, LIVE, role, "live", live[role])
        if role in learners:
            version = past[role]
            assert version is not None
            return policy(role, PAST, role, "past", version)
        if counterpart in frozen:
            return policy(role, counterpart, counterpart.partition(":")[2], "frozen", 0)
        return cast.named(counterpart, role)

    stocked = [role for role, version in past.items() if version is not None]
    matches = []
    for draw in draw_scenarios(config, cast.domain, iteration):
        for rollout in range(config.rollout.group):
            alive = live_roles(config, draw, rollout, iteration, learners, stocked)
            matches.append(
                Match(
                    stage=("train", iteration),
                    draw=draw.id,
                    rollout=rollout,
                    scenario=draw.scenario,
                    first=draw.first,
                    matchup=alive,
                    speakers={
                        role: speaker(role, role in alive, draw.counterparts.get(role, ""))
                        for role in cast.domain.roles
                    },
                )
            )
    return matches


def play_shared(
    hall: Hall, matches: Sequence[Match], watch: Watch | None, hosts: Hosts, iteration: int
) -> list[Trajectory]:
    """All dialogues, in the matches' order; each process plays its share of the draws.

    Raises:
        UserError: a process could not play its share; every process raises it.
    """
    if hosts.count == 1:
        return play(hall, matches, watch)
    mine: list[Trajectory] = []
    problem = ""
    try:
        mine = play(hall, hosts.share(matches, key=lambda match: match.draw), watch)
    except UserError as error:  # the others must know, since all save what was finished
        problem = str(error)
    parts = hosts.exchange(f"trajectories {iteration}", (mine, problem))
    for _, said in parts:
        if said:
            raise UserError(said)
    return [trajectory for part, _ in parts for trajectory in part]


def check_coverage(trajectories: Sequence[Trajectory], iteration: int, least: float) -> None:
    """Raises UserError if too small a share of an iteration's rewards could be scored."""
    rewards = [reward for t in trajectories for reward in t.rewards.values()]
    failed = [reward.reason for reward in rewards if isinstance(reward, Failed)]
    coverage = 1 - len(failed) / len(rewards)
    if coverage < least:
        raise UserError(
            f"only {coverage:.0%} of iteration {iteration}'s rewards could be scored "
            f"({len(failed)} of {len(rewards)} failed), less than config.rewards.min_coverage; "
            f"the first failure: {failed[0]}"
        )
