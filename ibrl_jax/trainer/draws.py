"""What an iteration plays: Q drawings of scenarios, G rollouts each, and who is live in which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain, Role, Scenario
from ibrl_jax.identity import generator
from ibrl_jax.rl.schedule import ALL, draw_matchup


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One drawing of a scenario. The same scenario drawn twice is two draws, and two groups."""

    id: str
    scenario: Scenario
    first: Role
    counterparts: dict[Role, str]
    """Who holds the seat of each role that does not train."""


def draw_scenarios(config: ConfigDict, domain: Domain, iteration: int) -> list[Draw]:
    """The draws of an iteration. Every seat opens equally often.

    Counterparts have a generator of their own, so that the scenarios of a seed are the same whoever
    sits opposite.
    """
    rng = generator(config.seed, "draws", iteration)
    drawn = generator(config.seed, "counterparts", iteration)
    scenarios = domain.scenarios("train")
    draws = []
    for index in range(config.rollout.draws):
        draws.append(
            Draw(
                id=f"{iteration}.{index}",
                scenario=scenarios[int(rng.integers(len(scenarios)))],
                first=domain.roles[(iteration + index) % len(domain.roles)],
                counterparts={
                    role: settings.counterpart[int(drawn.integers(len(settings.counterpart)))]
                    for role, settings in config.roles.items()
                    if not settings.train
                },
            )
        )
    return draws


def live_roles(
    config: ConfigDict,
    draw: Draw,
    rollout: int,
    iteration: int,
    learners: Sequence[Role],
    stocked: Collection[Role],
) -> frozenset[Role]:
    """The roles whose live policy takes part in one rollout; `learners` in the domain's order."""
    if len(learners) < 2 or not config.stabilise.pool:
        return frozenset(learners)
    return draw_matchup(
        config.seed,
        iteration,
        draw.id,
        rollout,
        sample_per=config.pool.sample_per,
        probabilities={
            ALL: config.matchup.all,
            **dict(zip(learners, config.matchup.only, strict=True)),
        },
        roles=learners,
        stocked=stocked,
    )
