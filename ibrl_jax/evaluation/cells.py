"""What an evaluation is made of: contestants, the dialogues that a cell plans, what came of them.

A cell is one policy in one column. The plan is a function of the config and of names alone, so it
is the same before and after a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain, Outcome, Role, Scenario
from ibrl_jax.evaluation.columns import (
    CROSS_PLAY,
    IN_SYSTEM,
    SELF_PLAY,
    Column,
    evaluation_scenarios,
)
from ibrl_jax.evaluation.seats import seats_of
from ibrl_jax.models.params import Params
from ibrl_jax.names import bare


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A policy to be measured.

    `label` is what tables call it, `name` what it is seated by (`scripted:...`, `api:...`,
    `frozen:...`). `role` is the one that it was trained to hold, if any; `version` its updates.
    `partners` are the names of who holds the other seat in its in-system column.
    """

    label: str
    name: str
    role: Role | None
    version: int
    partners: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Local:
    """A policy of this machine that can be seated.

    `params` gives what was trained of it (a base under adapters is the cast's); `fingerprint` is of
    these weights.
    """

    id: str
    role: Role | None
    version: int
    fingerprint: str
    params: Callable[[], Params]


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A dialogue to be played: `holders` are the names of who sits where, `seat` the policy's."""

    stage: tuple[str | int, ...]
    scenario: Scenario
    seed: int
    seat: Role
    first: Role
    rollout: int
    holders: Mapping[Role, str]

    @property
    def draw(self) -> str:
        return f"{self.scenario.id}.{self.seed}"

    @property
    def counterpart(self) -> str:
        """Who holds the seats that are not the policy's."""
        return "+".join(name for role, name in self.holders.items() if role != self.seat)


@dataclass(frozen=True, kw_only=True)
class Played:
    """What tables need of a dialogue. `failed` says why it was broken off, if it was."""

    plan: Planned
    outcome: Outcome
    retries: int
    failed: str | None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One policy in one column, or in several that are pooled.

    `against` names what makes a scenario count anew in a profile-wise measure: the column, and the
    counterpart where the column pools several.
    """

    played: Sequence[Played]
    against: Sequence[str]

    @property
    def planned(self) -> int:
        return len(self.played)


def plan_cell(
    config: ConfigDict,
    domain: Domain,
    policy: Contestant,
    column: Column,
    role_of: Callable[[str], Role | None],
) -> list[Planned]:
    """The dialogues of a cell, in their order; none where the policy has no seat in it.

    Every scenario, every seed, every seat of the policy's, and in a pooled column every
    counterpart. Who opens alternates; several partners of a policy are met in turn. `role_of`: the
    one role that a frozen policy was trained to hold, by its name.
    """
    own = seats_of(domain, policy.name, policy.role, column, role_of)
    roles = domain.roles
    if not own or (column.kind == IN_SYSTEM and not policy.partners):
        return []
    planned = []
    for index, scenario in enumerate(evaluation_scenarios(config, domain)):
        for seed in range(config.evaluation.seeds):
            if column.kind == SELF_PLAY:
                others: tuple[str, ...] = (policy.name,)
            elif column.kind == IN_SYSTEM:
                others = (policy.partners[(index + seed) % len(policy.partners)],)
            else:
                others = column.counterparts
            for other in others:
                planned += [
                    Planned(
                        stage=_stage(policy, column, other),
                        scenario=scenario,
                        seed=seed,
                        seat=seat,
                        first=roles[(index + seed) % len(roles)],
                        rollout=roles.index(seat),
                        holders={r: policy.name if r == seat else other for r in roles},
                    )
                    for seat in own
                ]
    return planned


def pooled(cells: Sequence[Cell]) -> Cell:
    """Cells of one policy as one."""
    return Cell(
        played=[p for cell in cells for p in cell.played],
        against=[name for cell in cells for name in cell.against],
    )


def _stage(policy: Contestant, column: Column, other: str) -> tuple[str, ...]:
    """What every random key of a dialogue begins with.

    A counterpart that is pooled is met as in an unlabelled column of its own.
    """
    if column.kind == CROSS_PLAY:
        return ("evaluate", policy.label, CROSS_PLAY, column.name)
    if len(column.counterparts) > 1:
        return ("evaluate", policy.label, bare(other))
    return ("evaluate", policy.label, column.name)
