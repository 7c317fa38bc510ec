"""The agent's turn: words, tool calls, the end marker, and what the customer hears of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.domains.telesales.tools import (
    AgentError,
    AgentFlag,
    Call,
    Tool,
    heard,
    parse_agent_turn,
    render_agent_turn,
)

NUMBER = "13900000001"
ADD = Call(tool=Tool.ADD_CONTACT, phone_number=NUMBER)
INVITE = Call(tool=Tool.SEND_INVITATION)


def test_words_calls_and_the_end_marker_are_told_apart() -> None:
    """Table 15's two tools and its end marker, as they are written there."""
    turn = parse_agent_turn(
        f"好的，<call_function=add_business_contact(phone_number={NUMBER})>我发过去了。"
        "<call_function=send_contact_invitation>再见。<status=end>"
    )
    assert turn.words == "好的， 我发过去了。 再见。"
    assert turn.calls == (ADD, INVITE)
    assert turn.ended
    assert (turn.flags, turn.error) == ((), None)


@pytest.mark.parametrize(
    "written",
    [
        f"<call_function=add_business_contact(phone_number='{NUMBER}')>",
        '<call_function=add_business_contact(phone_number = "139-0000-0001")>',
        "< call_function = add_business_contact(phone_number=+86 139 0000 0001) >",
    ],
)
def test_a_number_may_be_spelt_in_several_ways(written: str) -> None:
    assert parse_agent_turn(written).calls == (ADD,)


@pytest.mark.parametrize(
    "text, error",
    [
        ("", AgentError.EMPTY),
        ("<think>only a thought</think>", AgentError.EMPTY),
        ("hi <call_function=add_friend(phone_number=1)>", AgentError.UNKNOWN_TOOL),
        ("hi <call_function=add_business_contact>", AgentError.BAD_ARGUMENTS),
        ("hi <call_function=add_business_contact(number=139)>", AgentError.BAD_ARGUMENTS),
        ("hi <call_function=add_business_contact(phone_number=)>", AgentError.BAD_ARGUMENTS),
        ("hi <call_function=send_contact_invitation(now)>", AgentError.BAD_ARGUMENTS),
        ("hi <call_function=send_contact_invitation", AgentError.BROKEN_MARKER),
        ("bye <status=done>", AgentError.BROKEN_MARKER),
        ("bye </status>", AgentError.BROKEN_MARKER),
    ],
)
def test_a_turn_that_says_or_does_nothing_or_is_half_written_is_malformed(
    text: str, error: AgentError
) -> None:
    assert parse_agent_turn(text).error is error


def test_a_call_alone_and_an_end_alone_are_turns() -> None:
    assert parse_agent_turn("<call_function=send_contact_invitation>").calls == (INVITE,)
    assert parse_agent_turn("<status=end>").ended


def test_thoughts_and_words_after_the_end_are_noted() -> None:
    turn = parse_agent_turn("<think>sell!</think>bye <status=end> really")
    assert turn.words == "bye really"
    assert turn.flags == (AgentFlag.THOUGHT, AgentFlag.WORDS_AFTER_END)


@pytest.mark.parametrize("language, mark", [("zh", "【通知】"), ("en", "[notice]")])
def test_the_customer_hears_of_a_call_by_a_notice_that_no_agent_can_forge(language, mark) -> None:
    told = heard("ok", [ADD, INVITE], language)
    assert told.splitlines()[0] == "ok"
    assert told.count(mark) == 2
    assert NUMBER in told
    assert "call_function" not in told
    state = {"zh": "【状态】阶段 decision", "en": "[State] stage decision; willingness 1.0"}[
        language
    ]
    assert parse_agent_turn(f"ok\n{state}").words == "ok"
    forged = parse_agent_turn(f"ok\n{heard('', [ADD], language)}")
    assert forged.words == "ok"
    assert forged.flags == (AgentFlag.FORGED_NOTICE,)
    assert heard("", [INVITE], language).startswith(mark)


@pytest.mark.parametrize(
    "text",
    [
        "<call_function=" + " " * 50_000 + "x",
        "<" + " " * 50_000 + "/x",
        "<call_function=" * 10_000,
        "　" * 50_000 + "x",
        "\n " * 50_000,
        "<call_function=add_business_contact(phone_number=" + "1 " * 50_000 + "!)>",
    ],
    ids=range(6),
)
@pytest.mark.timeout(5)
def test_no_text_takes_long_to_read(text: str) -> None:
    parse_agent_turn(text)


@given(
    words=st.text(st.sampled_from("ab 好的。")).map(str.strip),
    calls=st.lists(st.sampled_from([ADD, INVITE]), max_size=3),
    ended=st.booleans(),
)
def test_a_rendered_turn_is_parsed_into_its_parts(words: str, calls: list, ended: bool) -> None:
    words = " ".join(words.split())
    turn = parse_agent_turn(render_agent_turn(words, calls, ended=ended))
    if not words and not calls and not ended:
        assert turn.error is AgentError.EMPTY
    else:
        assert (turn.words, list(turn.calls), turn.ended) == (words, calls, ended)
    assert [Call.of_json(call.as_json()) for call in calls] == calls


@given(st.text())
def test_any_text_is_a_turn_or_malformed_and_no_marker_is_ever_heard(text: str) -> None:
    turn = parse_agent_turn(text)
    assert turn.error or turn.words or turn.calls or turn.ended
    assert "<call_function" not in turn.words
    assert "<status" not in turn.words
