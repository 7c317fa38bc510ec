"""The referee: legal turns, pending selections, end reasons, facts."""

import json
from typing import Any

import pytest

from ibrl_jax.domains.base import Turn
from ibrl_jax.domains.dond.referee import DondReferee, EndReason, RefereeSettings
from ibrl_jax.domains.dond.scenarios import make_scenario
from ibrl_jax.domains.dond.scripted import tagged

SCENARIO = make_scenario((2, 2, 1), (1, 3, 2), (4, 1, 0))
TRY = tagged("try", (0, 2, 1))
SELECT = tagged("selection", (0, 2, 1))
REST = tagged("selection", (2, 0, 0))


def referee(*texts: str, horizon: int = 20, select: Any = "any_try", first: str = "agent0") -> Any:
    settings = RefereeSettings(horizon_turns=horizon, select_rule=select, close="either")
    ruling: Any = DondReferee(SCENARIO, first, settings)
    for text in texts:
        ruling.play(ruling.check(ruling.to_move, text, "stop"))
    return ruling


def end(*texts: str, **rules: Any) -> Any:
    return referee(*texts, **rules).outcome


def test_a_try_and_two_complementary_selections_are_a_deal():
    ruling = referee("hi there", TRY, "ok", SELECT, REST, first="agent1")
    outcome = ruling.outcome
    assert (outcome.success, outcome.end_reason, outcome.offender) == (True, "deal", None)
    # agent1 opened and spoke the first selection's answer
    assert outcome.facts["items"] == {"agent0": [0, 2, 1], "agent1": [2, 0, 0]}
    assert outcome.facts["points"] == {"agent0": 8, "agent1": 8}
    assert outcome.facts["total"] == {"agent0": 10, "agent1": 10}
    assert (outcome.facts["first_best"], outcome.facts["pareto"]) == (16, True)
    assert (outcome.facts["turns"], outcome.facts["tries"]) == (5, 1)
    assert outcome.facts["not_last_try"] is False
    assert ruling.to_move is None
    json.dumps(dict(outcome.facts))


def test_the_selector_of_the_answer_may_sit_in_either_seat():
    facts = end(TRY, REST, SELECT).facts
    assert facts["items"] == {"agent0": [0, 2, 1], "agent1": [2, 0, 0]}
    facts = end(TRY, REST, SELECT, first="agent1").facts
    assert facts["items"] == {"agent0": [2, 0, 0], "agent1": [0, 2, 1]}
    assert facts["points"] == {"agent0": 2, "agent1": 2}
    assert facts["pareto"] is False


def test_proposals_carry_their_items_and_talk_carries_none():
    turns = referee(TRY, "hm", "ok").turns
    assert turns[0].payload == {"items": [0, 2, 1]}
    assert turns[1].payload is None
    assert [t.action for t in turns] == ["propose", "talk", "talk"]


def test_thoughts_do_not_enter_the_record():
    ruling = referee(f"<think>i value item1 at 3</think>\n{TRY}")
    assert ruling.turns[0].text == TRY
    assert ruling.turns[0].flags == ("thought",)


def test_a_selection_before_any_try_is_malformed():
    for rule in ("any_try", "last_try"):
        outcome = end("hi", SELECT, select=rule)
        assert (outcome.end_reason, outcome.offender) == ("malformed", "agent1")
        assert outcome.facts["error_code"] == "selection_before_try"


def test_any_try_allows_an_ultimatum_by_selection_and_last_try_does_not():
    greedy = tagged("selection", (2, 2, 1))
    assert referee(TRY, greedy).outcome is None
    outcome = end(TRY, greedy, select="last_try")
    assert outcome.facts["error_code"] == "selection_not_last_try"
    # one's own try is not the counterpart's
    assert end(TRY, "hm", SELECT, select="last_try").facts["error_code"] == "selection_not_last_try"
    assert referee(TRY, "hm", SELECT).outcome is None


def test_last_try_means_the_counterparts_last_and_binds_only_the_first_selection():
    later = tagged("try", (1, 2, 1))
    refused = end(TRY, "hm", later, REST, select="last_try")
    assert refused.facts["error_code"] == "selection_not_last_try"
    accepted = referee(TRY, "hm", later, tagged("selection", (1, 0, 0)), select="last_try")
    assert accepted.to_move is not None
    accepted.play(
        accepted.check("agent0", SELECT, "stop")
    )  # short of the counts: no deal, not malformed
    assert accepted.outcome.end_reason == "selections_short"


@pytest.mark.parametrize("answer", ["deal", "wait", TRY])
def test_talk_or_a_counter_withdraws_a_pending_selection(answer):
    ruling = referee(TRY, REST, answer)
    assert ruling.to_move is not None
    # the next selection is a first one again: it waits for its answer instead of closing
    ruling.play(ruling.check("agent1", REST, "stop"))
    assert ruling.to_move is not None
    ruling.play(ruling.check("agent0", SELECT, "stop"))
    assert ruling.outcome.success


@pytest.mark.parametrize(
    "first, second, reason",
    [
        ((0, 2, 1), (0, 2, 1), EndReason.SELECTIONS_SAME),
        ((2, 0, 0), (0, 2, 0), EndReason.SELECTIONS_SHORT),
        ((2, 0, 1), (0, 2, 1), EndReason.SELECTIONS_OVER),
        ((2, 0, 1), (1, 1, 0), EndReason.SELECTIONS_MIXED),
    ],
)
def test_selections_that_do_not_add_up_are_no_deal_with_their_own_reason(first, second, reason):
    outcome = end(TRY, tagged("selection", first), tagged("selection", second))
    assert (outcome.success, outcome.end_reason, outcome.offender) == (False, reason, None)
    assert outcome.facts["points"] == {"agent0": 0, "agent1": 0}
    assert outcome.facts["items"] is None
    assert outcome.facts["pareto"] is None


def test_equal_selections_that_do_add_up_are_a_deal():
    half = RefereeSettings(horizon_turns=20, select_rule="any_try", close="either")
    ruling: Any = DondReferee(make_scenario((2, 2, 2), (1, 3, 1), (4, 1, 0)), "agent0", half)
    for tag in ("try", "selection", "selection"):
        ruling.play(ruling.check(ruling.to_move, tagged(tag, (1, 1, 1)), "stop"))
    assert ruling.outcome.success


def test_disagreeing_ends_without_a_deal_whatever_is_pending():
    assert end("<disagree>").end_reason == "disagree"
    outcome = end(TRY, REST, "<disagree>")
    assert (outcome.end_reason, outcome.success, outcome.offender) == ("disagree", False, None)


def test_a_deal_on_other_than_the_last_try_is_flagged():
    ruling = referee(TRY, tagged("try", (2, 2, 0)), SELECT, REST)
    assert ruling.outcome.success
    assert ruling.outcome.facts["not_last_try"] is True
    assert [t.flags for t in ruling.turns[-2:]] == [("not_last_try",)] * 2
    assert ruling.outcome.facts["flags"] == {"not_last_try": 2}


def test_the_turn_limit_ends_the_talk_even_with_a_selection_pending():
    outcome = end(TRY, "hm", TRY, REST, horizon=4)
    assert (outcome.end_reason, outcome.facts["turns"]) == ("turn_limit", 4)
    assert end(TRY, REST, SELECT, horizon=3).success  # a deal in the last turn counts


@pytest.mark.parametrize("cut, code", [("length", "truncated"), ("error", "not_produced")])
def test_a_turn_that_did_not_stop_by_itself_is_malformed_whatever_it_says(cut, code):
    ruling = referee(TRY)
    turn = ruling.check("agent1", REST, cut)
    assert (turn.valid, turn.action, turn.error_code, turn.payload) == (
        *(False, "malformed", code, None),
    )
    ruling.play(turn)
    assert (ruling.outcome.end_reason, ruling.outcome.offender) == ("malformed", "agent1")


def test_check_records_nothing_so_that_a_turn_can_be_sampled_again():
    ruling = referee(TRY)
    for text in ("<try> item0=9", REST, "<disagree>", ""):
        ruling.check("agent1", text, "stop")
    assert len(ruling.turns) == 1
    assert ruling.to_move is not None
    assert ruling.to_move == "agent1"
    ruling.play(ruling.check("agent1", REST, "stop"))
    ruling.play(ruling.check("agent0", SELECT, "stop"))
    assert ruling.outcome.success


def test_speaking_out_of_turn_or_after_the_end_is_refused():
    ruling = referee(TRY)
    with pytest.raises(ValueError, match="agent1 is to move"):
        ruling.check("agent0", TRY, "stop")
    done = referee("<disagree>")
    with pytest.raises(ValueError, match="has ended"):
        done.check("agent1", TRY, "stop")


def test_a_valid_turn_must_be_what_its_text_says():
    forged = Turn(
        role="agent0", text=TRY, end="stop", action="propose", payload={"items": [2, 2, 1]}
    )
    with pytest.raises(ValueError, match="reads as"):
        referee().play(forged)
    honest = referee(TRY).turns[0]
    other = referee()
    other.play(honest)  # a turn of another referee's check is ruled on again
    assert other.turns == [honest]


def test_an_abort_ends_without_a_result_and_changes_no_finished_dialogue():
    ruling = referee(TRY)
    ruling.abort("endpoint: time-out")
    assert (ruling.outcome.end_reason, ruling.outcome.success) == ("aborted", False)
    assert ruling.outcome.facts["abort"] == "endpoint: time-out"
    assert ruling.to_move is None
    done = referee(TRY, REST, SELECT)
    done.abort("too late")
    assert done.outcome.success


def test_closing_forms_are_counted():
    facts = end("<try> item0=0 item1=2 item2=1 </try>", REST, SELECT).facts
    assert facts["flags"] == {"closed_with_slash": 1}
    assert facts["allocations"] == 3


def test_a_seat_that_does_not_exist_cannot_open():
    with pytest.raises(ValueError, match="no seat"):
        referee(first="agent2")
