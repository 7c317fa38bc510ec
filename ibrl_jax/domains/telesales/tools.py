"""The sales agent's turn: spoken words, tool calls, and the marker that ends the call (Table 15).

```
好的，我这就给您发过去。<call_function=add_business_contact(phone_number=13900000001)>
那先不打扰您了，再见。<status=end>
```

A call stands between `<call_function=` and `>`; what else is in angle brackets and begins like a
marker is an error, since it would neither be heard nor do anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.endpoints.answers import strip_thoughts


class Tool(StrEnum):
    """What the agent can do beside talking. Each counts once a call."""

    ADD_CONTACT = "add_business_contact"
    SEND_INVITATION = "send_contact_invitation"


class AgentError(StrEnum):
    """Why an agent's turn is malformed."""

    TRUNCATED = "truncated"
    NOT_PRODUCED = "not_produced"
    EMPTY = "empty"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    BROKEN_MARKER = "broken_marker"


class AgentFlag(StrEnum):
    """Tolerated oddities of an agent's turn."""

    THOUGHT = "thought"
    WORDS_AFTER_END = "words_after_end"
    REPEATED_CALL = "repeated_call"
    FORGED_NOTICE = "forged_notice"


END_MARKER = "<status=end>"


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call. `phone_number` has digits and letters alone; None for an invitation."""

    tool: Tool
    phone_number: str | None = None

    def as_json(self) -> dict[str, str]:
        number = {} if self.phone_number is None else {"phone_number": self.phone_number}
        return {"tool": str(self.tool)} | number

    @classmethod
    def of_json(cls, value: Any) -> Call:
        return cls(tool=Tool(value["tool"]), phone_number=value.get("phone_number"))


@dataclass(frozen=True, kw_only=True)
class AgentTurn:
    """What a turn says and does. With an `error` the rest is not to be relied on."""

    words: str
    calls: tuple[Call, ...] = ()
    ended: bool = False
    flags: tuple[AgentFlag, ...] = ()
    error: AgentError | None = None


# No two neighbours match the same character, so that no text takes long.
_MARKER = re.compile(r"<\s*(call_function|status)\s*=([^<>]*)>")
_OPENED = re.compile(r"<[\s/]*(call_function|status)\b")
_CALL = re.compile(r"(\w+)\s*(?:\((.*)\))?", re.DOTALL)
_NUMBER = re.compile(r"phone_number\s*=\s*(['\"]?)\+?([\w \-]+)\1")
_COUNTRY = re.compile(r"86(?=1\d{10}$)")
_FORGED = re.compile(r"(【(?:通知|状态)】|\[(?:notice|state)\])[^\n]*", re.IGNORECASE)
_GAPS = re.compile(r"[ \t]{2,}")


def parse_agent_turn(text: str) -> AgentTurn:
    """What a plain-text turn says and does.

    Thoughts are taken off. A line that reads like the notice of a call or like the customer's state
    is taken out of the words, as these are the domain's to give.
    """
    flags: list[AgentFlag] = []
    said = strip_thoughts(text)
    if said != text.strip():
        flags.append(AgentFlag.THOUGHT)
    calls: list[Call] = []
    ended = False
    for match in _MARKER.finditer(said):
        inside = match[2].strip()
        if match[1] == "status":
            if inside != "end":
                return AgentTurn(words="", error=AgentError.BROKEN_MARKER)
            ended = True
            if said[match.end() :].strip():
                flags.append(AgentFlag.WORDS_AFTER_END)
            continue
        call = _parse_call(inside)
        if isinstance(call, AgentError):
            return AgentTurn(words="", error=call)
        calls.append(call)
    words = _MARKER.sub(" ", said)
    if _OPENED.search(words):
        return AgentTurn(words="", error=AgentError.BROKEN_MARKER)
    if _FORGED.search(words):
        words = _FORGED.sub(" ", words)
        flags.append(AgentFlag.FORGED_NOTICE)
    lines = (line.strip() for line in _GAPS.sub(" ", words).splitlines())
    words = "\n".join(line for line in lines if line)
    if not words and not calls and not ended:
        return AgentTurn(words="", flags=tuple(flags), error=AgentError.EMPTY)
    return AgentTurn(
        words=words, calls=tuple(calls), ended=ended, flags=tuple(dict.fromkeys(flags))
    )


def render_agent_turn(words: str, calls: Sequence[Call] = (), *, ended: bool = False) -> str:
    """A turn as an agent writes it: `parse_agent_turn` gives the parts back."""
    markers = [
        f"<call_function={call.tool}>"
        if call.phone_number is None
        else f"<call_function={call.tool}(phone_number={call.phone_number})>"
        for call in calls
    ]
    return "".join([words, *markers, END_MARKER if ended else ""])


_NOTICES: dict[Language, dict[Tool, str]] = {
    "zh": {
        Tool.ADD_CONTACT: "【通知】对方向号码{number}发出了企业微信好友申请",
        Tool.SEND_INVITATION: "【通知】对方用短信发出了添加企业微信的邀请",
    },
    "en": {
        Tool.ADD_CONTACT: "[notice] the caller sent a contact request to the number {number}",
        Tool.SEND_INVITATION: "[notice] the caller sent a contact invitation by text message",
    },
}


def heard(words: str, calls: Sequence[Call], language: Language) -> str:
    """What the customer takes in: the words, and a line for each call that was really made."""
    notices = [_NOTICES[language][c.tool].format(number=c.phone_number) for c in calls]
    return "\n".join(part for part in (words, *notices) if part)


def _parse_call(inside: str) -> Call | AgentError:
    match = _CALL.fullmatch(inside)
    if match is None or match[1] not in list(Tool):
        return AgentError.UNKNOWN_TOOL
    tool, arguments = Tool(match[1]), (match[2] or "").strip()
    if tool is Tool.SEND_INVITATION:
        return Call(tool=tool) if not arguments else AgentError.BAD_ARGUMENTS
    number = _NUMBER.fullmatch(arguments)
    digits = normal_number(number[2]) if number else ""
    return Call(tool=tool, phone_number=digits) if digits else AgentError.BAD_ARGUMENTS


def normal_number(number: str) -> str:
    """A number without spaces, dashes and country code, so that two spellings compare equal."""
    return _COUNTRY.sub("", re.sub(r"[\s\-+]", "", number))
