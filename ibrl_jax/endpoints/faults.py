"""What a server means by its words for a failure: one `Kind` each.

Servers say the same thing in many ways, by a status, by a code or a type in an error's body, or in
its message alone; so what decides is looked at in this order, the first that holds:

| looked for | kind | where it stands |
| --- | --- | --- |
| a content filter | `FILTERED` | codes and words; a status of 400, 403 or 429 |
| an account without money | `BUDGET` | 402; codes and words; a status of 403 or 429 |
| no such model | `NOT_FOUND` | 404; codes and words; a status of 400 |
| a key or an account that is refused | `AUTH` | 401, 403; codes; a status of 429 |
| a rate limit, a time-out, a redirect | by the status | 429; 408; 3xx |
| a form that the server does not know | `BAD_REQUEST` | the message, whichever the status |
| a server that cannot at the moment | `SERVER` | 5xx, 409, 425 |
| anything else | `BAD_REQUEST` | |

A message is quoted on one line and cut short; nothing else of a body is, since it may repeat the
request.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ibrl_jax.endpoints.errors import Kind

CUT_OFF = frozenset({"length", "max_tokens", "model_length", "model_context_window_exceeded"})
"""Words for an answer that has reached its longest, and would another time."""

WITHHELD = frozenset(
    {
        *("content_filter", "sensitive", "refusal", "guardrail_intervened"),
        *("safety", "recitation", "blocklist", "prohibited_content", "spii"),
    }
)
"""Words for an answer that the provider's filter has held back, in part or whole."""

BROKEN_OFF = frozenset({"insufficient_system_resource", "network_error", "error", "abort"})
"""Words for an answer that the server could not finish, this time."""

_FILTER = frozenset(
    {
        *("content_filter", "content_policy_violation", "responsibleaipolicyviolation"),
        *("data_inspection_failed", "datainspectionfailed", "1301"),
        *("sensitive_words_detected", "prompt_blocked", "sensitivecontentdetected"),
        *("inputtextsensitivecontentdetected", "outputtextsensitivecontentdetected"),
    }
)
_FILTER_SAID = re.compile(
    "content exists risk|inappropriate content|content management policy|sensitive content"
    "|considered high risk|input was flagged|敏感内容",
    re.IGNORECASE,
)

_SPENT = frozenset(
    {
        *("insufficient_quota", "insufficient_balance", "insufficient_user_quota"),
        *("billing_hard_limit_reached", "billing_not_active", "exceeded_current_quota_error"),
        *("accountoverdueerror", "arrearage", "1113", "1309"),
    }
)
_SPENT_SAID = re.compile(
    "insufficient (account )?(balance|credits)|balance is insufficient|余额不足|欠费",
    re.IGNORECASE,
)

_NO_MODEL = frozenset({"model_not_found", "modelnotfound", "1211"})
_NO_MODEL_SAID = re.compile(r"\bmodel\b.{0,80}\bnot (exist|found)\b|模型不存在", re.IGNORECASE)

_NO_ACCOUNT = frozenset({"invalid_api_key", "1110", "1111", "1112", "1121"})


@dataclass(frozen=True, kw_only=True)
class Said:
    """What an error's body says: its message on one line, and its code and type in lower case."""

    message: str
    names: frozenset[str]


def said_in(body: object) -> Said:
    """Of a body as it was parsed: an object, or a text that is no markup."""
    if isinstance(body, str):
        return Said(message="" if body.lstrip().startswith("<") else _line(body), names=frozenset())
    if not isinstance(body, Mapping):
        return Said(message="", names=frozenset())
    message = next((body[field] for field in ("message", "msg", "detail") if body.get(field)), "")
    if isinstance(message, list) and message and isinstance(message[0], Mapping):
        where = ".".join(map(str, message[0].get("loc", ())))
        message = f"{where}: {message[0].get('msg', '')}"
    codes = (body.get("code"), body.get("type"))
    return Said(
        message=_line(message) if isinstance(message, str) else "",
        names=frozenset(str(code).casefold() for code in codes if isinstance(code, str | int)),
    )


def error_in(reply: object) -> tuple[int, object] | None:
    """The status and the body of an error that a server hid in a reply of 200; None if in none."""
    if not isinstance(reply, Mapping):
        return None
    error: Any = reply.get("error")
    base = reply.get("base_resp")
    if error is None and isinstance(base, Mapping):
        error = {"code": base.get("status_code"), "message": base.get("status_msg")}
    if error is None and "code" in reply and ("msg" in reply or "message" in reply):
        error = reply
    if not isinstance(error, Mapping | str) or not error:
        return None
    code = error.get("code") if isinstance(error, Mapping) else None
    return (code if isinstance(code, int) and 400 <= code < 600 else 500), error


def kind_of(status: int, said: Said) -> Kind:
    """What the table above makes of it."""

    def told(names: frozenset[str], words: re.Pattern[str] | None = None) -> bool:
        return bool(said.names & names or (words and words.search(said.message)))

    if told(_FILTER, _FILTER_SAID):
        return Kind.FILTERED
    if status == 402 or told(_SPENT, _SPENT_SAID):
        return Kind.BUDGET
    if status == 404 or told(_NO_MODEL, _NO_MODEL_SAID if status < 500 else None):
        return Kind.NOT_FOUND
    if status in (401, 403) or told(_NO_ACCOUNT):
        return Kind.AUTH
    by_status = {429: Kind.RATE_LIMITED, 408: Kind.TIMEOUT}
    if status in by_status:
        return by_status[status]
    if 300 <= status < 400:
        return Kind.NOT_FOUND
    if "response_format" in said.message:  # some refuse one that they do not know with a 500
        return Kind.BAD_REQUEST
    if status >= 500 or status in (409, 425):
        return Kind.SERVER
    return Kind.BAD_REQUEST


def retry_after(headers: Mapping[str, str]) -> float | None:
    """What the server asks to wait, in seconds: a number, or a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "")
        if value.replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _line(text: str) -> str:
    return " ".join(text.split())
