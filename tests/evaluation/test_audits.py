"""Audits in an evaluation: every call is looked at, by rule or by an endpoint, and it is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import load
from ibrl_jax.dialogue.agents import ScriptedSpeaker, Speaker
from ibrl_jax.dialogue.build import build_domain, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.domains.telesales.audit import check_labels, claimed, fabrications
from ibrl_jax.domains.telesales.scenarios import lead_of
from ibrl_jax.endpoints import Endpoint, EndpointSettings
from ibrl_jax.errors import UserError
from ibrl_jax.reporting.tables import csv_table
from tests.endpoints.conftest import make_settings as make_settings
from tests.endpoints.conftest import serve as serve
from tests.endpoints.fault_server import Asked, FaultServer, Reply, say, status
from tests.evaluation.held import Kept, hold, local_policy

ROOT = Path(__file__).parents[2]
SELLERS = {"start": "polite", "sales": "liar"}
SCENARIOS, SEEDS = 3, 2


@dataclass(frozen=True, kw_only=True)
class FakeCast(Cast):
    """Scripted sellers where a cast holds policies."""

    held: dict[tuple[Role, str], Any] = field(default_factory=dict)

    def load(self, role: Role, params: str, values: Any) -> None:
        self.held[role, params] = values

    def local(self, role: Role, params: str, ref: PolicyRef, temperature: float) -> Speaker:
        family = self.held[role, params] if role == "sales" else "rule_v1"
        return ScriptedSpeaker(domain=self.domain, family=family)


def settings(domain: str = "telesales", auditor: str = "") -> ConfigDict:
    config = load(str(ROOT / f"configs/{domain}/smoke.py"))
    config.evaluation.scenarios, config.evaluation.seeds = SCENARIOS, SEEDS
    config.evaluation.counterparts = ("rule_v2",) if domain == "telesales" else ("fair",)
    config.telesales.max_agent_turns = 8
    config.statistics.resamples = 100
    with config.unlocked():
        config.evaluation.auditor = auditor
    return config


@pytest.fixture(scope="module")
def domain() -> Domain:
    return build_domain(settings())


def measured(
    config: ConfigDict, domain: Domain, endpoints: dict[str, Endpoint] | None = None
) -> tuple[dict[str, Any], Kept]:
    speech = build_speech(settings())
    cast = FakeCast(domain=domain, speech=speech, engines={}, endpoints=endpoints or {}, max_new=32)
    rows = [
        local_policy(label, "sales" if label == "sales" else None, 1, "scripted:rule_v1")
        for label in SELLERS
    ]
    return hold(config, cast, rows, SELLERS)


def test_rules_audit_every_call_and_the_table_says_what_they_found(domain: Domain) -> None:
    table, kept = measured(settings(), domain)
    assert table["auditor"] == "rules"
    cell, calls = table["rows"][1]["cells"]["rule_v2"], kept["sales", "rule_v2"]
    claims = [t for t in calls if claimed(lead_of(t.scenario), t.turns)]
    lied = [bool(fabrications(lead_of(t.scenario), t.turns)) for t in claims]
    assert any(lied)
    assert [t.outcome.facts["hallucination"] for t in claims] == lied
    assert cell["hallucination"] == pytest.approx(sum(lied) / len(lied))
    assert (cell["audited"], cell["labelled"]) == (len(lied), SCENARIOS * SEEDS)
    assert cell["fabrication"] == pytest.approx(sum(lied) / cell["labelled"])  # of all who spoke
    labels = [check for t in calls for check in check_labels(t.turns, "en")]
    assert cell["labels_checked"] == len(labels)
    assert cell["label_agreement"] == sum(check.matches for check in labels) / len(labels)
    assert cell["instructing_turns"] == {"customer": 0, "sales": 0}
    assert cell["instructing_known"] == SCENARIOS * SEEDS
    polite = table["rows"][0]["cells"]["rule_v2"]
    assert (polite["hallucination"], polite["fabrication"]) == (None, 0.0)  # it claims nothing
    json.dumps(table)
    head = csv_table(table).splitlines()[0].split(",")
    assert {"invention", "fabrication", "leak", "label_agreement", "instructing"} <= {*head}


def test_dialogues_that_are_kept_hold_the_evidence(domain: Domain) -> None:
    _, kept = measured(settings(), domain)
    audits = [t.outcome.facts["audit"] for t in kept["sales", "rule_v2"]]
    hit = next(audit["fabrication"] for audit in audits if audit["fabrication"]["hit"])
    assert hit["turns"]
    assert hit["claim"]
    assert hit["reference"]


def answer(asked: Asked) -> Reply:
    """No finding, and no answer about labels."""
    if "deceptive_fabrication" in asked.prompt:
        return status(500)
    if '"findings"' in asked.prompt:
        return say(json.dumps({"any_claim": True, "findings": [], "reason": "-"}))
    return say("prose")


def test_an_endpoint_audits_in_place_of_the_rules_and_what_it_did_not_answer_is_told(
    domain: Domain,
    serve: Callable[..., FaultServer],
    make_settings: Callable[..., EndpointSettings],
) -> None:
    server = serve(answer)
    watch = Endpoint(make_settings(server.url, name="watch", max_tokens=1024, retries=0))
    table, kept = measured(settings(auditor="watch"), domain, {"watch": watch})
    assert table["auditor"] == "watch"
    cell = table["rows"][1]["cells"]["rule_v2"]
    calls = SCENARIOS * SEEDS
    assert (cell["hallucination"], cell["audited"]) == (0.0, calls)  # by its word, not the rules'
    assert (cell["fabrication"], cell["labelled"]) == (None, 0)
    assert (cell["label_agreement"], cell["labels_checked"]) == (None, 0)
    assert cell["checks_unanswered"] == {"parse": calls, "server": calls}
    assert len(server.asked) == 3 * sum(map(len, kept.values()))
    assert cell["coverage"] == 1.0  # the calls themselves are all there
    ledger = table["endpoints"]["watch"]
    assert (ledger["calls"], ledger["answered"]) == (len(server.asked), len(server.asked) // 3)


def test_an_endpoint_that_refuses_ends_the_evaluation_with_one_sentence(
    domain: Domain,
    serve: Callable[..., FaultServer],
    make_settings: Callable[..., EndpointSettings],
) -> None:
    server = serve(lambda asked: status(401))
    watch = Endpoint(make_settings(server.url, name="watch"))
    with pytest.raises(UserError, match="'watch'") as caught:
        measured(settings(auditor="watch"), domain, {"watch": watch})
    assert "\n" not in str(caught.value)


def test_an_auditor_is_an_endpoint_of_the_config_and_needs_something_to_audit(
    domain: Domain,
) -> None:
    with pytest.raises(UserError, match=r"auditor names watch, and config.endpoints has no 'wat"):
        measured(settings(auditor="watch"), domain)
    other = settings("dond", auditor="watch")
    with pytest.raises(UserError, match="'watch', and dond has nothing to audit; leave it empty"):
        measured(other, build_domain(other))
