"""The scores at the start of a call, and how hard a profile is, found from the finished profile.

```
difficulty = 100 (.32 (1 - w) + .14 (1 - t) + .14 (1 - p) + .10 privacy + .12 mean intensity
                  + .06 objections / 4 + .06 distance + .06 unreachable)
```

The paper gives the least, mean and greatest initial scores (`PAPER_SCORES`) and the shares of the
levels (Table 7), not the formulas; these are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ibrl_jax.domains.telesales.profiles.schema import Profile, State
from ibrl_jax.domains.telesales.profiles.terms import (
    Difficulty,
    HardFactor,
    IntentDepth,
    Memory,
    Personality,
    PrivacySensitivity,
    Remote,
)
from ibrl_jax.domains.telesales.profiles.view import CustomerView, view


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Least, mean and greatest of a score over a batch."""

    low: float
    mean: float
    high: float


PAPER_SCORES: Mapping[str, Spread] = {
    "willingness": Spread(low=0.11, mean=0.406, high=0.79),
    "trust": Spread(low=0.24, mean=0.524, high=0.82),
    "patience": Spread(low=0.17, mean=0.543, high=0.89),
}
"""Appendix D: the scores of the 500 evaluation profiles; the ends bound ours."""

NOISE = 0.03
"""Standard deviation of what is added to each score."""

_W_INTENT = {
    IntentDepth.URGENT: 0.64,
    IntentDepth.INTERESTED: 0.49,
    IntentDepth.BROWSING: 0.36,
    IntentDepth.ACCIDENTAL: 0.23,
}
_P_INTENT = {
    IntentDepth.URGENT: 0.07,
    IntentDepth.INTERESTED: 0.04,
    IntentDepth.BROWSING: 0.0,
    IntentDepth.ACCIDENTAL: -0.06,
}
_W_PERSONALITY = {
    Personality.SKEPTICAL: -0.04,
    Personality.ANALYTICAL: 0.0,
    Personality.PASSIVE: -0.02,
    Personality.FRIENDLY: 0.05,
    Personality.IMPATIENT: -0.02,
}
_T_PERSONALITY = {
    Personality.SKEPTICAL: -0.13,
    Personality.ANALYTICAL: -0.02,
    Personality.PASSIVE: 0.02,
    Personality.FRIENDLY: 0.11,
    Personality.IMPATIENT: -0.02,
}
_P_PERSONALITY = {
    Personality.SKEPTICAL: -0.04,
    Personality.ANALYTICAL: 0.05,
    Personality.PASSIVE: 0.02,
    Personality.FRIENDLY: 0.14,
    Personality.IMPATIENT: -0.17,
}
_W_MEMORY = {Memory.CLEAR: 0.02, Memory.VAGUE: 0.0, Memory.NONE: -0.03}
_T_MEMORY = {Memory.CLEAR: 0.06, Memory.VAGUE: 0.0, Memory.NONE: -0.07}
_T_PRIVACY = {
    PrivacySensitivity.LOW: 0.05,
    PrivacySensitivity.MEDIUM: 0.0,
    PrivacySensitivity.HIGH: -0.06,
}
_T_BASE, _P_BASE, _P_BUSY = 0.525, 0.575, -0.08

_PRIVACY = {
    PrivacySensitivity.LOW: 0.0,
    PrivacySensitivity.MEDIUM: 0.5,
    PrivacySensitivity.HIGH: 1.0,
}
_DISTANCE = {Remote.SAME_CITY: 0.0, Remote.SAME_PROVINCE: 0.5, Remote.CROSS_PROVINCE: 1.0}

CUTS: Mapping[Difficulty, float] = {
    Difficulty.EASY: 43.4,
    Difficulty.MEDIUM: 53.7,
    Difficulty.HARD: 74.8,
}
"""A level reaches up to its cut; what lies above the last is stress."""


def initial_scores(
    *,
    intent: IntentDepth,
    personality: Personality,
    memory: Memory,
    privacy: PrivacySensitivity,
    busy: bool,
    noise: tuple[float, float, float],
) -> State:
    """Willingness, trust and patience at the start; `noise` are three draws from N(0, 1)."""
    means = {
        "willingness": _W_INTENT[intent] + _W_PERSONALITY[personality] + _W_MEMORY[memory],
        "trust": _T_BASE + _T_PERSONALITY[personality] + _T_MEMORY[memory] + _T_PRIVACY[privacy],
        "patience": _P_BASE + _P_PERSONALITY[personality] + _P_INTENT[intent] + _P_BUSY * busy,
    }
    scores = {
        name: round(min(max(mean + NOISE * z, spread.low), spread.high), 2)
        for (name, mean), spread, z in zip(means.items(), PAPER_SCORES.values(), noise, strict=True)
    }
    return State(**scores)


def difficulty_score(customer: CustomerView) -> float:
    """The formula above, 0 to 100, to two decimals."""
    state = customer.initial
    mean_intensity = sum(customer.intensities) / len(customer.intensities)
    parts = (
        0.32 * (1 - state.willingness),
        0.14 * (1 - state.trust),
        0.14 * (1 - state.patience),
        0.10 * _PRIVACY[customer.privacy],
        0.12 * mean_intensity,
        0.06 * len(customer.concerns) / 4,
        0.06 * _DISTANCE[customer.remote],
        0.06 * (not customer.channels.reachable),
    )
    return round(100 * sum(parts), 2)


def level(score: float) -> Difficulty:
    """The level that a score falls in."""
    return next((name for name, cut in CUTS.items() if score <= cut), Difficulty.STRESS)


def difficulty(profile: Profile) -> tuple[float, Difficulty]:
    """How hard a finished profile is: the score, 0 to 100, and its level."""
    score = difficulty_score(view(profile))
    return score, level(score)


def hard_factors(customer: CustomerView) -> tuple[HardFactor, ...]:
    """What makes a customer hard."""
    state = customer.initial
    strong = sum(customer.intensities) / len(customer.intensities) >= 0.7
    signs = {
        HardFactor.LOW_WILLINGNESS: state.willingness < 0.3,
        HardFactor.LOW_TRUST: state.trust < 0.4,
        HardFactor.LOW_PATIENCE: state.patience < 0.4,
        HardFactor.PRIVACY: customer.privacy is PrivacySensitivity.HIGH,
        HardFactor.STRONG_CONCERNS: strong,
        HardFactor.FAR: customer.remote is Remote.CROSS_PROVINCE,
        HardFactor.UNREACHABLE: not customer.channels.reachable,
    }
    return tuple(factor for factor, holds in signs.items() if holds)
