"""A run on TeleSales: settings, seats in an evaluation."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ibrl_jax.config import default_config, load
from ibrl_jax.dialogue.agents import ScriptedSpeaker, Speaker
from ibrl_jax.dialogue.build import build_domain, build_hall, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Match, play
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.domains.dond.scoring import ROLES as DOND_ROLES
from ibrl_jax.domains.telesales.metrics import STAND_IN
from ibrl_jax.domains.telesales.scenarios import ROLES as TELESALES_ROLES
from ibrl_jax.errors import UserError
from ibrl_jax.proofs.retell import retold, with_other_observation
from ibrl_jax.reporting.tables import csv_table, markdown_table
from ibrl_jax.rewards.llm import EndpointJudge
from ibrl_jax.rewards.telesales_rules import CustomerRuleJudge, SalesRuleJudge
from ibrl_jax.rewards.types import Scored
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer.transcripts import synthetic
from tests.evaluation.held import Kept, hold, local_policy
from tests.telesales.smoke import FAMILIES, ROOT, SPEECH, TOKENIZER, smoke


def refused(*options: str) -> str:
    with pytest.raises(UserError) as caught:
        smoke(*options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------- settings


def test_the_roles_of_a_config_are_those_of_its_domain() -> None:
    assert {"dond": DOND_ROLES, "telesales": TELESALES_ROLES} == ROLES
    for name, roles in ROLES.items():
        config = default_config(name)
        assert (config.domain, set(config.roles)) == (name, set(roles))
        assert build_domain(config).roles == roles
    with pytest.raises(UserError, match="there is no domain 'chess'; there are dond, telesales"):
        default_config("chess")


def test_roles_of_another_domain_are_refused() -> None:
    said = refused("domain=dond")
    assert said.startswith("config.roles has customer, sales, and the roles of dond are agent0, ")
    assert "roles.agent0.kl does not exist" in refused("roles.agent0.kl=1.0")


def test_a_judge_is_an_endpoint_at_temperature_0_and_needs_something_to_judge() -> None:
    assert "config.endpoints has no 'deepseek'" in refused("roles.sales.judge=deepseek")
    url = "endpoints.j.base_url=http://127.0.0.1:9/v1"
    assert "temperature is 1 and must be 0" in refused(url, "roles.sales.judge=j")
    smoke(url, "endpoints.j.temperature=0", "roles.sales.judge=j")
    with pytest.raises(UserError, match="the rules of dond pay its roles"):
        load(str(ROOT / "configs/dond/smoke.py"), ["--config.roles.agent0.judge=j"])
    assert "must sum to 1, not 1.3" in refused("rewards.turn=0.5")


@pytest.mark.parametrize("key", ["max_calls", "max_total_tokens", "max_cost"])
def test_a_budget_of_0_is_refused_and_below_0_is_no_limit(key: str) -> None:
    said = refused("endpoints.j.base_url=http://127.0.0.1:9/v1", f"endpoints.j.{key}=0")
    assert said.startswith(f"config.endpoints.j.{key} is 0, ")
    assert said.endswith("give it more than 0, or -1 for no limit")
    assert smoke(f"endpoints.j.{key}=-1").endpoints.j[key] == -1
    assert "must be at least -1" in refused(f"endpoints.j.{key}=-2")


def test_judges_are_rules_unless_a_role_names_an_endpoint(domain: Domain) -> None:
    ruled = build_hall(smoke(), domain, retries=0, concurrency=1).judges
    assert isinstance(ruled["sales"], SalesRuleJudge)
    assert isinstance(ruled["customer"], CustomerRuleJudge)
    weights = ruled["sales"].weights
    assert (weights.turn, weights.episode, weights.gamma) == (0.2, 0.8, 0.9)  # section 5.1
    options = ("endpoints.j.base_url=http://127.0.0.1:9/v1", "endpoints.j.temperature=0")
    config, asked = smoke(*options, "roles.sales.judge=j"), SimpleNamespace()
    endpoints: Any = {"j": asked}
    judges = build_hall(config, domain, retries=0, concurrency=1, endpoints=endpoints).judges
    assert isinstance(judges["sales"], EndpointJudge)
    assert judges["sales"].endpoint is asked
    assert isinstance(judges["customer"], CustomerRuleJudge)
    nobody_learns = build_hall(config, domain, retries=0, concurrency=1).judges
    assert isinstance(nobody_learns["sales"], SalesRuleJudge)


def test_the_paper_scale_configs_have_the_papers_numbers() -> None:
    for size in ("4b", "9b"):
        config = load(str(ROOT / f"configs/telesales/qwen3_5-{size}.py"))
        sales, customer = config.roles.sales, config.roles.customer
        assert (sales.learning_rate, customer.learning_rate) == (1e-6, 1e-7)
        assert (sales.update_every, customer.update_every) == (1, 2)
        assert {role.entropy for role in config.roles.values()} == {0.1}
        assert {role.kl for role in config.roles.values()} == {0.02}
        assert config.rollout.draws * config.rollout.group == 64
        assert config.rollout.group == 4
        assert (config.matchup.all, config.matchup.only) == (0.7, (0.2, 0.1))
        assert (config.telesales.train_profiles, config.telesales.test_profiles) == (3000, 500)
        assert (config.telesales.max_agent_turns, config.evaluation.seeds) == (15, 3)


# ------------------------------------------------------------------------- the tokenizer


def test_the_small_tokenizer_is_good_at_records_and_loses_nothing(domain: Domain) -> None:
    lengths: dict[Role, list[int]] = {role: [] for role in domain.roles}
    for row in synthetic(domain, FAMILIES, 20, 2):
        for turn in row["turns"]:
            ids = TOKENIZER.encode(turn["said"])
            assert TOKENIZER.decode(ids) == turn["said"]
            lengths[turn["role"]].append(len(ids))
    assert np.mean(lengths["customer"]) < 35
    assert np.mean(lengths["sales"]) < 35
    other = "您好，这台车报价8.98万元。\n<|im_end|> ü"
    assert TOKENIZER.decode(TOKENIZER.encode(other)) == other
    assert TOKENIZER.control("<|im_end|>") not in TOKENIZER.encode(other)


# ------------------------------------------------------------------------- evaluation


@dataclass(frozen=True, kw_only=True)
class FakeCast(Cast):
    """Holds families where a cast holds parameters: of a pair, the one that can hold the seat."""

    held: dict[tuple[Role, str], Any] = field(default_factory=dict)

    def load(self, role: Role, params: str, values: Any) -> None:
        self.held[role, params] = values

    def local(self, role: Role, params: str, ref: PolicyRef, temperature: float) -> Speaker:
        family = next(f for f in self.held[role, params] if f in self.domain.families[role])
        return ScriptedSpeaker(domain=self.domain, family=family)


@pytest.fixture(scope="module")
def evaluated(domain: Domain) -> tuple[dict[str, Any], Kept]:
    config = smoke(
        "evaluation.counterparts=rule_v2,rule_v1,polite",
        "evaluation.scenarios=8",
        "evaluation.seeds=2",
    )
    speech = build_speech(config)
    cast = FakeCast(domain=domain, speech=speech, engines={}, endpoints={}, max_new=32)
    pairs = {"SFT start": ("hedger", "rule_v1"), "sales": ("competent",), "customer": ("rule_v1",)}
    partners = {"SFT start": "SFT start", "sales": "customer", "customer": "sales"}
    rows = [
        local_policy(label, None if label == "SFT start" else label, 1, f"frozen:{partners[label]}")
        for label in pairs
    ]
    return hold(config, cast, rows, pairs)


def test_a_policy_sits_in_its_own_seat_alone(evaluated: Any, domain: Domain) -> None:
    table, _ = evaluated
    assert [c["name"] for c in table["columns"]] == [
        *("all held-out", "rule_v2", "rule_v1", "polite", "in-system"),
    ]
    cells = {row["policy"]: set(row["cells"]) for row in table["rows"]}
    assert cells["SFT start"] == {"all held-out", "rule_v2", "rule_v1", "polite", "in-system"}
    assert cells["sales"] == {"all held-out", "rule_v2", "rule_v1", "in-system"}
    assert cells["customer"] == {"all held-out", "polite", "in-system"}
    for row in table["rows"]:
        for name, cell in row["cells"].items():
            several = 2 if name == "all held-out" and row["policy"] == "SFT start" else 1
            assert cell["planned"] == cell["n"] == 8 * 2 * several


def test_success_at_n_is_over_the_conversations_of_a_profile(evaluated: Any) -> None:
    table, kept = evaluated
    sales = table["rows"][1]["cells"]["rule_v2"]
    wins = Counter(t.scenario.id for t in kept["sales", "rule_v2"] if t.outcome.success)
    assert 0 < sum(wins.values()) < 16
    for n in (1, 2):
        assert sales[f"success@{n}"] == sum(count >= n for count in wins.values()) / 8
    assert sales["success"] == pytest.approx(sum(wins.values()) / 16)
    assert sales["hallucination"] == 0.0
    assert sum(sales["end_reasons"].values()) == 16


def test_every_policy_is_compared_where_the_start_sat_too(evaluated: Any) -> None:
    table, _ = evaluated
    compared = {(c["policy"], c["column"], c["measure"]) for c in table["comparisons"]}
    names = ("success", "delta_willingness", "delta_patience", "first_try_success")
    assert {(p, c) for p, c, _ in compared} == {
        *(("sales", c) for c in ("all held-out", "rule_v2", "rule_v1", "in-system")),
        *(("customer", c) for c in ("all held-out", "polite", "in-system")),
    }
    assert {m for *_, m in compared} == set(names)
    assert all("odds_ratio" in c for c in table["comparisons"] if c["measure"] == "success")


def test_the_tables_carry_their_own_names_and_say_that_it_is_a_stand_in(evaluated: Any) -> None:
    table, _ = evaluated
    table = json.loads(json.dumps(table))
    assert table["remark"] == STAND_IN
    text = markdown_table(table)
    assert text.rstrip().endswith(f"{STAND_IN}.")
    assert "Cells: success % / success@1 / success@2 / change of willingness" in text
    assert "agreement" not in text
    head = csv_table(table).splitlines()[0].split(",")
    assert {"success@2", "delta_patience_low", "first_try_success", "hallucination"} <= {*head}


# ------------------------------------------------------------------------- told anew


def test_a_call_is_told_anew_with_another_observation(domain: Domain) -> None:
    cast = FakeCast(domain=domain, speech=SPEECH, engines={}, endpoints={}, max_new=32)
    hall = build_hall(smoke(), domain, retries=0, concurrency=4)
    scenarios = domain.scenarios("train")[:6]
    speakers = {
        role: ScriptedSpeaker(domain=domain, family=family)
        for role, family in zip(domain.roles, FAMILIES, strict=True)
    }
    matches = [
        Match(
            stage=("test",),
            draw=str(k),
            rollout=0,
            scenario=scenario,
            first="sales",
            matchup=frozenset(),
            speakers=speakers,
        )
        for k, scenario in enumerate(scenarios)
    ]
    played = play(hall, matches)
    for trajectory in played:
        assert all(isinstance(reward, Scored) for reward in trajectory.rewards.values())
        same = retold(cast, hall, trajectory, trajectory.scenario)
        assert (same.outcome, same.rewards) == (trajectory.outcome, trajectory.rewards)
        for role in domain.roles:
            other = with_other_observation(cast, trajectory.scenario, role)
            again = retold(cast, hall, trajectory, other)
            assert again.turns == trajectory.turns
    moved = [
        replace(t, rewards={}).outcome != retold(cast, hall, t, scenario).outcome
        for t, scenario in zip(played, reversed(scenarios), strict=True)
    ]
    assert any(moved)
