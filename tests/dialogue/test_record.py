"""A dialogue as a line of JSON: nothing is lost on the way."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ibrl_jax.dialogue.record import record
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef, RoleView, Segment, ViewBuilder
from ibrl_jax.domains.base import Outcome, Scenario, Turn
from ibrl_jax.rewards.types import Failed, Pending, Scored
from tests.dialogue.fakes import CHAT, TOKENIZER


def view(role: str) -> RoleView:
    builder = ViewBuilder(role=role, policy=PolicyRef(id=role, seat="past", version=4))
    builder.read(TOKENIZER.encode("rules"), -1, Segment.TEMPLATE)
    builder.sampled([*TOKENIZER.encode("no deal"), CHAT.stop_ids[0]], [-0.25] * 3, 0)
    builder.read(TOKENIZER.encode("why"), 1, Segment.COUNTERPART)
    return builder.finish()


@pytest.fixture(scope="module")
def dialogue() -> Trajectory:
    return Trajectory(
        scenario=Scenario(
            id="s1",
            cluster="c1",
            public={"counts": [1, 2, 3]},
            private={"a": {"values": [1, 2, 3]}, "b": {"values": [3, 2, 1]}},
        ),
        draw="12.3",
        rollout=5,
        first="b",
        matchup=frozenset({"b", "a"}),
        speakers={"a": "live:a@4", "b": "scripted:fair"},
        turns=(
            Turn(
                role="b", text="mine?", end="stop", action="propose", payload={"items": [1, 0, 0]}
            ),
            Turn(
                role="a",
                text="<offer>",
                end="length",
                action="malformed",
                valid=False,
                error_code="truncated",
                flags=("odd",),
            ),
        ),
        views={"a": view("a")},
        outcome=Outcome(
            end_reason="malformed",
            success=False,
            facts={"turns": 2},
            offender="a",
            joint=("turns",),
        ),
        rewards={"a": Scored(value=-0.2, detail={"why": "rules"}), "b": Failed(reason="time-out")},
        retries={"a": 1, "b": 0},
    )


@pytest.fixture(scope="module")
def line(dialogue: Trajectory) -> dict[str, Any]:
    """As whoever reads the file gets it."""
    return json.loads(json.dumps(record(dialogue, TOKENIZER, {"a": 0.5, "b": None}, iteration=12)))


def test_every_field_of_a_trajectory_is_in_its_record(dialogue, line) -> None:
    assert {field.name for field in fields(dialogue)} <= set(line)
    assert {field.name for field in fields(dialogue.scenario)} == set(line["scenario"])
    assert {field.name for field in fields(dialogue.outcome)} == set(line["outcome"])
    for turn, shown in zip(dialogue.turns, line["turns"], strict=True):
        assert {field.name for field in fields(turn)} == set(shown)
    names = {field.name for field in fields(dialogue.views["a"])} - {"role"}  # the key says it
    assert names <= set(line["views"]["a"])


def test_a_record_gives_the_dialogue_back(dialogue, line) -> None:
    assert Scenario(**line["scenario"]) == dialogue.scenario
    turns = tuple(Turn(**{**t, "flags": tuple(t["flags"])}) for t in line["turns"])
    assert turns == dialogue.turns
    outcome = {**line["outcome"], "joint": tuple(line["outcome"]["joint"])}
    assert Outcome(**outcome) == dialogue.outcome
    for name in ("draw", "rollout", "first", "speakers", "retries"):
        assert line[name] == getattr(dialogue, name)
    assert frozenset(line["matchup"]) == dialogue.matchup
    shown, true = line["views"]["a"], dialogue.views["a"]
    assert PolicyRef(**shown["policy"]) == true.policy
    for name in ("ids", "segment", "turn_index", "loss_mask", "behaviour_logp"):
        np.testing.assert_array_equal(np.asarray(shown[name]), getattr(true, name))


def test_tokens_are_shown_as_people_read_them(line) -> None:
    shown = line["views"]["a"]
    assert len(shown["pieces"]) == len(shown["ids"])
    said = "".join(p for p, m in zip(shown["pieces"], shown["loss_mask"], strict=True) if m)
    assert said == "no deal<|im_end|>"


def test_a_failed_reward_is_no_number(line) -> None:
    assert line["rewards"] == {
        "a": {"scored": -0.2, "detail": {"why": "rules"}},
        "b": {"failed": "time-out"},
    }


def test_a_reward_that_is_still_owed_says_so(dialogue) -> None:
    owed = replace(dialogue, rewards={"a": Pending(), "b": Pending()})
    assert record(owed, TOKENIZER, {})["rewards"]["a"] == {"pending": True}


def test_where_a_dialogue_belongs_and_its_advantages_are_kept(line) -> None:
    assert line["iteration"] == 12
    assert next(iter(line)) == "iteration"
    assert line["advantages"] == {"a": 0.5, "b": None}
