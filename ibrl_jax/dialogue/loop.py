"""The dialogue loop: many dialogues at once, one coroutine each, whoever speaks.

What a dialogue needs is in its `Match`; what came of it is its `Trajectory`. A dialogue whose
endpoint fails is played once more from its beginning, then recorded as aborted with its reason, as
is one that outgrows a view: nothing is refilled, nothing becomes a zero. When a dialogue ends its
judges start, while the others still talk, and the next dialogue takes its seat. Where an endpoint
has more to do than it takes at once, turns come before judgements, and judgements in the order of
their roles' ranks. A `Watch` is told of each dialogue and each reward as they come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ibrl_jax.dialogue.agents import Agent, SeatContext, Speaker, ViewFull
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView
from ibrl_jax.domains.base import Domain, Referee, Role, Scenario
from ibrl_jax.endpoints.client import EndpointError
from ibrl_jax.endpoints.lane import RANK
from ibrl_jax.identity import generator, key_data
from ibrl_jax.rewards.types import Case, Failed, Judge, Reward


@dataclass(frozen=True, kw_only=True)
class Match:
    """One dialogue to be played.

    `stage` separates training iterations and evaluations from each other in every random key.
    """

    stage: tuple[str | int, ...]
    draw: str
    rollout: int
    scenario: Scenario
    first: Role
    matchup: frozenset[Role]
    speakers: Mapping[Role, Speaker]


@dataclass(frozen=True, kw_only=True)
class Hall:
    """What all dialogues of a stage share."""

    domain: Domain
    judges: Mapping[Role, Judge]
    seed: int
    retries: int
    concurrency: int


class Watch:
    """Hears how the dialogues go, in the loop's own thread; this one does nothing about it."""

    def rank(self, role: Role) -> int:
        """How soon a role's judge may ask, from 1 on; all at once unless told otherwise."""
        del role
        return 1

    def ended(self, index: int, trajectory: Trajectory) -> None:
        """A dialogue is over; `index` is its match's, and its rewards are still to come."""

    def paid(self, index: int, role: Role, reward: Reward) -> None:
        """A role's reward has come, of a dialogue that was said to be over before."""


def play(hall: Hall, matches: Sequence[Match], watch: Watch | None = None) -> list[Trajectory]:
    """Plays the matches, at most `hall.concurrency` at a time.

    Returns:
        the trajectories, in the matches' order.

    Raises:
        UserError: an endpoint refuses its key or does not exist.
    """
    return asyncio.run(playing(hall, matches, watch))


async def playing(
    hall: Hall, matches: Sequence[Match], watch: Watch | None = None
) -> list[Trajectory]:
    """`play`, inside a loop of the caller's."""
    conductor, watch = Conductor(), watch or Watch()
    seats = asyncio.Semaphore(hall.concurrency)

    async def whole(index: int, match: Match) -> Trajectory:
        await seats.acquire()  # in the matches' order
        trajectory, failure = await _dialogue(hall, match, conductor)
        watch.ended(index, trajectory)
        seats.release()  # judges need none; after an error nobody takes it, for the stage is over
        rewards = await _judge(hall, index, trajectory, failure, watch)
        return replace(trajectory, rewards=rewards)

    dialogues = [asyncio.create_task(whole(n, match)) for n, match in enumerate(matches)]
    try:
        return await asyncio.gather(*dialogues)
    finally:
        for task in dialogues:
            task.cancel()
        await asyncio.gather(*dialogues, return_exceptions=True)
        conductor.close()


async def _dialogue(
    hall: Hall, match: Match, conductor: Conductor
) -> tuple[Trajectory, Exception | None]:
    """A dialogue that nobody has judged yet, and what broke it off."""
    failure: Exception | None = None
    views: dict[Role, RoleView] = {}
    refused = dict.fromkeys(hall.domain.roles, 0)
    referee = hall.domain.referee(match.scenario, match.first)
    try:
        try:
            views, refused = await _talk(hall, match, conductor, referee)
        except EndpointError:
            referee = hall.domain.referee(match.scenario, match.first)
            views, refused = await _talk(hall, match, conductor, referee)
    except (EndpointError, ViewFull) as error:
        failure = error
        referee.abort(str(error))
    outcome = referee.outcome
    if outcome is None:
        raise RuntimeError(f"dialogue {match.draw}/{match.rollout} stopped without an outcome")
    trajectory = Trajectory(
        scenario=match.scenario,
        draw=match.draw,
        rollout=match.rollout,
        first=match.first,
        matchup=match.matchup,
        speakers={role: speaker.name for role, speaker in match.speakers.items()},
        turns=tuple(referee.turns),
        views=views,
        outcome=outcome,
        rewards={},
        retries=refused,
    )
    return trajectory, failure


async def _talk(
    hall: Hall, match: Match, conductor: Conductor, referee: Referee
) -> tuple[dict[Role, RoleView], dict[Role, int]]:
    """One dialogue from its first turn to its last.

    Returns:
        the views of local policies, and the number of refused turns, by role.
    """
    agents: dict[Role, Agent] = {}
    views: dict[Role, RoleView] = {}
    refused = dict.fromkeys(hall.domain.roles, 0)
    with conductor.dialogue():
        try:
            for role in hall.domain.roles:
                seat = _seat(hall, match, role, referee)
                agents[role] = match.speakers[role].sit(seat, conductor)
            while (role := referee.to_move) is not None:
                attempt = 0
                while True:
                    utterance = await agents[role].reply(referee.turns, attempt)
                    turn = referee.check(role, utterance.text, utterance.end)
                    if turn.valid or attempt == hall.retries:
                        break
                    attempt += 1
                    refused[role] += 1
                referee.play(turn)
        finally:
            for role, agent in agents.items():
                view = agent.close()
                if view is not None:
                    views[role] = view
    return views, refused


async def _judge(
    hall: Hall, index: int, trajectory: Trajectory, failure: Exception | None, watch: Watch
) -> dict[Role, Reward]:
    """Each role's reward; a dialogue that was broken off has nothing to be judged by."""

    async def score(role: Role) -> Reward:
        RANK.set(watch.rank(role))  # of this task alone
        t = trajectory
        reward: Reward = (
            await hall.judges[role].score(Case.of(t.scenario, role, t.turns, t.outcome))
            if failure is None
            else Failed(reason=str(failure))
        )
        watch.paid(index, role, reward)
        return reward

    roles = hall.domain.roles
    rewards = await asyncio.gather(*(score(role) for role in roles))
    return dict(zip(roles, rewards, strict=True))


def _seat(hall: Hall, match: Match, role: Role, referee: Referee) -> SeatContext:
    """What a role is told comes from its own side of the scenario: no hook is handed the other."""
    identity = (*match.stage, match.draw, match.rollout, role)
    own, domain = match.scenario.seen_by(role), hall.domain
    return SeatContext(
        role=role,
        scenario=own,
        whole=match.scenario,
        prompt=domain.prompt(own, role),
        beside=lambda turns: domain.beside(own, role, [turn.seen_by(role) for turn in turns]),
        check=lambda text: referee.check(role, text, "stop"),
        refusal=domain.refusal,
        key_of=lambda turn, attempt: key_data(hall.seed, *identity, turn, attempt),
        rng=generator(hall.seed, "scripted", *identity),
    )
