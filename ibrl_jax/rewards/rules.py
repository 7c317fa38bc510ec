"""The judge that needs no judgement: a role is paid what its domain's rules say."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ibrl_jax.domains.base import Outcome, Role
from ibrl_jax.rewards.types import Case, Failed, Scored


@dataclass(frozen=True, kw_only=True)
class RuleJudge:
    """Pays `reward(outcome, role)`. A dialogue that was broken off has no result to be paid for."""

    reward: Callable[[Outcome, Role], float]

    async def score(self, case: Case) -> Scored | Failed:
        """`Failed` for an outcome without a result and for a reward that is no finite number."""
        reason = case.outcome.end_reason
        if reason.startswith("aborted"):
            return Failed(reason=reason, detail=dict(case.outcome.facts))
        value = float(self.reward(case.outcome, case.role))
        if not math.isfinite(value):
            return Failed(reason=f"the reward of {case.role} is {value}")
        return Scored(value=value)
