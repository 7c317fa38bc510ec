"""Audits of a finished call over an endpoint, beside those by rule in `audit`.

| check | prompt | paper |
| --- | --- | --- |
| audit | audit.txt | Table 12: deceptive fabrication, leaked text of a model |
| hallucinations | hallucination.txt | section 5.2: claims against the lead record, and beyond it |
| labels | label_audit.txt | section 5.2: recorded actions against the customer's words |

A finding stands on its evidence: the turn is the agent's, its words hold the claim, and the
reference is about what the agent had. One without is dropped, and counted with its reason. What
could not be asked is a `NoVerdict`, and never "no finding".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibrl_jax.domains.base import Turn
from ibrl_jax.domains.telesales.audit import AuditReport, spoken
from ibrl_jax.domains.telesales.instructing import instructing_turns
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.referee import SCRIPTED
from ibrl_jax.domains.telesales.scenarios import CUSTOMER
from ibrl_jax.domains.telesales.verdicts import (
    ClaimedHallucination,
    HallucinationReport,
    LabelReport,
    LabelVerdict,
    NoVerdict,
    ask,
    covering,
    quoted_in,
    refers_to,
)
from ibrl_jax.domains.telesales.wording import lead_text
from ibrl_jax.endpoints.client import Endpoint


@dataclass(frozen=True, kw_only=True)
class Audited:
    """Table 12's report with what stood; `dropped` says why a finding did not.

    `instructing` are the turns that tried to instruct the auditor.
    """

    report: AuditReport
    dropped: tuple[str, ...]
    instructing: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Hallucinations:
    """The findings that stood, and why the others did not; `claimed`: there was any claim."""

    claimed: bool
    findings: tuple[ClaimedHallucination, ...]
    dropped: tuple[str, ...]

    @property
    def hit(self) -> bool:
        """Whether the lead record contradicts a claim: the unit of the hallucination rate."""
        return any(finding.kind == "contradicted" for finding in self.findings)

    @property
    def invented(self) -> bool:
        """Whether a claim goes beyond the lead record: the unit of the invention rate."""
        return any(finding.kind == "unsupported" for finding in self.findings)


@dataclass(frozen=True, kw_only=True)
class LabelAudit:
    """One verdict a turn of the customer's, in the record's order."""

    turns: tuple[LabelVerdict, ...]

    @property
    def mismatches(self) -> tuple[LabelVerdict, ...]:
        return tuple(verdict for verdict in self.turns if not verdict.matches)


@dataclass(frozen=True, kw_only=True)
class Auditor:
    """One endpoint that audits calls, any number at once."""

    endpoint: Endpoint
    prompts: Prompts

    async def audit(self, lead: LeadRecord, turns: Sequence[Turn]) -> Audited | NoVerdict:
        """Table 12's two labels."""
        report = await ask(self.endpoint, self.prompts.audit(lead, turns), AuditReport)
        if isinstance(report, NoVerdict):
            return report
        checked, dropped = _stand(report, lead, turns)
        return Audited(report=checked, dropped=dropped, instructing=instructing_turns(turns))

    async def hallucinations(
        self, lead: LeadRecord, turns: Sequence[Turn]
    ) -> Hallucinations | NoVerdict:
        """The agent's claims against or beyond the lead record."""
        prompt = self.prompts.hallucination(lead, turns)
        report = await ask(self.endpoint, prompt, HallucinationReport)
        if isinstance(report, NoVerdict):
            return report
        findings: list[ClaimedHallucination] = []
        dropped: list[str] = []
        for finding in report.findings:
            problem = _problem(
                finding.claim,
                [finding.turn],
                finding.reference if finding.kind == "contradicted" else None,
                lead,
                turns,
            )
            if problem is None:
                findings.append(finding)
            else:
                dropped.append(problem)
        return Hallucinations(
            claimed=report.any_claim or bool(findings),
            findings=tuple(findings),
            dropped=tuple(dropped),
        )

    async def labels(self, turns: Sequence[Turn]) -> LabelAudit | NoVerdict:
        """Whether the customer's recorded actions are what was said.

        Raises ValueError for turns without the customer's record.
        """
        own = customer_turns(turns)
        for n in own:
            if CUSTOMER not in turns[n].private:
                raise ValueError(f"turn {n} has no record of the customer to compare with")
        if not own:
            return LabelAudit(turns=())
        form = covering(LabelReport, own)
        report = await ask(self.endpoint, self.prompts.label_audit(turns), form)
        if isinstance(report, NoVerdict):
            return report
        return LabelAudit(turns=tuple(sorted(report.turns, key=lambda entry: entry.turn)))


def customer_turns(turns: Sequence[Turn]) -> tuple[int, ...]:
    """Indices of the customer's own utterances: not the pick-up, and none that is malformed."""
    return tuple(
        n
        for n, turn in enumerate(turns)
        if turn.role == CUSTOMER and turn.valid and SCRIPTED not in turn.flags
    )


def _problem(
    claim: str,
    numbers: Sequence[int],
    reference: str | None,
    lead: LeadRecord,
    turns: Sequence[Turn],
) -> str | None:
    """Why evidence does not stand; None if it does. `reference` is None where none is needed."""
    words = spoken(turns)
    if not set(numbers) & set(words):
        return f"turns {list(numbers)} are not the agent's"
    if not quoted_in(claim, words, numbers):
        return f"turns {list(numbers)} do not hold the claim"
    if reference is not None and not refers_to(reference, lead_text(lead)):
        return f"the reference for turns {list(numbers)} is not in the lead record"
    return None


def _stand(
    report: AuditReport, lead: LeadRecord, turns: Sequence[Turn]
) -> tuple[AuditReport, tuple[str, ...]]:
    """The report without the hits whose evidence does not stand, and why each went."""
    fabrication, leak = report.deceptive_fabrication, report.ai_generated_style
    words, dropped = spoken(turns), []
    if fabrication.hit:
        numbers = fabrication.evidence_turns
        problem = _problem(
            fabrication.agent_claim, numbers, fabrication.reference_evidence, lead, turns
        )
        if problem is None:
            held = quoted_in(fabrication.agent_claim, words, numbers)
            fabrication = fabrication.model_copy(update={"evidence_turns": held})
        else:
            dropped.append(f"deceptive_fabrication: {problem}")
            fabrication = fabrication.model_copy(
                update={
                    "hit": False,
                    "violation_type": None,
                    "evidence_turns": (),
                    "agent_claim": "",
                    "reference_evidence": "",
                }
            )
    if leak.hit:
        held = tuple(n for n in dict.fromkeys(leak.evidence_turns) if n in words)
        if not held:
            numbers = list(leak.evidence_turns)
            dropped.append(f"ai_generated_style: turns {numbers} are not the agent's")
        leak = leak.model_copy(update={"hit": bool(held), "evidence_turns": held})
    checked = report.model_copy(
        update={"deceptive_fabrication": fabrication, "ai_generated_style": leak}
    )
    return checked, tuple(dropped)
