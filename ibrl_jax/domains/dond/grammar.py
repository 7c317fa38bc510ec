"""The grammar of a Deal-or-No-Deal turn: text in, an action or a coded error out.

```
DISAGREE := the whole turn, trimmed, is "<disagree>"
PROPOSE  := text "<try>" ALLOC ("<try>" | "</try>") text
SELECT   := text "<selection>" ALLOC ("<selection>" | "</selection>") text
ALLOC    := ws* "item0=" N ws+ "item1=" N ws+ "item2=" N ws*
N        := "0" | [1-9][0-9]*      ASCII digits, at most the count
TALK     := nothing that looks like a tag, and no itemJ=
else malformed, with an `ErrorCode`
```

Thoughts (everything up to the last `</think>`) are dropped first and never enter a history. Every
pattern runs in linear time (possessive quantifiers), and a number is converted only after its
length is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

CloseForm = Literal["either", "literal"]
"""Which closing tags are legal: `<try>` and `</try>`, or `<try>` alone."""

Items = tuple[int, int, int]
"""Units of item0, item1 and item2."""


class Action(StrEnum):
    """What a turn does."""

    TALK = "talk"
    PROPOSE = "propose"
    SELECT = "select"
    DISAGREE = "disagree"
    MALFORMED = "malformed"


class ErrorCode(StrEnum):
    """Why a turn is malformed. The last four are the referee's: they need more than the text."""

    EMPTY = "empty"
    UNCLOSED_THOUGHT = "unclosed_thought"
    UNKNOWN_TAG = "unknown_tag"
    UNPAIRED_TAG = "unpaired_tag"
    CLOSE_FORM = "close_form"
    BAD_ITEMS = "bad_items"
    BAD_NUMBER = "bad_number"
    OVER_COUNT = "over_count"
    UNTAGGED_ITEMS = "untagged_items"
    TWO_SELECTIONS = "two_selections"
    DIFFERENT_TRIES = "different_tries"
    TRY_AND_SELECTION = "try_and_selection"
    DISAGREE_NOT_ALONE = "disagree_not_alone"
    SPEAKS_FOR_OTHER = "speaks_for_other"
    SELECTION_BEFORE_TRY = "selection_before_try"
    SELECTION_NOT_LAST_TRY = "selection_not_last_try"
    TRUNCATED = "truncated"
    NOT_PRODUCED = "not_produced"


class Flag(StrEnum):
    """Oddities that are tolerated and counted. `NOT_LAST_TRY` is the referee's."""

    THOUGHT = "thought"
    CLOSED_WITH_SLASH = "closed_with_slash"
    LINE_BREAK = "line_break"
    NO_SPACE = "no_space"
    TEXT_BESIDE_SELECTION = "text_beside_selection"
    FENCE = "fence"
    BOLD = "bold"
    REPEATED_TRY = "repeated_try"
    ITEMS_IN_TEXT = "items_in_text"
    NOT_LAST_TRY = "not_last_try"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    """A turn by its text alone; `allocation` is set for `propose` and `select`: own units."""

    action: Action
    allocation: Items | None = None
    error_code: ErrorCode | None = None
    flags: tuple[Flag, ...] = ()


_WS = " \t\r\n"
_END_OF_THOUGHT = "</think>"
_OPEN_THOUGHT = re.compile(r"<\s*+think", re.IGNORECASE)
_TAG = re.compile(r"<(/?)(try|selection)>|<disagree>")
_W = r"[ \t\r\n]"
_NUMBER = r"(0|[1-9][0-9]*+)"
_ALLOC = re.compile(rf"{_W}*+item0={_NUMBER}{_W}++item1={_NUMBER}{_W}++item2={_NUMBER}{_W}*+")
_ITEMS_IN_ORDER = re.compile(
    rf"{_W}*+item0=[^\s,;:=]++{_W}++item1=[^\s,;:=]++{_W}++item2=[^\s,;:=]++{_W}*+"
)
_ITEM_EQUALS = re.compile(r"item\s?[0-9a-z]?\s*+[=\uff1d]", re.IGNORECASE)
_JSON = re.compile(
    r"""["']item\s?\w?["']\s*+:  |  \A(?:```\w*+\s*+)?\{.*\}(?:\s*+```)?\Z""", re.I | re.S | re.X
)
_BRACKET = re.compile(r"[<>\[{&\uff1c\uff1e\ufe64\ufe65\u3008\u300a\u3010]")
# The exact tags are replaced by NUL before this looks at what is left of a turn.
_LOOKS_LIKE_TAG = re.compile(
    r"""
      [<\uff1c\ufe64] \s*+ (?:[/|\\!?] \s*+)? [^\W\d_]                # <Try  < /try  <|end|>
    | [<\uff1c\ufe64] \s*+ \x00  |  \x00 \s*+ [>\uff1e\ufe65]         # <<try>>
    | (?:try|selection|disagree) \s*+ [>\uff1e\ufe65]                # try>
    | [\[{\u3008\u300a\u3010] /?(?:try|selection|disagree)\b         # [try]
    | &lt;
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SPEAKER = re.compile(
    r"""
      (?i: (?: \A | (?<=[\r\n]) ) [ \t>*_\#-]*+
           (?: them | (?:the\ )?other\ (?:participant|side|player|party) | counterpart | opponent
             | partner | user | human | assistant | system )
           [ \t*_]*+ : )
    | \b(?:THEM|agent[01]):
    """,
    re.VERBOSE,
)


def visible(text: str) -> str:
    """The part of an utterance that enters the history: no thought, closed or not, and trimmed."""
    body = text[_thoughts_end(text) :]
    opened = _OPEN_THOUGHT.search(body)
    return (body[: opened.start()] if opened else body).strip(_WS)


def parse(text: str, counts: Sequence[int], *, close: CloseForm) -> Parsed:
    """Read one turn. `counts` holds the units of the three items on the table.

    Never raises on any text; an illegal one is `Action.MALFORMED` with its `ErrorCode`.
    """
    start = _thoughts_end(text)
    flags = [Flag.THOUGHT] if start else []
    body = text[start:].strip(_WS)
    if _OPEN_THOUGHT.search(body):
        return _malformed(ErrorCode.UNCLOSED_THOUGHT)
    if not body.strip():
        return _malformed(ErrorCode.EMPTY)
    if body == "<disagree>":
        return Parsed(action=Action.DISAGREE, flags=tuple(flags))
    rest = _TAG.sub("\x00", body)
    if _BRACKET.search(rest) and _LOOKS_LIKE_TAG.search(rest):
        return _malformed(ErrorCode.UNKNOWN_TAG)
    if ":" in body and _SPEAKER.search(body):
        return _malformed(ErrorCode.SPEAKS_FOR_OTHER)
    tags = list(_TAG.finditer(body))
    if not tags:
        if _ITEM_EQUALS.search(body) or _JSON.search(body):
            return _malformed(ErrorCode.UNTAGGED_ITEMS)
        return Parsed(action=Action.TALK, flags=tuple(flags))
    return _tagged(body, tags, counts, close, flags)


def _tagged(
    body: str, tags: list[re.Match[str]], counts: Sequence[int], close: CloseForm, flags: list[Flag]
) -> Parsed:
    kinds = {tag[2] for tag in tags}
    if None in kinds:
        return _malformed(ErrorCode.DISAGREE_NOT_ALONE)
    if len(kinds) > 1:
        return _malformed(ErrorCode.TRY_AND_SELECTION)
    if len(tags) % 2 or any(tag[1] for tag in tags[::2]):
        return _malformed(ErrorCode.UNPAIRED_TAG)
    selects = kinds == {"selection"}
    if selects and len(tags) > 2:
        return _malformed(ErrorCode.TWO_SELECTIONS)
    if any(tag[1] for tag in tags[1::2]):
        if close == "literal":
            return _malformed(ErrorCode.CLOSE_FORM)
        flags.append(Flag.CLOSED_WITH_SLASH)

    found: set[Items] = set()
    outside, last = [], 0
    for opening, closing in zip(tags[::2], tags[1::2], strict=True):
        inner = body[opening.end() : closing.start()]
        items = _allocation(inner, counts)
        if isinstance(items, ErrorCode):
            return _malformed(items)
        found.add(items)
        core = inner.strip(_WS)
        if "\n" in core or "\r" in core:
            flags.append(Flag.LINE_BREAK)
        if inner[0] not in _WS or inner[-1] not in _WS:
            flags.append(Flag.NO_SPACE)
        outside.append(body[last : opening.start()])
        last = closing.end()
    if len(found) > 1:
        return _malformed(ErrorCode.DIFFERENT_TRIES)
    if len(tags) > 2:
        flags.append(Flag.REPEATED_TRY)

    text = " ".join([*outside, body[last:]])
    if "`" in text:
        flags.append(Flag.FENCE)
    if "**" in text or "__" in text:
        flags.append(Flag.BOLD)
    if selects and text.strip(_WS + "`*_"):
        flags.append(Flag.TEXT_BESIDE_SELECTION)
    if _ITEM_EQUALS.search(text):
        flags.append(Flag.ITEMS_IN_TEXT)
    return Parsed(
        action=Action.SELECT if selects else Action.PROPOSE,
        allocation=found.pop(),
        flags=tuple(dict.fromkeys(flags)),
    )


def _allocation(inner: str, counts: Sequence[int]) -> Items | ErrorCode:
    match = _ALLOC.fullmatch(inner)
    if match is None:
        return ErrorCode.BAD_NUMBER if _ITEMS_IN_ORDER.fullmatch(inner) else ErrorCode.BAD_ITEMS
    for digits, count in zip(match.groups(), counts, strict=True):
        if len(digits) > len(str(count)) or int(digits) > count:
            return ErrorCode.OVER_COUNT
    return int(match[1]), int(match[2]), int(match[3])


def _thoughts_end(text: str) -> int:
    """Where the text after the last closed thought begins; 0 without one."""
    end = text.rfind(_END_OF_THOUGHT)
    return end + len(_END_OF_THOUGHT) if end >= 0 else 0


def _malformed(code: ErrorCode) -> Parsed:
    return Parsed(action=Action.MALFORMED, error_code=code)
