"""One HTTP request and what may come of it, over the `openai` library.

The library's own retries are off, so retries never nest; each way to fail becomes an
`AttemptFailed` of one kind (`faults` says which). What a server says of an error is quoted with the
key blotted out and cut short, and a request or a completion is never quoted.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ibrl_jax.endpoints.errors import AttemptFailed, EndpointStop, Kind
from ibrl_jax.endpoints.faults import error_in, kind_of, retry_after, said_in
from ibrl_jax.endpoints.settings import EndpointSettings
from ibrl_jax.endpoints.transport import LARGEST, TooLarge, open_client

_QUOTED = 200


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A chat completion: its text with any thoughts in it, and what the server says of it.

    `finish` is in lower case; `refusal` where the model's refusal stands in place of a text.
    """

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
    refusal: str | None = None


class _Choice(_Lenient):
    message: _Message
    finish_reason: str | None = None
    logprobs: Any = None


class _Usage(_Lenient):
    prompt_tokens: int | None = Field(None, ge=0)
    completion_tokens: int | None = Field(None, ge=0)


class _Completion(_Lenient):
    choices: list[_Choice] = Field(min_length=1)
    usage: Any = None


class Wire:
    """The connection to one endpoint. Belongs to the event loop it was first used in."""

    def __init__(self, settings: EndpointSettings) -> None:
        """Raises EndpointStop for a key or an address that there cannot be."""
        import openai  # half a second, and most runs ask no endpoint

        self._settings = settings
        self._key = read_key(settings)
        try:
            self._client = openai.AsyncOpenAI(
                base_url=settings.base_url,
                api_key=self._key or "none",
                timeout=settings.timeout_s,
                max_retries=0,
                http_client=open_client(self._key),
            )
        except Exception as error:
            if type(error).__name__ != "InvalidURL":  # of a library that `openai` keeps to itself
                raise
            raise stop(settings, AttemptFailed(Kind.NOT_FOUND, "no such address")) from None

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
        except TooLarge:
            detail = f"the reply of {settings.base_url} is longer than {LARGEST >> 20} MB"
            raise AttemptFailed(Kind.SERVER, detail, billed=True) from None
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
        text = text.removeprefix("\ufeff")
        try:
            completion = _Completion.model_validate_json(text)
        except ValidationError:
            raise self._unreadable(text) from None
        choice = completion.choices[0]
        content = choice.message.content or ""
        if isinstance(content, list):
            content = "".join(part.text or "" for part in content if part.type == "text")
        finish = (choice.finish_reason or "stop").casefold().partition(":")[0]
        if choice.message.refusal and not content:
            finish = "refusal"
        usage = _usage(completion.usage)
        return Reply(
            text=content,
            finish=finish,
            tokens_in=usage.prompt_tokens,
            tokens_out=usage.completion_tokens,
            logprobs=bool(choice.logprobs),
        )

    def _unreadable(self, text: str) -> AttemptFailed:
        """A status of 200 without a chat completion; some servers hide an error in one."""
        try:
            hidden = error_in(json.loads(text))
        except (ValueError, RecursionError):
            hidden = None
        if hidden is None:
            detail = f"the reply of {self._settings.base_url} is no chat completion"
            return AttemptFailed(Kind.SERVER, detail, billed=True)
        return self._refused(*hidden, {})

    def _refused(self, status: int, body: object, headers: Mapping[str, str]) -> AttemptFailed:
        said = said_in(body)
        message = said.message
        if 300 <= status < 400:
            message = f"it redirects to {_place(headers.get('location', ''))}"
        if self._key:
            message = message.replace(self._key, "***")
        detail = f"status {status}" + (f" ({message[:_QUOTED]})" if message else "")
        return AttemptFailed(kind_of(status, said), detail, wait_s=retry_after(headers))


def _usage(told: object) -> _Usage:
    """What a server says of tokens, as far as it can be read."""
    try:
        return _Usage.model_validate(told or {})
    except ValidationError:
        return _Usage.model_validate({})


def _place(location: str) -> str:
    """An address without what may be secret in it."""
    try:
        url = urlsplit(location)
        port = f":{url.port}" if url.port else ""
        return f"{url.scheme}://{url.hostname}{port}{url.path}" if url.hostname else url.path
    except ValueError:
        return "nowhere"


def read_key(settings: EndpointSettings) -> str | None:
    """The key itself; None where the endpoint needs none.

    Raises:
        EndpointStop: the variable that `key_env` names is not set, or holds no key.
    """
    if settings.key_env is None:
        return None
    key = os.environ.get(settings.key_env, "").strip()
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        wrong = "holds blanks, line breaks or letters that no key has" if key else "is not set"
        raise EndpointStop(
            Kind.AUTH,
            f"endpoint {settings.name!r}: the environment variable {settings.key_env} {wrong}; "
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
