"""Who is live in a rollout, and which role updates at an iteration (paper, section 4.2).

The matchup of a rollout is one draw from

    P(all roles live) = p_all
    P(only r live, every other role past) = p_r for each role r,    p_all + sum_r p_r = 1

which for two roles is the paper's p_both = .7, p_agent1 = .2 (the first role live against a past
second one), p_agent2 = .1. The update indicator of role i is u_i(k) = 1 when k = offset_i (mod
every_i).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from ibrl_jax.errors import UserError
from ibrl_jax.identity import Part, generator

ALL = "all"
SamplePer = Literal["rollout", "scenario", "iteration"]


def updates_now(iteration: int, every: int, offset: int) -> bool:
    """Whether a role updates at this iteration (from 0): at `offset`, then every `every`-th.

    Raises UserError unless 0 <= offset < every.
    """
    if every < 1 or not 0 <= offset < every:
        raise UserError(
            f"a role updates every {every} iterations at offset {offset}: `every` must be 1 or "
            "more and `offset` from 0 to every - 1."
        )
    return iteration % every == offset


def check_probabilities(probabilities: Mapping[str, float], roles: Sequence[str]) -> None:
    """Raises UserError unless `all` and each role have a probability, and these sum to 1."""
    if ALL in roles:
        raise UserError(f"a role may not be called `{ALL}`, which means all roles in a matchup.")
    expected = [ALL, *roles]
    for key in probabilities:
        if key not in expected:
            raise UserError(
                f"matchup probability `{key}` names no role: the keys are {', '.join(expected)}."
            )
    for key in expected:
        if key not in probabilities:
            raise UserError(f"matchup probability `{key}` is missing: give each of {expected}.")
        if not 0.0 <= probabilities[key] <= 1.0:
            raise UserError(
                f"matchup probability `{key}` is {probabilities[key]}: it must lie in [0, 1]."
            )
    total = math.fsum(probabilities.values())
    if abs(total - 1.0) > 1e-6:
        raise UserError(
            f"the probabilities of the matchups {', '.join(expected)} sum to {total:g}, and must "
            "sum to 1."
        )


def draw_matchup(
    seed: int,
    iteration: int,
    draw: str,
    rollout: int,
    *,
    sample_per: SamplePer,
    probabilities: Mapping[str, float],
    roles: Sequence[str],
    stocked: Collection[str],
) -> frozenset[str]:
    """The roles that are live in one rollout; any other role's seat goes to its past snapshot.

    `sample_per` says what shares one draw: nothing (`rollout`), the rollouts of a drawn scenario,
    or the whole iteration. `roles` are those that train, in the config's order. `stocked` are the
    roles whose pool holds a snapshot: when a seat would have to be filled from an empty pool, all
    are live. Raises UserError for bad probabilities or an unknown `sample_per`.
    """
    check_probabilities(probabilities, roles)
    identities: dict[str, tuple[Part, ...]] = {
        "rollout": (iteration, draw, rollout),
        "scenario": (iteration, draw),
        "iteration": (iteration,),
    }
    if sample_per not in identities:
        raise UserError(
            f"matchups are sampled per `{sample_per}`: it must be one of {', '.join(identities)}."
        )
    point = generator(seed, "matchup", sample_per, *identities[sample_per]).random()
    everyone = frozenset(roles)
    threshold = probabilities[ALL]
    if point < threshold:
        return everyone
    live = everyone
    for role in roles:
        if probabilities[role] == 0.0:
            continue
        live = frozenset({role})
        threshold += probabilities[role]
        if point < threshold:
            break
    past = everyone - live
    return live if past <= frozenset(stocked) else everyone
