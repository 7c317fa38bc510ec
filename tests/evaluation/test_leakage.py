"""What evaluation shares with training is found, and stops a held-out claim where it must."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import endpoint, load
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.evaluation.columns import DEVELOPMENT, HELD_OUT, SELF_PLAY, Column
from ibrl_jax.evaluation.leakage import Leakage, check

CONFIGS = Path(__file__).parents[2] / "configs"
RUN = "runs/mini/seed0"


def config(counterparts: tuple[str, ...] = ("fair",), **changes: Any) -> ConfigDict:
    made = load(str(CONFIGS / "dond" / "mini.py"))
    made.evaluation.counterparts = counterparts
    with made.unlocked():
        made.endpoints.big = endpoint(base_url="http://a/v1", model="Big-1")
        made.endpoints.same = endpoint(base_url="http://b/v1", model="big-1")
        made.endpoints.other = endpoint(base_url="http://a/v1", model="Other")
    for key, value in changes.items():
        node: Any = made
        *parents, last = key.split("__")
        for parent in parents:
            node = node[parent]
        node[last] = value
    return made


@pytest.fixture(scope="module")
def build():
    """The domain of a config, built once for all that share its settings."""
    known: dict[str, Any] = {}

    def make(made: ConfigDict) -> Any:
        key = json.dumps(made.dond.to_dict())
        if key not in known:
            known[key] = build_domain(made)
        return known[key]

    return make


def kinds(found: Leakage) -> set[str]:
    return {overlap.kind for overlap in found.overlaps}


def test_the_rules_are_listed_and_stop_nothing(build) -> None:
    found = check({RUN: config()}, config(), build=build)
    assert kinds(found) == {"prompt"}
    assert found.stops == ()
    json.dumps(found.as_json(), allow_nan=False)


def test_other_rules_are_no_overlap(build) -> None:
    assert check({RUN: config(dond__prompt="full")}, config(), build=build).overlaps == ()


def test_splits_of_one_seed_share_no_scenario_and_those_of_another_do(build) -> None:
    found = check({RUN: config(dond__split_seed=7)}, config(), build=build)
    assert "scenarios" in kinds(found)
    (sentence,) = found.stops
    assert "scenarios by their clusters" in sentence
    assert RUN in sentence
    assert "none of its columns is held-out" in sentence


def test_scenarios_are_found_again_under_another_name(build) -> None:
    """Renamed, and with its sides in each other's seats: the contents are the same."""

    class Renamed:
        def __init__(self, domain: Any) -> None:
            self._domain = domain

        def __getattr__(self, name: str) -> Any:
            return getattr(self._domain, name)

        def scenarios(self, split: str) -> Any:
            from dataclasses import replace

            seats = self._domain.roles
            return [
                replace(
                    s,
                    id=f"x{k}",
                    cluster=f"x{k}",
                    private=dict(zip(seats, reversed(s.private.values()), strict=True)),
                )
                for k, s in enumerate(self._domain.scenarios("test"))
            ]

    def wrapped(made: ConfigDict) -> Any:
        domain = build(made)
        return Renamed(domain) if made.name == "renamed" else domain

    found = check({RUN: config(name="renamed")}, config(), build=wrapped)
    assert any("by their contents" in sentence for sentence in found.stops)


@pytest.mark.parametrize(
    "column, changes, trained",
    [
        ("conceder", {}, "sft.families"),
        ("A=scripted:fair+scripted:conceder", {}, "sft.families"),
        (
            "fair",
            {"roles__agent1__train": False, "roles__agent1__counterpart": ("scripted:fair",)},
            "roles.agent1.counterpart",
        ),
        (f"frozen:{RUN}:agent1", {}, f"{RUN} itself"),
        (f"x=frozen:./{RUN}/policies/agent0", {}, f"{RUN} itself"),
        (
            "frozen:other/seed0:agent0",
            {
                "roles__agent1__train": False,
                "roles__agent1__counterpart": ("frozen:other//seed0:agent0",),
            },
            "roles.agent1.counterpart",
        ),
    ],
)
def test_a_counterpart_that_training_has_met_makes_its_column_a_development_one(
    build, column: str, changes: dict[str, Any], trained: str
) -> None:
    found = check({RUN: config(**changes)}, config((column, "greedy")), build=build)
    (name,) = found.development
    assert trained in found.development[name]
    assert f"column {name} is not held-out" in found.development[name]
    assert found.stops == (found.development[name],)


def test_a_start_from_no_teachers_has_met_none(build) -> None:
    training = config(policy__start="random")
    assert not check({RUN: training}, config(("conceder",)), build=build).development


def test_a_role_that_trains_has_not_met_the_counterpart_that_it_names(build) -> None:
    training = config(roles__agent1__counterpart=("scripted:fair",))
    assert not check({RUN: training}, config(), build=build).development


def test_a_model_is_the_same_at_another_address_and_in_another_case(build) -> None:
    training = config(roles__agent1__train=False, roles__agent1__counterpart=("api:big",))
    found = check({RUN: training}, config(("api:same", "api:other")), build=build)
    assert list(found.development) == ["same"]
    assert "big-1 at http://b/v1" in found.development["same"]


def test_the_model_of_a_judge_is_no_held_out_counterpart(build) -> None:
    training = config(roles__agent0__judge="big")
    found = check({RUN: training}, config(("api:big",)), build=build)
    assert kinds(found) == {"prompt", "judge"}
    assert "big" in found.development


def test_an_auditor_that_judged_in_training_is_listed(build) -> None:
    training = config(roles__agent0__judge="big")
    found = check({RUN: training}, config(evaluation__auditor="same"), build=build)
    (judge,) = (overlap for overlap in found.overlaps if overlap.kind == "judge")
    assert judge.evaluated == "config.evaluation.auditor"
    assert found.stops == ()


def test_what_cannot_be_compared_is_said(build) -> None:
    training = config(sft__transcripts="calls.jsonl")
    evaluation = config(evaluation__split="val")
    unknown = check({RUN: training}, evaluation, build=build).unknown
    assert any("calls.jsonl" in sentence for sentence in unknown)
    assert any("validation" in sentence for sentence in unknown)


def test_training_and_evaluation_profiles_of_telesales_share_no_person() -> None:
    made = load(str(CONFIGS / "telesales" / "smoke.py"))
    found = check({"runs/x/seed0": made}, made)
    assert "scenarios" not in kinds(found)
    assert "rule_v2" not in found.development
    profiles = [overlap.what for overlap in found.overlaps if overlap.kind == "profiles"]
    assert not any("phone_number" in what for what in profiles)


def test_a_column_that_is_none_is_called_a_development_one(build) -> None:
    evaluation = config(("conceder", "greedy"))
    columns = [
        Column(name="conceder", kind=HELD_OUT, counterparts=("scripted:conceder",)),
        Column(name="greedy", kind=HELD_OUT, counterparts=("scripted:greedy",)),
        Column(name=SELF_PLAY, kind=SELF_PLAY),
    ]
    found = check({RUN: config()}, evaluation, build=build)
    assert [c.kind for c in found.demoted(columns)] == [DEVELOPMENT, HELD_OUT, SELF_PLAY]
    everywhere = check({RUN: config(dond__split_seed=7)}, evaluation, build=build)
    kinds_now = [c.kind for c in everywhere.demoted(columns)]
    assert kinds_now == [DEVELOPMENT, DEVELOPMENT, SELF_PLAY]
