"""What is looked at after a call: the audits, as facts of its outcome.

```
audit      {by, fabrication, leak, claimed, claims, labels, dropped, unanswered}, see `by_rule`
hallucination, invention     the referee's facts, from the same look at the call
```

Rules look at every call for nothing; an auditor behind an endpoint is asked three times a call. A
check that got no answer is None, with the kind of its failure under `unanswered`: it is in no rate.
None too, and in no rate, is a check that had nothing to look at: of an agent that said nothing, the
labels; of one that claimed nothing, hallucination and invention. An aborted call has no result, and
nothing in it is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ibrl_jax.domains.base import Outcome, Scenario, Turn
from ibrl_jax.domains.telesales.audit import (
    AuditReport,
    audit,
    check_labels,
    claimed,
    fabrications,
    inventions,
    said,
)
from ibrl_jax.domains.telesales.auditor import Auditor
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord
from ibrl_jax.domains.telesales.referee import HALLUCINATION, INVENTION, EndReason
from ibrl_jax.domains.telesales.scenarios import language_of, lead_of
from ibrl_jax.domains.telesales.verdicts import NoVerdict

AUDIT = "audit"
"""The fact of an outcome that holds what the checks found."""

RULES = "rules"
"""Who audits where no endpoint does."""

AUDITS_VERSION = 1
"""Raised by hand where the code changes what an audit of the same call finds, by rule or by an
endpoint: evaluations that audit then begin anew. Prompts count by themselves."""

CHECKS = ("audit", "claims", "labels")
"""The questions that an auditor behind an endpoint is asked of a call."""

Found = TypeVar("Found")

CONTRADICTED, UNSUPPORTED = "contradicted", "unsupported"
"""The kinds of a claim: against the lead record, beyond it."""


def by_rule(scenario: Scenario, turns: Sequence[Turn], outcome: Outcome) -> Outcome:
    """The outcome with the audit by rule.

    `fabrication` and `leak` are Table 12's labels with their evidence; `claimed` says whether the
    agent made any claim, and `claims` are those against and beyond the lead record; `labels` are
    the customer's turns whose recorded action was compared with its words, and those where they
    differ. Turns are indices in the record.

    Raises ValueError for turns without the customer's record.
    """
    if outcome.end_reason == EndReason.ABORTED:
        return outcome
    lead = lead_of(scenario)
    return _with(outcome, {"by": RULES, **_words_by_rule(lead, turns), **_labels(scenario, turns)})


async def by_auditor(
    auditor: Auditor, scenario: Scenario, turns: Sequence[Turn], outcome: Outcome
) -> Outcome:
    """The outcome with the audit by an endpoint; its three questions are asked at once.

    An agent that said nothing needs no question, and a customer that said nothing none either.
    Where the outcome has an audit by the same endpoint, only what that left unanswered is asked.

    Raises EndpointStop where the endpoint as a whole is at fault, ValueError for turns without the
    customer's record.
    """
    if outcome.end_reason == EndReason.ABORTED:
        return outcome
    lead, name = lead_of(scenario), auditor.endpoint.settings.name
    earlier: Mapping[str, Any] = outcome.facts.get(AUDIT) or {}
    if earlier.get("by") != name:
        earlier = {}
    due = earlier["unanswered"] if earlier else CHECKS

    async def ask(check: str, question: Callable[[], Awaitable[Found]]) -> Found | None:
        return await question() if check in due else None

    found: dict[str, Any] = {**earlier, "by": name}
    dropped: list[str] = list(earlier.get("dropped", ()))
    unanswered: dict[str, str] = {}
    if said(turns):
        report, claims, labels = await asyncio.gather(
            ask("audit", lambda: auditor.audit(lead, turns)),
            ask("claims", lambda: auditor.hallucinations(lead, turns)),
            ask("labels", lambda: auditor.labels(turns)),
        )
        if isinstance(report, NoVerdict):
            found |= {"fabrication": None, "leak": None}
            unanswered["audit"] = report.kind
        elif report is not None:
            found |= _both_labels(report.report)
            dropped += report.dropped
        if isinstance(claims, NoVerdict):
            found |= {"claimed": None, "claims": None}
            unanswered["claims"] = claims.kind
        elif claims is not None:
            found["claimed"] = claims.claimed
            found["claims"] = [
                {"turn": c.turn, "kind": c.kind, "claim": c.claim, "reference": c.reference}
                for c in claims.findings
            ]
            dropped += claims.dropped
    else:
        found |= _words_by_rule(lead, turns)
        labels = await ask("labels", lambda: auditor.labels(turns))
    if isinstance(labels, NoVerdict):
        found["labels"] = None
        unanswered["labels"] = labels.kind
    elif labels is not None:
        found["labels"] = {
            "checked": [verdict.turn for verdict in labels.turns],
            "mismatched": [verdict.turn for verdict in labels.mismatches],
        }
    return _with(outcome, {**found, "dropped": dropped, "unanswered": unanswered})


def _with(outcome: Outcome, found: Mapping[str, Any]) -> Outcome:
    """The outcome with an audit, and with what it says in place of the referee's own look."""
    kinds = {claim["kind"] for claim in found["claims"]} if found["claimed"] else None
    facts = {
        **outcome.facts,
        HALLUCINATION: None if kinds is None else CONTRADICTED in kinds,
        INVENTION: None if kinds is None else UNSUPPORTED in kinds,
        AUDIT: {"dropped": [], "unanswered": {}, **found},
    }
    joint = outcome.joint if AUDIT in outcome.joint else (*outcome.joint, AUDIT)
    return replace(outcome, facts=facts, joint=joint)


def _words_by_rule(lead: LeadRecord, turns: Sequence[Turn]) -> dict[str, Any]:
    """What rules find in the agent's words."""
    findings = [(CONTRADICTED, finding) for finding in fabrications(lead, turns)]
    findings += [(UNSUPPORTED, finding) for finding in inventions(lead, turns)]
    return {
        **(
            _both_labels(audit(lead, turns)) if said(turns) else {"fabrication": None, "leak": None}
        ),
        "claimed": claimed(lead, turns),
        "claims": [
            {
                "turn": finding.turn,
                "kind": kind,
                "claim": finding.claim.text,
                "reference": finding.reference or "",
            }
            for kind, finding in sorted(findings, key=lambda found: found[1].turn)
        ],
    }


def _both_labels(report: AuditReport) -> dict[str, Any]:
    """Table 12's labels without the auditor's prose."""
    fabrication, leak = report.deceptive_fabrication, report.ai_generated_style
    return {
        "fabrication": {
            "hit": fabrication.hit,
            "turns": list(fabrication.evidence_turns),
            "claim": fabrication.agent_claim,
            "reference": fabrication.reference_evidence,
        },
        "leak": {"hit": leak.hit, "turns": list(leak.evidence_turns)},
    }


def _labels(scenario: Scenario, turns: Sequence[Turn]) -> dict[str, Any]:
    checks = check_labels(turns, language_of(scenario))
    return {
        "labels": {
            "checked": [check.turn for check in checks],
            "mismatched": [check.turn for check in checks if not check.matches],
        }
    }
