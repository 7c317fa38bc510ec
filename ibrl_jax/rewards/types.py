"""What a role is paid: never a bare float, so that nothing failed can pass for a zero."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ibrl_jax.domains.base import Outcome, Role, Scenario, Turn


@dataclass(frozen=True, kw_only=True)
class Scored:
    value: float
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failed:
    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Pending:
    pass


Reward = Scored | Failed | Pending


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a judge of one role may see: the public dialogue, the outcome, its own observation.

    Of what turns hold privately and of facts by role that role's alone is kept, and of joint facts
    none.
    """

    role: Role
    scenario_id: str
    public: Mapping[str, Any]
    observation: Any
    turns: Sequence[Turn]
    outcome: Outcome

    @classmethod
    def of(cls, scenario: Scenario, role: Role, turns: Sequence[Turn], outcome: Outcome) -> Case:
        return cls(
            role=role,
            scenario_id=scenario.id,
            public=scenario.public,
            observation=scenario.private[role],
            turns=tuple(turn.seen_by(role) for turn in turns),
            outcome=_seen_by(role, outcome, set(scenario.private)),
        )


def _seen_by(role: Role, outcome: Outcome, roles: set[Role]) -> Outcome:
    """The outcome, with mappings by role cut to one role's entry, and without joint facts."""

    def cut(value: Any) -> Any:
        if not isinstance(value, Mapping) or not value:
            return value
        if set(value) <= roles:
            return {role: value[role]} if role in value else {}
        return {key: cut(entry) for key, entry in value.items()}

    facts = {key: cut(value) for key, value in outcome.facts.items() if key not in outcome.joint}
    return replace(outcome, facts=facts)


class Judge(Protocol):
    """Scores one finished dialogue for one role."""

    async def score(self, case: Case) -> Scored | Failed: ...
