"""Metrics of finished calls.

    Success@n              share of profiles of whose conversations at least n ended in an add
    delta willingness      mean of the score at the end minus that at the start; patience likewise
    verbal yes             share of calls in which the customer agreed in words, added or not
    hallucination          share of audited calls with a claim that the lead record contradicts
    invention              share of audited calls with a value for what is not registered
    fabrication, leak      shares of labelled calls with Table 12's two labels
    label agreement        share of the customer's turns that were compared whose words are what
                           their recorded action says
    instructing            turns of either role that try to instruct a judge, a call

Success@n is over profiles all of whose conversations came to an end: a missing one is neither a
success nor a failure, and `profiles` beside `profiles_planned` shows how many there are. What is
undefined is None: never 0, never NaN.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ibrl_jax.domains.base import Measure, Outcome, Role, Scenario
from ibrl_jax.domains.telesales.after_call import AUDIT
from ibrl_jax.domains.telesales.referee import HALLUCINATION, INSTRUCTING, INVENTION, EndReason

STAND_IN = "rule-based stand-in; scores are not comparable with the paper's Table 1"
"""Stands wherever there are numbers that rest on rule-based customers or judges."""


def measured(conversations: int) -> tuple[Measure, ...]:
    """What tables hold, with Success@n for each n up to the conversations of a profile."""
    return (
        Measure("success", "Success", "success", "percent", compared=True, first_try=True),
        *(
            Measure(f"success@{n}", f"Success@{n}", f"@{n}", "percent")
            for n in range(1, conversations + 1)
        ),
        Measure("delta_willingness", "Change of willingness", "Δw", "signed", compared=True),
        Measure("delta_patience", "Change of patience", "Δp", "signed", compared=True),
        Measure("delta_trust", "Change of trust", "Δt", "signed", shown=False),
        Measure("hallucination", "Hallucination", "halluc.", "percent", ranked=False),
        *(
            Measure(key, title, title.lower(), "percent", shown=False, ranked=False)
            for key, title in (
                ("invention", "Invention"),
                ("fabrication", "Fabrication"),
                ("leak", "Leaked text"),
                ("label_agreement", "Label agreement"),
            )
        ),
        Measure("instructing", "Instructing turns", "instr.", "count", shown=False, ranked=False),
        Measure("verbal_yes", "Yes in words", "yes", "percent", shown=False, ranked=False),
        Measure("agent_turns", "Agent turns", "turns", "count", shown=False, ranked=False),
        Measure("tool_calls", "Tool calls", "calls", "count", shown=False, ranked=False),
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """One call; deltas are end minus start.

    What the audits found is None where they were not made or not answered, or had nothing to look
    at: `labels` are the
    customer's turns that were compared, and how many of them agree. `instructing` are turns by
    role.
    """

    profile: str
    scored: bool
    success: bool
    verbal_yes: bool
    delta_willingness: float
    delta_trust: float
    delta_patience: float
    agent_turns: int
    calls: int
    end_reason: str
    offender: str | None
    error_code: str | None
    hallucinated: bool | None
    invented: bool | None
    fabricated: bool | None
    leaked: bool | None
    labels: tuple[int, int] | None
    dropped: int
    unanswered: Mapping[str, str]
    instructing: Mapping[Role, int] | None
    flags: Mapping[str, int]

    @classmethod
    def of(cls, scenario: Scenario, outcome: Outcome) -> Result:
        """The result of an outcome of this domain's referee."""
        facts = outcome.facts
        start, end = facts["state_start"], facts["state_end"]
        audit: Mapping[str, Any] = facts.get(AUDIT) or {}
        labels = audit.get("labels")
        return cls(
            profile=scenario.cluster,
            scored=outcome.end_reason != EndReason.ABORTED,
            success=outcome.success,
            verbal_yes=facts["verbal_yes"],
            delta_willingness=end["willingness"] - start["willingness"],
            delta_trust=end["trust"] - start["trust"],
            delta_patience=end["patience"] - start["patience"],
            agent_turns=facts["agent_turns"],
            calls=len(facts["calls"]),
            end_reason=outcome.end_reason,
            offender=outcome.offender,
            error_code=facts.get("error_code"),
            hallucinated=facts.get(HALLUCINATION),
            invented=facts.get(INVENTION),
            fabricated=_hit(audit.get("fabrication")),
            leaked=_hit(audit.get("leak")),
            labels=None if labels is None else (len(labels["checked"]), _agreeing(labels)),
            dropped=len(audit.get("dropped", ())),
            unanswered=audit.get("unanswered", {}),
            instructing=facts.get(INSTRUCTING),
            flags=facts["flags"],
        )


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Metrics of a set of calls; shares in [0, 1], None where undefined.

    `asked` calls were wanted, `scored` of them ended with a result, `coverage` is their ratio.
    `success_at[n]` is over the `profiles` whose conversations were all scored;
    `success_at_bounds[n]` are its ends over all profiles, were what is missing all failures, or all
    successes. `failures` counts malformed endings by role and code.

    Each check has its own denominator, since an endpoint may answer one and not another, and since
    there may be nothing to look at: `audited` calls, in which the agent claimed something, for
    hallucination and invention, `labelled`, in which it spoke, for Table 12's labels,
    `labels_checked` turns for the agreement, `instructing_known` calls for the turns that try to
    instruct a judge (by role), of which `instructing_calls` have any. `dropped` are findings
    without evidence, `unanswered` checks by why.
    """

    asked: int
    scored: int
    coverage: float | None
    profiles: int
    profiles_planned: int
    success: float | None
    success_at: Mapping[int, float | None]
    success_at_bounds: Mapping[int, tuple[float, float]]
    verbal_yes: float | None
    delta_willingness: float | None
    delta_trust: float | None
    delta_patience: float | None
    audited: int
    hallucination: float | None
    invention: float | None
    labelled: int
    fabrication: float | None
    leak: float | None
    labels_checked: int
    label_agreement: float | None
    dropped: int
    unanswered: Mapping[str, int]
    instructing: Mapping[Role, int]
    instructing_calls: int
    instructing_known: int
    agent_turns: float | None
    calls: float | None
    end_reasons: Mapping[str, int]
    failures: Mapping[str, Mapping[str, int]]
    flags: Mapping[str, int]

    @property
    def instructing_a_call(self) -> float | None:
        """The mean number of turns of a call that try to instruct a judge."""
        known = self.instructing_known
        return sum(self.instructing.values()) / known if known else None


def summarise(
    results: Iterable[Result], *, conversations: int, asked: int | None = None
) -> Summary:
    """Pool calls; `conversations` is how many each profile was to have.

    Args:
        asked: how many calls were wanted; None: as many as are given.

    Raises ValueError if more results come than were asked for, or than a profile was to have.
    """
    results = list(results)
    asked = len(results) if asked is None else asked
    if len(results) > asked:
        raise ValueError(f"{len(results)} results of {asked} calls asked for")
    by_profile: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_profile[result.profile].append(result)
    for profile, calls in by_profile.items():
        if len(calls) > conversations:
            raise ValueError(f"{len(calls)} calls of profile {profile}, not {conversations}")
    scored = [r for r in results if r.scored]
    planned = max(-(-asked // conversations), len(by_profile))
    won = [sum(r.scored and r.success for r in calls) for calls in by_profile.values()]
    lost = [sum(r.scored and not r.success for r in calls) for calls in by_profile.values()]
    ends = [(w, conversations - n) for w, n in zip(won, lost, strict=True)]
    ends += [(0, conversations)] * (planned - len(ends))
    complete = [least for least, most in ends if least == most]
    audited = [r for r in scored if r.hallucinated is not None]
    labelled = [r for r in scored if r.fabricated is not None]
    compared = [r.labels for r in scored if r.labels is not None]
    told = [r.instructing for r in scored if r.instructing is not None]
    checked = sum(of for of, _ in compared)
    unanswered = Counter(kind for r in scored for kind in r.unanswered.values())
    instructing: Counter[Role] = Counter()
    for turns in told:
        instructing.update(turns)
    flags: Counter[str] = Counter()
    failures: dict[str, Counter[str]] = defaultdict(Counter)
    for r in results:
        flags.update(r.flags)
        if r.offender is not None:
            failures[r.offender][r.error_code or "unknown"] += 1
    return Summary(
        asked=asked,
        scored=len(scored),
        coverage=len(scored) / asked if asked else None,
        profiles=len(complete),
        profiles_planned=planned,
        success=_mean(scored, lambda r: r.success),
        success_at={
            n: sum(wins >= n for wins in complete) / len(complete) if complete else None
            for n in range(1, conversations + 1)
        },
        success_at_bounds={
            n: _bounds(n, ends, planned) for n in range(1, conversations + 1) if planned
        },
        verbal_yes=_mean(scored, lambda r: r.verbal_yes),
        delta_willingness=_mean(scored, lambda r: r.delta_willingness),
        delta_trust=_mean(scored, lambda r: r.delta_trust),
        delta_patience=_mean(scored, lambda r: r.delta_patience),
        audited=len(audited),
        hallucination=_mean(audited, lambda r: bool(r.hallucinated)),
        invention=_mean(audited, lambda r: bool(r.invented)),
        labelled=len(labelled),
        fabrication=_mean(labelled, lambda r: bool(r.fabricated)),
        leak=_mean(labelled, lambda r: bool(r.leaked)),
        labels_checked=checked,
        label_agreement=sum(agree for _, agree in compared) / checked if checked else None,
        dropped=sum(r.dropped for r in scored),
        unanswered=dict(sorted(unanswered.items())),
        instructing=dict(sorted(instructing.items())),
        instructing_calls=sum(any(turns.values()) for turns in told),
        instructing_known=len(told),
        agent_turns=_mean(scored, lambda r: r.agent_turns),
        calls=_mean(scored, lambda r: r.calls),
        end_reasons=dict(sorted(Counter(r.end_reason for r in results).items())),
        failures={role: dict(sorted(codes.items())) for role, codes in sorted(failures.items())},
        flags=dict(sorted(flags.items())),
    )


def _bounds(n: int, ends: Sequence[tuple[int, int]], profiles: int) -> tuple[float, float]:
    """Shares of profiles with at least n wins, of each the fewest and the most that it can have."""
    least, most = (sum(end >= n for end in side) for side in zip(*ends, strict=True))
    return least / profiles, most / profiles


def _mean(results: Sequence[Result], value: Callable[[Result], float]) -> float | None:
    return sum(map(value, results)) / len(results) if results else None


def _hit(label: Mapping[str, Any] | None) -> bool | None:
    return None if label is None else bool(label["hit"])


def _agreeing(labels: Mapping[str, Sequence[int]]) -> int:
    return len(labels["checked"]) - len(labels["mismatched"])
