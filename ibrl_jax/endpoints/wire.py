"""One HTTP request and what may come of it, over the `openai` library.

The library's own retries are off, so retries never nest; each way to fail becomes an
`AttemptFailed` of one kind. What a server says of an error is quoted with the key blotted out
and cut short, and a request or a completion is never quoted.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ibrl_jax.endpoints.errors import AttemptFailed, EndpointStop, Kind
from ibrl_jax.endpoints.settings import EndpointSettings

_QUOTED = 200


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A chat completion: its text with any thoughts in it, and what the server says of it."""

    text: str
    finish: str
    tokens_in: int | None
    tokens_out: int | None
    logprobs: bool


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Part(_Lenient):
    type: str
    text: str | None = None


class _Message(_Lenient):
    content: str | list[_Part] | None = None


class _Choice(_Lenient):
    message: _Message
    finish_reason: str | None = None
    logprobs: Any = None


class _Usage(_Lenient):
    prompt_tokens: int | None = Field(None, ge=0)
    completion_tokens: int | None = Field(None, ge=0)


class _Completion(_Lenient):
    choices: list[_Choice] = Field(min_length=1)
    usage: _Usage | None = None


class Wire:
    """The connection to one endpoint. Belongs to the event loop it was first used in."""

    def __init__(self, settings: EndpointSettings) -> None:
        """Raises EndpointStop if the key's environment variable is not set."""
        import openai  # half a second, and most runs ask no endpoint

        self._settings = settings
        self._key = read_key(settings)
        self._client = openai.AsyncOpenAI(
            base_url=settings.base_url,
            api_key=self._key or "none",
            timeout=settings.timeout_s,
            max_retries=0,
        )
        # The library would take these from variables that nobody named.
        self._client.organization = self._client.project = self._client.admin_api_key = None

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """Ask once, in `timeout_s` seconds at most; raises AttemptFailed."""
        import openai

        settings = self._settings
        try:
            async with asyncio.timeout(settings.timeout_s):
                text = await self._client.post("/chat/completions", cast_to=str, body=dict(body))
        except (TimeoutError, openai.APITimeoutError):
            detail = f"no answer from {settings.base_url} in {settings.timeout_s:g} s"
            raise AttemptFailed(Kind.TIMEOUT, detail, billed=True) from None
        except openai.APIStatusError as error:
            headers = error.response.headers
            raise self._refused(error.status_code, error.body, headers) from None
        except openai.APIConnectionError as error:
            cause = error.__cause__
            refused = type(cause).__name__ == "ConnectError"
            what = "no connection to" if refused else "the connection broke at"
            raise AttemptFailed(
                Kind.CONNECTION, f"{what} {settings.base_url}", billed=not refused
            ) from None
        return self._read(text)

    async def aclose(self) -> None:
        await self._client.close()

    def _read(self, text: str) -> Reply:
        try:
            completion = _Completion.model_validate_json(text)
        except ValidationError:
            raise self._unreadable(text) from None
        choice, usage = completion.choices[0], completion.usage
        content = choice.message.content or ""
        if isinstance(content, list):
            content = "".join(part.text or "" for part in content if part.type == "text")
        return Reply(
            text=content,
            finish=choice.finish_reason or "stop",
            tokens_in=usage.prompt_tokens if usage else None,
            tokens_out=usage.completion_tokens if usage else None,
            logprobs=bool(choice.logprobs),
        )

    def _unreadable(self, text: str) -> AttemptFailed:
        """A status of 200 without a chat completion; some servers hide an error in one."""
        try:
            error = _ErrorBody.model_validate_json(text).error
        except ValidationError:
            return AttemptFailed(
                Kind.SERVER,
                f"the reply of {self._settings.base_url} is no chat completion",
                billed=True,
            )
        code = error.get("code")
        return self._refused(code if isinstance(code, int) else 500, error, {})

    def _refused(self, status: int, body: object, headers: Mapping[str, str]) -> AttemptFailed:
        said, code = _said(body)
        if self._key:
            said = said.replace(self._key, "***")
        kind = _kind(status, said, code)
        detail = f"status {status}" + (f" ({said[:_QUOTED]})" if said else "")
        return AttemptFailed(kind, detail, wait_s=_retry_after(headers))


class _ErrorBody(_Lenient):
    error: dict[str, Any]


def read_key(settings: EndpointSettings) -> str | None:
    """The key itself; None where the endpoint needs none.

    Raises:
        EndpointStop: the variable that `key_env` names is not set.
    """
    if settings.key_env is None:
        return None
    key = os.environ.get(settings.key_env, "").strip()
    if not key:
        raise EndpointStop(
            Kind.AUTH,
            f"endpoint {settings.name!r}: the environment variable {settings.key_env} is not set; "
            f"it must hold the key of {settings.base_url}",
        )
    return key


def stop(settings: EndpointSettings, failure: AttemptFailed) -> EndpointStop:
    """What the user is told of a failure that every further call would share."""
    name = f"endpoint {settings.name!r}: {settings.base_url}"
    if failure.kind is Kind.AUTH and settings.key_env is None:
        message = f"{name} asks for a key; name its environment variable in key_env"
    elif failure.kind is Kind.AUTH:
        message = f"{name} refused the key in the environment variable {settings.key_env}"
    elif failure.kind is Kind.BUDGET:
        message = f"{name} says that the account's quota is spent ({failure.detail})"
    else:
        message = (
            f"{name} does not serve chat completions of model {settings.model!r} "
            f"({failure.detail}); check base_url and model"
        )
    return EndpointStop(failure.kind, message)


def _kind(status: int, said: str, code: str) -> Kind:
    if status in (401, 403):
        return Kind.AUTH
    if status == 402 or code == "insufficient_quota":
        return Kind.BUDGET
    if status == 404 or code == "model_not_found" or "model not exist" in said.lower():
        return Kind.NOT_FOUND
    if status == 429:
        return Kind.RATE_LIMITED
    if status == 408:
        return Kind.TIMEOUT
    if "response_format" in said:  # some servers refuse one that they do not know with a 500
        return Kind.BAD_REQUEST
    if status >= 500 or status in (409, 425):
        return Kind.SERVER
    return Kind.BAD_REQUEST


def _said(body: object) -> tuple[str, str]:
    """The message and the code of an error's body; nothing that could repeat the request."""
    if not isinstance(body, Mapping):
        return "", ""
    message, code = body.get("message"), body.get("code")
    detail = body.get("detail")
    if message is None and isinstance(detail, list) and detail and isinstance(detail[0], Mapping):
        where = ".".join(map(str, detail[0].get("loc", ())))
        message = f"{where}: {detail[0].get('msg', '')}"
    elif message is None:
        message = detail
    message = " ".join(message.split()) if isinstance(message, str) else ""
    return message, code if isinstance(code, str) else ""


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """What the server asks to wait, in seconds: a number, or a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "")
        if value.replace(".", "", 1).isdigit():
            return float(value)
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
