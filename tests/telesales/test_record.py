"""The customer's record (Table 16) and the simulator's (Table 9): what is in order, what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.domains.telesales.labels import Behaviour, DialogueAction, Rubric, Stage
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.record import (
    _AS_BEHAVIOUR,
    CustomerError,
    CustomerFlag,
    Parsed,
    moved,
    on_grid,
    parse_record,
    rescored,
    write_record,
)

START = State(willingness=0.5, trust=0.5, patience=0.5)


def record(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "behavior": "AskQuestion",
        "stage": "exploration",
        "willingness_before": 0.5,
        "willingness_after": 0.55,
        "willingness_delta": 0.05,
        "patience_before": 0.5,
        "patience_after": 0.48,
        "patience_delta": -0.02,
        "reply": "这车多少钱？",
    }
    return json.dumps(fields | changes, ensure_ascii=False)


def simulated(**changes: Any) -> str:
    fields: dict[str, Any] = {
        "intent_action_thinking": "",
        "intent_action": "warming",
        "dialogue_action_thinking": "",
        "dialogue_action": "proactive question",
        "score_rules_hit": ["B01", "B05"],
        "score_delta": {"willingness": 0.09, "trust": 0.10, "patience": 0.03},
        "score_after": {"willingness": 0.59, "trust": 0.60, "patience": 0.53},
        "user_reply_thinking": "",
        "user_reply": "保修怎么算？",
    }
    return json.dumps(fields | changes, ensure_ascii=False)


def parse(text: str, verbal_yes: bool = False) -> Any:
    return parse_record(text, START, verbal_yes=verbal_yes)


def test_a_record_in_order_gives_its_reply_and_where_it_leaves_the_state() -> None:
    parsed = parse(record())
    assert isinstance(parsed, Parsed)
    assert (parsed.reply, parsed.behaviour) == ("这车多少钱？", Behaviour.ASK_QUESTION)
    assert parsed.state == State(willingness=0.55, trust=0.5, patience=0.48)
    assert parsed.flags == ()
    assert json.loads(parsed.private["said"]) == json.loads(record())


@pytest.mark.parametrize("around", ["```json\n{}\n```", "Here it is: {}", "<think>hm</think>{}"])
def test_fences_prose_and_thoughts_around_the_object_are_tolerated(around: str) -> None:
    parsed = parse(around.replace("{}", record()))
    assert isinstance(parsed, Parsed)
    assert "think" not in parsed.private["said"]
    assert parsed.flags == (() if "think" in around else (CustomerFlag.WRAPPED,))


@pytest.mark.parametrize(
    "text, error",
    [
        ("hello?", CustomerError.NOT_JSON),
        (record()[:-5], CustomerError.NOT_JSON),
        (record() + record(), CustomerError.NOT_JSON),
        (record().replace("这车", "\\ud800"), CustomerError.NOT_JSON),
        (record().replace("0.55", "NaN"), CustomerError.NOT_JSON),
        (record().replace("0.55", "1" + 400 * "0"), CustomerError.SCHEMA),
        (record(mood="fine"), CustomerError.SCHEMA),
        (record(willingness_after="0.55"), CustomerError.SCHEMA),
        (record(patience_delta=True), CustomerError.SCHEMA),
        (record(reply=None), CustomerError.SCHEMA),
        (record(behavior="Buy"), CustomerError.UNKNOWN_LABEL),
        (record(stage="closing"), CustomerError.UNKNOWN_LABEL),
        (record(patience_before=0.4), CustomerError.NOT_THE_STATE),
        (record(willingness_after=0.57), CustomerError.ARITHMETIC),
        (record(willingness_after=0.66, willingness_delta=0.16), CustomerError.DELTA_RANGE),
        (record(patience_after=0.29, patience_delta=-0.21), CustomerError.DELTA_RANGE),
        (record(willingness_after=1.2), CustomerError.OUT_OF_RANGE),
        (record(reply=" "), CustomerError.EMPTY),
        (record(behavior="ConfirmAdded"), CustomerError.NO_VERBAL_YES),
        (record(behavior="IgnoreRequest"), CustomerError.NO_VERBAL_YES),
        (record(behavior="RejectRequest"), CustomerError.NO_VERBAL_YES),
        (simulated(dialogue_action="buy"), CustomerError.UNKNOWN_LABEL),
        (simulated(score_rules_hit=["B19"]), CustomerError.UNKNOWN_LABEL),
        (simulated(score_after=None), CustomerError.SCHEMA),
        (simulated(user_reply=""), CustomerError.EMPTY),
    ],
)
def test_a_record_out_of_order_has_a_code(text: str, error: CustomerError) -> None:
    assert parse(text) is error


def test_table_16_the_bounds_of_a_delta_are_in_it() -> None:
    for delta in (0.15, -0.20):
        text = record(willingness_after=round(0.5 + delta, 2), willingness_delta=delta)
        assert isinstance(parse(text), Parsed)


@pytest.mark.parametrize("behaviour", ["ConfirmAdded", "IgnoreRequest", "RejectRequest"])
def test_what_needs_a_verbal_yes_is_open_after_one(behaviour: str) -> None:
    assert isinstance(parse(record(behavior=behaviour), verbal_yes=True), Parsed)


def test_labels_may_be_written_in_either_language() -> None:
    assert parse(record(behavior="挂断", stage="决策", reply="")).behaviour is Behaviour.HANG_UP
    assert parse(simulated(dialogue_action="挂断")).behaviour is Behaviour.HANG_UP


def test_tables_9_and_11_of_the_simulators_scores_the_hits_alone_are_believed() -> None:
    honest = parse(simulated())
    boastful = parse(
        simulated(
            score_delta={"willingness": 0.9, "trust": 0.9, "patience": 0.9},
            score_after={"willingness": 1.0, "trust": 1.0, "patience": 1.0},
        )
    )
    assert honest.state == boastful.state == State(willingness=0.59, trust=0.6, patience=0.53)
    assert honest.flags == ()
    assert boastful.flags == (CustomerFlag.RESCORED,)
    assert boastful.private["score_after"]["trust"] == 0.6


@pytest.mark.parametrize(
    "hits, expected",
    [
        # summed without a clip
        ([Rubric.B02, Rubric.B17], (0.0, 0.09, 0.06)),
        # Table 9: at most +.15, +.12, +.08
        ([Rubric.B01, Rubric.B04, Rubric.B05, Rubric.B06, Rubric.B17], (0.15, 0.12, 0.08)),
        # at least -.20, -.20, -.15
        ([Rubric.B09, Rubric.B12, Rubric.B16], (-0.20, -0.20, -0.15)),
        # one entry counts once a turn
        ([Rubric.B01, Rubric.B01], (0.05, 0.05, 0.02)),
        ([], (0.0, 0.0, 0.0)),
    ],
)
def test_table_9_a_turn_adds_what_its_hits_add_within_the_clips(hits, expected) -> None:
    after, delta = rescored(START, hits)
    assert (delta.willingness, delta.trust, delta.patience) == pytest.approx(expected)
    assert after.willingness == pytest.approx(0.5 + expected[0])


def test_scores_stay_within_zero_and_one() -> None:
    low, _ = rescored(State(willingness=0.1, trust=0.1, patience=0.05), [Rubric.B12, Rubric.B16])
    assert (low.willingness, low.trust, low.patience) == (0.0, 0.0, 0.0)


def test_on_a_coarse_grid_each_change_is_the_nearest_one_that_a_record_may_hold() -> None:
    start = on_grid(State(willingness=0.53, trust=0.48, patience=0.97), 0.05)
    assert start == State(willingness=0.55, trust=0.5, patience=0.95)
    shown = [Rubric.B01, Rubric.B04]  # +.13, +.12, +.03
    assert moved(start, shown, 0.05) == State(willingness=0.7, trust=0.6, patience=1.0)
    assert moved(start, [Rubric.B11], 0.05) == State(willingness=0.55, trust=0.45, patience=0.9)
    coarse = on_grid(start, 0.1)
    most = [Rubric.B01, Rubric.B04, Rubric.B05, Rubric.B13]  # +.19, clipped to +.15, and not to .2
    assert moved(coarse, most, 0.1).willingness == pytest.approx(coarse.willingness + 0.1)


@given(st.integers(0, 100), st.sets(st.sampled_from(Rubric)))
def test_the_finest_grid_moves_scores_as_the_rubric_says(start: int, hits: set[Rubric]) -> None:
    before = State(willingness=start / 100, trust=0.5, patience=1 - start / 100)
    after, _ = rescored(before, hits)
    fine = moved(before, hits, 0.01)
    for name in ("willingness", "trust", "patience"):
        assert getattr(fine, name) == round(getattr(after, name), 2)


def test_every_action_of_the_simulator_has_a_behaviour_of_its_own() -> None:
    assert set(_AS_BEHAVIOUR) == set(DialogueAction)
    assert set(_AS_BEHAVIOUR.values()) == set(Behaviour)


hundredths = st.integers(0, 100).map(lambda n: n / 100)
steps = st.integers(-20, 15)


@given(w=hundredths, p=hundredths, dw=steps, dp=steps)
def test_a_written_record_is_always_in_order(w: float, p: float, dw: int, dp: int) -> None:
    before = State(willingness=w, trust=0.5, patience=p)
    after = State(
        willingness=min(max(w + dw / 100, 0), 1), trust=0.5, patience=min(max(p + dp / 100, 0), 1)
    )
    text = write_record(Behaviour.HESITATE, Stage.DECISION, before, after, "嗯……")
    parsed = parse_record(text, before, verbal_yes=False)
    assert isinstance(parsed, Parsed)
    assert parsed.state.willingness == pytest.approx(after.willingness)


def test_a_record_that_would_break_a_rule_is_not_written() -> None:
    after = State(willingness=0.9, trust=0.5, patience=0.5)
    with pytest.raises(ValueError, match="in one turn"):
        write_record(Behaviour.HESITATE, Stage.OPENING, START, after, "ok")


@given(st.text())
def test_any_text_is_a_turn_or_has_a_code(text: str) -> None:
    assert isinstance(parse(text), CustomerError | Parsed)
