"""Every row of the grammar's table, and what must hold of any text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.domains.dond.fuzz import FRAGMENTS
from ibrl_jax.domains.dond.grammar import Action, CloseForm, ErrorCode, Flag, Parsed, parse, visible
from ibrl_jax.domains.dond.scripted import tagged

COUNTS = (2, 1, 3)
ITEMS = "item0=1 item1=0 item2=2"
TRY = f"<try> {ITEMS} <try>"
SELECTION = f"<selection> {ITEMS} <selection>"


def read(text: str, close: CloseForm = "either") -> Parsed:
    return parse(text, COUNTS, close=close)


@pytest.mark.parametrize(
    "text, action, flags",
    [
        (TRY, Action.PROPOSE, ()),
        (SELECTION, Action.SELECT, ()),
        (f"i like item2 {TRY} what do you think ?", Action.PROPOSE, ()),
        (f"<try> {ITEMS} </try>", Action.PROPOSE, (Flag.CLOSED_WITH_SLASH,)),
        (f"<selection> {ITEMS} </selection>", Action.SELECT, (Flag.CLOSED_WITH_SLASH,)),
        ("<try> item0=1\nitem1=0\r\nitem2=2 <try>", Action.PROPOSE, (Flag.LINE_BREAK,)),
        (f"<try>\n{ITEMS}\n<try>", Action.PROPOSE, ()),
        (f"<try>{ITEMS}<try>", Action.PROPOSE, (Flag.NO_SPACE,)),
        (f"<try> {ITEMS}<try>", Action.PROPOSE, (Flag.NO_SPACE,)),
        ("<try>\titem0=1 \t item1=0  item2=2 <try>", Action.PROPOSE, ()),
        (f"deal ! {SELECTION}", Action.SELECT, (Flag.TEXT_BESIDE_SELECTION,)),
        (f"{SELECTION} thanks", Action.SELECT, (Flag.TEXT_BESIDE_SELECTION,)),
        (f"```\n{SELECTION}\n```", Action.SELECT, (Flag.FENCE,)),
        (f"`{TRY}`", Action.PROPOSE, (Flag.FENCE,)),
        (f"**{TRY}**", Action.PROPOSE, (Flag.BOLD,)),
        (f"item0=1 for me {TRY}", Action.PROPOSE, (Flag.ITEMS_IN_TEXT,)),
        (f"{TRY} again: {TRY}", Action.PROPOSE, (Flag.REPEATED_TRY,)),
        ("<try> item0=2 item1=1 item2=3 <try>", Action.PROPOSE, ()),
        ("<try> item0=0 item1=0 item2=0 <try>", Action.PROPOSE, ()),
        ("<disagree>", Action.DISAGREE, ()),
        (" \r\n<disagree>\t\n", Action.DISAGREE, ()),
        ("deal", Action.TALK, ()),
        ("Deal! item0 for me, the rest for you <3 (2 < 3, i think)", Action.TALK, ()),
        ("let me try a selection, we disagree", Action.TALK, ()),
        ("我想要 item0，其余归你。", Action.TALK, ()),
        ("i give them item0: it is worth nothing", Action.TALK, ()),
        (f"<think>they want {TRY} or <disagree></think>deal", Action.TALK, (Flag.THOUGHT,)),
        (f"a thought of <selection> </think> {TRY}", Action.PROPOSE, (Flag.THOUGHT,)),
        (f"<think>a</think>no<think>b</think>\n\n{SELECTION}", Action.SELECT, (Flag.THOUGHT,)),
        ("<think></think><disagree>", Action.DISAGREE, (Flag.THOUGHT,)),
    ],
)
def test_legal_turns_are_read_and_oddities_flagged(text, action, flags):
    parsed = read(text)
    assert (parsed.action, parsed.flags, parsed.error_code) == (action, flags, None)
    assert (parsed.allocation is not None) == (action in (Action.PROPOSE, Action.SELECT))


@pytest.mark.parametrize(
    "text, code",
    [
        # a tag missing, or not as it should be
        (f"<try> {ITEMS}", ErrorCode.UNPAIRED_TAG),
        (f"{ITEMS} </try>", ErrorCode.UNPAIRED_TAG),
        (f"{ITEMS} <selection>", ErrorCode.UNPAIRED_TAG),
        (f"</try> {ITEMS} </try>", ErrorCode.UNPAIRED_TAG),
        (f"<try> {ITEMS} <try> {ITEMS} <try>", ErrorCode.UNPAIRED_TAG),
        (f"<try> {ITEMS} </selection>", ErrorCode.TRY_AND_SELECTION),
        (f"<TRY> {ITEMS} <TRY>", ErrorCode.UNKNOWN_TAG),
        (f"<try> {ITEMS} </Try>", ErrorCode.UNKNOWN_TAG),
        (f"< try > {ITEMS} < try >", ErrorCode.UNKNOWN_TAG),
        (f"<try> {ITEMS} < /try>", ErrorCode.UNKNOWN_TAG),
        (f"<try> {ITEMS} <try/>", ErrorCode.UNKNOWN_TAG),
        (f"<<try>> {ITEMS} <<try>>", ErrorCode.UNKNOWN_TAG),
        (f"\uff1ctry\uff1e {ITEMS} \uff1ctry\uff1e", ErrorCode.UNKNOWN_TAG),
        (f"[try] {ITEMS} [/try]", ErrorCode.UNKNOWN_TAG),
        (f"&lt;try&gt; {ITEMS} &lt;try&gt;", ErrorCode.UNKNOWN_TAG),
        (f"try> {ITEMS} <try>", ErrorCode.UNKNOWN_TAG),
        ("<deal>", ErrorCode.UNKNOWN_TAG),
        ("<disagree/>", ErrorCode.UNKNOWN_TAG),
        ("<DISAGREE>", ErrorCode.UNKNOWN_TAG),
        ("</disagree>", ErrorCode.UNKNOWN_TAG),
        ("i have <input> 2 1 1 2 3 2 </input>", ErrorCode.UNKNOWN_TAG),
        # items
        ("<try> item1=0 item0=1 item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1 item0=1 item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1 item1=0 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1 item1=0 item2=2 item3=0 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1 item1=0 item3=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> Item0=1 item1=0 item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1, item1=0, item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0: 1 item1: 0 item2: 2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0 = 1 item1=0 item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1item1=0 item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> item0=1\u00a0item1=0 item2=2 <try>", ErrorCode.BAD_ITEMS),
        ("<try> **item0=1 item1=0 item2=2** <try>", ErrorCode.BAD_ITEMS),
        ("<try> <try>", ErrorCode.BAD_ITEMS),
        ("<try><try>", ErrorCode.BAD_ITEMS),
        # numbers
        ("<try> item0=-1 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=1.5 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=+1 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=02 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=one item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=N item1=N item2=N <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=\u0661 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=\uff11 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=\u00b2 item1=0 item2=2 <try>", ErrorCode.BAD_NUMBER),
        ("<try> item0=3 item1=0 item2=2 <try>", ErrorCode.OVER_COUNT),
        ("<try> item0=1 item1=0 item2=4 <try>", ErrorCode.OVER_COUNT),
        ("<try> item0=999999999999 item1=0 item2=2 <try>", ErrorCode.OVER_COUNT),
        (f"<selection> item0={'9' * 100_000} item1=0 item2=2 <selection>", ErrorCode.OVER_COUNT),
        # several actions in one turn
        (f"{SELECTION} {SELECTION}", ErrorCode.TWO_SELECTIONS),
        (f"{TRY} or <try> item0=2 item1=0 item2=2 <try>", ErrorCode.DIFFERENT_TRIES),
        (f"{TRY} {SELECTION}", ErrorCode.TRY_AND_SELECTION),
        ("<disagree> sorry", ErrorCode.DISAGREE_NOT_ALONE),
        ("no deal <disagree>", ErrorCode.DISAGREE_NOT_ALONE),
        ("**<disagree>**", ErrorCode.DISAGREE_NOT_ALONE),
        ("<disagree><disagree>", ErrorCode.DISAGREE_NOT_ALONE),
        (f"{SELECTION} <disagree>", ErrorCode.DISAGREE_NOT_ALONE),
        # no tags
        ('{"item0": 1, "item1": 0, "item2": 2}', ErrorCode.UNTAGGED_ITEMS),
        ('```json\n{"action": "try"}\n```', ErrorCode.UNTAGGED_ITEMS),
        ("item0=2 for me", ErrorCode.UNTAGGED_ITEMS),
        ("Item0 = 2 for me", ErrorCode.UNTAGGED_ITEMS),
        ("item7=2", ErrorCode.UNTAGGED_ITEMS),
        ("", ErrorCode.EMPTY),
        (" \n\t\u00a0 ", ErrorCode.EMPTY),
        ("<think>all of it</think>\n", ErrorCode.EMPTY),
        # the other side's words
        (f"{TRY}\nOther participant: deal", ErrorCode.SPEAKS_FOR_OTHER),
        ("i want item0\n\n**The other participant:** fine", ErrorCode.SPEAKS_FOR_OTHER),
        ("deal ? THEM: deal", ErrorCode.SPEAKS_FOR_OTHER),
        ("agent1: deal", ErrorCode.SPEAKS_FOR_OTHER),
        ("deal\nuser: deal", ErrorCode.SPEAKS_FOR_OTHER),
        ("YOU: deal <eos> THEM: ok", ErrorCode.UNKNOWN_TAG),
        (f"{TRY}<|im_end|>", ErrorCode.UNKNOWN_TAG),
        # thoughts
        (f"<think> what do they want {TRY}", ErrorCode.UNCLOSED_THOUGHT),
        ("<think>a</think><think>b", ErrorCode.UNCLOSED_THOUGHT),
        ("deal < Think", ErrorCode.UNCLOSED_THOUGHT),
        (f"<think>a</think> {SELECTION} {SELECTION}", ErrorCode.TWO_SELECTIONS),
    ],
)
def test_illegal_turns_are_malformed_with_their_code(text, code):
    parsed = read(text)
    assert (parsed.action, parsed.error_code) == (Action.MALFORMED, code)
    assert parsed.allocation is None
    assert parsed.flags == ()


def test_literal_close_refuses_the_slash_and_takes_the_papers_form():
    assert read(TRY, "literal").action is Action.PROPOSE
    for tag in ("try", "selection"):
        slashed = read(f"<{tag}> {ITEMS} </{tag}>", "literal")
        assert slashed.error_code is ErrorCode.CLOSE_FORM
    assert read("<disagree>", "literal").action is Action.DISAGREE


def test_thoughts_never_become_visible():
    assert visible("<think>secret</think> deal\n") == "deal"
    assert visible("secret </think>a</think> deal") == "deal"
    assert visible("deal <think>secret") == "deal"
    assert visible("deal < THINK secret") == "deal"
    assert visible(f" {TRY} ") == TRY


@given(st.tuples(*(st.integers(0, c) for c in COUNTS)), st.sampled_from(["try", "selection"]))
def test_an_allocation_reads_back_as_written(items, tag):
    for text in (tagged(tag, items), tagged(tag, items)[: -len(tag) - 2] + f"</{tag}>"):
        assert read(text).allocation == items


noise = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join)


@given(noise | st.text())
def test_any_text_is_ruled_on_and_what_enters_the_history_reads_the_same(text):
    parsed = read(text)
    assert (parsed.action is Action.MALFORMED) == (parsed.error_code is not None)
    if parsed.allocation is not None:
        assert all(0 <= n <= c for n, c in zip(parsed.allocation, COUNTS, strict=True))
    shown = visible(text)
    assert visible(shown) == shown
    if parsed.error_code is not ErrorCode.UNCLOSED_THOUGHT:
        again = read(shown)
        assert (again.action, again.allocation, again.error_code) == (
            (parsed.action, parsed.allocation, parsed.error_code)
        )
    json.dumps([parsed.action, parsed.error_code, parsed.flags, parsed.allocation])


@pytest.mark.parametrize(
    "unit",
    ["<", "< ", "<try> ", "item", "item0=", "\n ", "[", "{}", "} ", "`", "</think>", "9", "*"],
)
def test_long_hostile_text_is_read_in_linear_time(unit):
    start = time.perf_counter()
    for text in (
        unit * 50_000,
        "{" + unit * 50_000,
        "<" + " " * 50_000 + unit,
        f"<try>{unit * 50_000}",
    ):
        read(text)
        visible(text)
    assert time.perf_counter() - start < 5.0  # quadratic reading takes minutes
