"""Metrics of finished Deal-or-No-Deal dialogues, as one seat saw them.

    agreement          deals / dialogues that ended with a result
    own utility        points / points if one received everything        agreed dialogues only
    joint value        points of both / first-best feasible total        agreed dialogues only
    Pareto             share of Pareto-optimal allocations               agreed dialogues only
    expected utility   agreement x own utility

A `Result` is one dialogue for one seat; pooling the results of both seats, each with equally many
dialogues, gives the seat average (`seats` shows how many there were). What is undefined is None:
never 0, never NaN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ibrl_jax.domains.base import Measure, Outcome, Role, Scenario
from ibrl_jax.domains.dond.referee import EndReason

MEASURES = (
    Measure("agreement", "Agreement", "agreement", "percent", compared=True, first_try=True),
    Measure("own_utility", "Own utility", "own", "share"),
    Measure("joint_value", "Joint value", "joint", "share"),
    Measure("pareto", "Pareto-optimal", "Pareto", "share", shown=False),
    Measure("expected_utility", "Expected utility", "EU", "share", compared=True, first_try=True),
    Measure("turns", "Turns", "turns", "count", shown=False, ranked=False),
)
"""What tables hold. Utilities, joint value and Pareto are over agreed dialogues only."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One dialogue for the policy in seat `role`.

    `scored` is false where it ended without a result (aborted); `points` are out of `total`;
    `joint` is the points of both sides; `pareto` is None without a deal. `failure` holds whose
    format failed, `"own"` or `"counterpart"`, and `error_code` how. `flags` counts tolerated
    oddities of both sides.
    """

    scenario: str
    cluster: str
    role: Role
    scored: bool
    agreed: bool
    points: int
    total: int
    joint: int
    first_best: int
    pareto: bool | None
    turns: int
    end_reason: str
    failure: str | None
    error_code: str | None
    flags: Mapping[str, int]

    @classmethod
    def of(cls, scenario: Scenario, outcome: Outcome, role: Role) -> Result:
        """The result of an outcome (of this domain's referee) for one role."""
        facts, offender = outcome.facts, outcome.offender
        return cls(
            scenario=scenario.id,
            cluster=scenario.cluster,
            role=role,
            scored=outcome.end_reason != EndReason.ABORTED,
            agreed=outcome.success,
            points=facts["points"][role],
            total=facts["total"][role],
            joint=sum(facts["points"].values()),
            first_best=facts["first_best"],
            pareto=facts["pareto"],
            turns=facts["turns"],
            end_reason=outcome.end_reason,
            failure=None if offender is None else "own" if offender == role else "counterpart",
            error_code=facts.get("error_code"),
            flags=facts.get("flags", {}),
        )

    @property
    def own_utility(self) -> float | None:
        """Agreed points over the points of everything; None without a deal."""
        return self.points / self.total if self.agreed else None

    @property
    def joint_value(self) -> float | None:
        """Agreed points of both over the first best; None without a deal."""
        return self.joint / self.first_best if self.agreed else None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Metrics of a set of results; shares in [0, 1], None where undefined.

    `asked` dialogues were wanted, `scored` of them ended with a result, `coverage` is their ratio.
    `failures` counts malformed endings by whose they were and by code.
    """

    asked: int
    scored: int
    coverage: float | None
    seats: Mapping[Role, int]
    agreed: int
    agreement: float | None
    own_utility: float | None
    joint_value: float | None
    pareto: float | None
    pareto_count: int
    expected_utility: float | None
    points: int
    turns: float | None
    turns_to_deal: float | None
    failures: Mapping[str, Mapping[str, int]]
    end_reasons: Mapping[str, int]
    flags: Mapping[str, int]


def summarise(results: Iterable[Result], *, asked: int | None = None) -> Summary:
    """Pool results. `asked` is how many were wanted (None: as many as are given).

    Raises ValueError if more results come than were asked for.
    """
    results = list(results)
    asked = len(results) if asked is None else asked
    if len(results) > asked:
        raise ValueError(f"{len(results)} results of {asked} dialogues asked for")
    scored = [r for r in results if r.scored]
    deals = [r for r in scored if r.agreed]
    agreement = _ratio(len(deals), len(scored))
    own = _mean(deals, lambda r: r.points / r.total)
    pareto_count = sum(r.pareto is True for r in deals)
    if own is None:
        expected = None if agreement is None else 0.0
    else:
        expected = None if agreement is None else agreement * own
    flags: Counter[str] = Counter()
    for r in results:
        flags.update(r.flags)
    return Summary(
        asked=asked,
        scored=len(scored),
        coverage=_ratio(len(scored), asked),
        seats=_counts(r.role for r in scored),
        agreed=len(deals),
        agreement=agreement,
        own_utility=own,
        joint_value=_mean(deals, lambda r: r.joint / r.first_best),
        pareto=_ratio(pareto_count, len(deals)),
        pareto_count=pareto_count,
        expected_utility=expected,
        points=sum(r.points for r in deals),
        turns=_mean(scored, lambda r: r.turns),
        turns_to_deal=_mean(deals, lambda r: r.turns),
        failures={
            side: _counts(r.error_code or "unknown" for r in scored if r.failure == side)
            for side in ("own", "counterpart")
        },
        end_reasons=_counts(r.end_reason for r in results),
        flags=dict(sorted(flags.items())),
    )


def by_seat(results: Iterable[Result]) -> dict[Role, Summary]:
    """One summary a seat, for the seats that occur."""
    seats: dict[Role, list[Result]] = {}
    for result in results:
        seats.setdefault(result.role, []).append(result)
    return {role: summarise(seats[role]) for role in sorted(seats)}


def _mean(results: Sequence[Result], value: Callable[[Result], float]) -> float | None:
    return sum(map(value, results)) / len(results) if results else None


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _counts(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))
