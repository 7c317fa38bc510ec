"""After a call: what rules and an auditor say stands in the outcome, and no answer is no "no"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from ibrl_jax.domains.base import Outcome, Scenario, Turn
from ibrl_jax.domains.telesales.after_call import by_auditor, by_rule
from ibrl_jax.domains.telesales.auditor import Auditor
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.scenarios import make_scenario
from ibrl_jax.endpoints import Endpoint, EndpointSettings
from tests.endpoints.fault_server import Asked, FaultServer, Reply, say, status

ENDED = Outcome(
    end_reason="hang_up",
    success=False,
    facts={"hallucination": False, "invention": False, "turns": 5},
    joint=("hallucination",),
)


def scenario() -> Scenario:
    made = make_scenario(evaluation_profiles(1, 1, "sampled", "zh")[0])
    lead = dict(made.private["sales"])
    lead["vehicle"] = {**lead["vehicle"], "price": 128_000, "fees": None}
    return Scenario(
        id=made.id,
        cluster=made.cluster,
        public=made.public,
        private={**made.private, "sales": lead},
    )


def agent(words: str) -> Turn:
    payload = {"words": words, "calls": []}
    return Turn(role="sales", text=words, end="stop", action="speak", payload=payload)


def customer(words: str, behaviour: str, *flags: str) -> Turn:
    private = {"customer": {"behavior": behaviour}}
    return Turn(
        role="customer", text=words, end="stop", action="speak", private=private, flags=flags
    )


TURNS = (
    customer("喂？", "Greeting", "scripted"),
    agent("您好，标价6万，手续费3000元。"),
    customer("行，那你加我吧。", "AgreeWeChat"),
    agent("```json 好的。"),
    customer("再说吧。", "ConfirmAdded"),
)
"""A price against the record, fees beyond it, leaked text, and an add that was never said."""


# ------------------------------------------------------------------------- by rule


def test_rules_find_the_claims_the_leak_and_the_label_that_does_not_fit():
    found = by_rule(scenario(), TURNS, ENDED)
    assert (found.facts["hallucination"], found.facts["invention"]) == (True, True)
    audit = found.facts["audit"]
    assert audit["by"] == "rules"
    assert audit["fabrication"] == {
        "hit": True,
        "turns": [1],
        "claim": audit["claims"][0]["claim"],
        "reference": "price: 128000",
    }
    assert audit["leak"] == {"hit": True, "turns": [3]}
    assert [(c["turn"], c["kind"], c["reference"]) for c in audit["claims"]] == [
        (1, "contradicted", "128000"),
        (1, "unsupported", ""),
    ]
    assert audit["labels"] == {"checked": [2, 4], "mismatched": [4]}
    assert (audit["dropped"], audit["unanswered"]) == ([], {})
    json.dumps(dict(found.facts))


def test_the_audit_is_added_to_what_is_known_and_no_judge_may_see_it():
    found = by_rule(scenario(), TURNS, ENDED)
    assert found.facts["turns"] == 5
    assert found.joint == ("hallucination", "audit")
    assert ENDED.facts["hallucination"] is False  # the outcome itself is as it was


def test_an_agent_that_says_or_claims_nothing_is_in_no_rate():
    """It is neither the more truthful for it nor the less: there was nothing to check."""
    invites = {"words": "", "calls": [{"tool": "send_contact_invitation"}]}
    tool = Turn(role="sales", text="【通知】", end="stop", action="call_tool", payload=invites)
    for turns in ((TURNS[0],), (TURNS[0], tool, TURNS[2])):
        facts = by_rule(scenario(), turns, ENDED).facts
        assert (facts["hallucination"], facts["invention"]) == (None, None)
        audit = facts["audit"]
        assert (audit["claimed"], audit["claims"]) == (False, [])
        assert (audit["fabrication"], audit["leak"]) == (None, None)
    polite = (TURNS[0], agent("您好，打扰了，方便说话吗？"), TURNS[2])
    facts = by_rule(scenario(), polite, ENDED).facts
    assert (facts["hallucination"], facts["invention"]) == (None, None)
    assert facts["audit"]["fabrication"]["hit"] is facts["audit"]["leak"]["hit"] is False
    right = (TURNS[0], agent("这台车标价12.8万。"), TURNS[2])
    facts = by_rule(scenario(), right, ENDED).facts
    assert (facts["hallucination"], facts["invention"]) == (False, False)


def test_an_aborted_call_is_not_looked_at():
    aborted = Outcome(end_reason="aborted", success=False)
    assert by_rule(scenario(), TURNS, aborted) is aborted


# ------------------------------------------------------------------------- by an endpoint

NO_HIT = {
    "hit": False,
    "violation_type": None,
    "evidence_turns": [],
    "agent_claim": "",
    "reference_evidence": "",
    "reason": "-",
}
CLEAN = {
    "deceptive_fabrication": NO_HIT,
    "ai_generated_style": {"hit": False, "evidence_turns": [], "reason": "-"},
    "summary": "-",
}
CLAIM = {"turn": 1, "claim": "手续费3000元", "kind": "unsupported", "reference": ""}


def claimed(findings: list[dict[str, Any]], *, any_claim: bool = True) -> dict[str, Any]:
    return {"any_claim": any_claim, "findings": findings, "reason": "-"}


LABELS = {
    "turns": [
        {"turn": 2, "matches": True, "label": "-"},
        {"turn": 4, "matches": False, "label": "-"},
    ],
    "reason": "-",
}


def answers(
    audit: Reply | None = None, claims: Reply | None = None, labels: Reply | None = None
) -> Callable[[Asked], Reply]:
    """Each of the three questions has its own answer, by what its prompt asks for."""

    def reply(asked: Asked) -> Reply:
        if "deceptive_fabrication" in asked.prompt:
            return audit or say(json.dumps(CLEAN))
        if '"findings"' in asked.prompt:
            return claims or say(json.dumps(claimed([CLAIM])))
        return labels or say(json.dumps(LABELS))

    return reply


@pytest.fixture
def audited(
    serve: Callable[..., FaultServer], make_settings: Callable[..., EndpointSettings]
) -> Callable[..., Any]:
    """The outcome of a call that an endpoint with such answers has audited, and what was asked."""

    def run(script: Callable[[Asked], Reply], turns: Any = TURNS, outcome: Outcome = ENDED) -> Any:
        server = serve(script)

        async def go() -> Outcome:
            endpoint = Endpoint(make_settings(server.url, max_tokens=1024, retries=0))
            try:
                auditor = Auditor(endpoint=endpoint, prompts=Prompts("zh", None, length="full"))
                return await by_auditor(auditor, scenario(), turns, outcome)
            finally:
                await endpoint.aclose()

        return asyncio.run(go()), server.asked

    return run


def test_an_auditor_is_asked_three_times_and_its_word_replaces_the_rules(audited):
    found, asked = audited(answers())
    assert len(asked) == 3
    assert (found.facts["hallucination"], found.facts["invention"]) == (False, True)
    audit = found.facts["audit"]
    assert audit["by"] == "judge"
    assert (audit["fabrication"]["hit"], audit["leak"]["hit"]) == (False, False)
    assert [c["kind"] for c in audit["claims"]] == ["unsupported"]
    assert audit["labels"] == {"checked": [2, 4], "mismatched": [4]}
    assert (audit["dropped"], audit["unanswered"]) == ([], {})


def test_a_check_without_an_answer_is_none_and_says_why_and_the_others_stand(audited):
    found, _ = audited(answers(claims=status(500)))
    assert (found.facts["hallucination"], found.facts["invention"]) == (None, None)
    audit = found.facts["audit"]
    assert (audit["claims"], audit["unanswered"]) == (None, {"claims": "server"})
    assert audit["fabrication"]["hit"] is False
    found, _ = audited(answers(audit=say("prose"), labels=say('{"turns": [], "reason": "-"}')))
    audit = found.facts["audit"]
    assert (audit["fabrication"], audit["leak"], audit["labels"]) == (None, None, None)
    assert audit["unanswered"] == {"audit": "parse", "labels": "schema"}
    assert found.facts["invention"] is True


def test_a_finding_without_evidence_is_dropped_and_counted(audited):
    unsaid = {**CLAIM, "claim": "电池全新"}
    found, _ = audited(answers(claims=say(json.dumps(claimed([unsaid])))))
    assert (found.facts["invention"], len(found.facts["audit"]["dropped"])) == (False, 1)


def test_an_auditor_says_whether_there_was_a_claim_at_all(audited):
    none = say(json.dumps(claimed([], any_claim=False)))
    found, _ = audited(answers(claims=none))
    assert (found.facts["hallucination"], found.facts["invention"]) == (None, None)
    audit = found.facts["audit"]
    assert (audit["claimed"], audit["claims"], audit["unanswered"]) == (False, [], {})
    found, _ = audited(answers(claims=say(json.dumps(claimed([])))))
    assert (found.facts["hallucination"], found.facts["invention"]) == (False, False)


def test_who_said_nothing_needs_no_question(audited):
    silent = (TURNS[0],)
    found, asked = audited(answers(), silent)
    assert asked == []
    audit = found.facts["audit"]
    assert audit["labels"] == {"checked": [], "mismatched": []}
    assert audit["unanswered"] == {}
    by_rules = by_rule(scenario(), silent, ENDED).facts["audit"]
    assert audit == {**by_rules, "by": "judge"}
    aborted = Outcome(end_reason="aborted", success=False)
    assert audited(answers(), TURNS, aborted) == (aborted, [])
