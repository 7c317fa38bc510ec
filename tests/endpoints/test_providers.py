"""Replies as providers write them, whole: each ends as an answer, a typed failure or a stop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from ibrl_jax.endpoints import (
    Answer,
    Endpoint,
    EndpointError,
    EndpointSettings,
    EndpointStop,
    Kind,
    transport,
)
from ibrl_jax.endpoints.answers import find_object, strip_leading_thoughts, strip_thoughts
from ibrl_jax.endpoints.errors import AttemptFailed
from tests.endpoints.conftest import KEY
from tests.endpoints.fault_server import FaultServer, Reply, flood, say, send, send_json

Make = Callable[..., EndpointSettings]
Serve = Callable[..., FaultServer]


class Verdict(BaseModel):
    score: float


GOOD = '{"score": 0.5}'
COUNTED = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def whole(message: dict[str, Any], finish: str | None = "stop", **more: Any) -> dict[str, Any]:
    """A completion with what is around it."""
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}
    return {"id": "1", "created": 1, "model": "m", "choices": [choice], "usage": COUNTED} | more


def in_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


TOOL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT = {"content": GOOD, "reasoning_content": "half of it, {perhaps}"}
DETAILS = {"prompt_tokens_details": None, "completion_tokens_details": {"reasoning_tokens": 2}}

ANSWERS: dict[str, Reply] = {
    "deepseek": send(b"\n\n\n\n" + in_json(whole(THOUGHT, system_fingerprint="f"))),
    "glm": send_json(
        whole(
            THOUGHT,
            request_id="1",
            web_search=[{"title": "t", "content": "c", "link": "l"}],
            content_filter=[{"role": "assistant", "level": 3}],
            usage=COUNTED | DETAILS,
        )
    ),
    "openai": send_json(
        whole(
            {"content": GOOD, "refusal": None, "annotations": [], "audio": None},
            service_tier="default",
            usage=COUNTED | {"prompt_tokens_details": {"cached_tokens": 0}},
        )
    ),
    "parts": send_json(
        whole({"content": [{"type": "thinking", "thinking": []}, {"type": "text", "text": GOOD}]})
    ),
    "no word on the end": send_json(whole({"content": GOOD}, None)),
    "a tool beside a text": send_json(whole({"content": GOOD, "tool_calls": [TOOL]}, "tool_calls")),
    "a byte order mark": send(b"\xef\xbb\xbf" + in_json(whole({"content": GOOD}))),
    "another coding": send(
        json.dumps(whole({"content": GOOD, "name": "客服"}), ensure_ascii=False).encode("gbk"),
        headers={"Content-Type": "application/json; charset=gbk"},
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read_out_of_what_is_around_it(
    name: str, serve: Serve, make_settings: Make
) -> None:
    answer = ask(make_settings(serve(lambda asked: ANSWERS[name]).url))
    assert answer.parsed == Verdict(score=0.5)
    assert (answer.tokens_in, answer.tokens_out) == (7, 3)


@pytest.mark.parametrize(
    "usage",
    [None, {}, {"prompt_tokens": -1, "completion_tokens": 3}, {"prompt_tokens": "many"}, [], "no"],
)
def test_a_count_of_tokens_that_makes_no_sense_costs_no_answer(
    usage: Any, serve: Serve, make_settings: Make
) -> None:
    reply = send_json(whole({"content": GOOD}, usage=usage))
    endpoint = Endpoint(make_settings(serve(lambda asked: reply).url))
    answer = ask(endpoint.settings, endpoint)
    assert (answer.parsed, answer.tokens_in, answer.tokens_out) == (Verdict(score=0.5), None, None)
    assert endpoint.ledger.summary()["tokens_unreported_at_most"] > 64


REFUSED = {"content": None, "refusal": "I'm sorry, I can't assist with that."}
BROKEN: dict[str, tuple[Reply, Kind]] = {
    "openai, refusal": (send_json(whole(REFUSED)), Kind.FILTERED),
    "azure, filter": (send_json(whole({"content": "I wou"}, "content_filter")), Kind.FILTERED),
    "azure, filter without content": (send_json(whole({}, "content_filter")), Kind.FILTERED),
    "glm, sensitive": (send_json(whole({"content": ""}, "sensitive")), Kind.FILTERED),
    "gemini": (send_json(whole({}, "PROHIBITED_CONTENT")), Kind.FILTERED),
    "gemini, by both words": (send_json(whole({}, "content_filter: SAFETY")), Kind.FILTERED),
    "all thought": (
        send_json(whole({"content": None, "reasoning_content": "hm"}, "length")),
        Kind.TRUNCATED,
    ),
    "mistral": (send_json(whole({"content": GOOD}, "model_length")), Kind.TRUNCATED),
    "glm, too long": (
        send_json(whole({"content": GOOD}, "model_context_window_exceeded")),
        Kind.TRUNCATED,
    ),
    "a tool and no text": (
        send_json(whole({"content": None, "tool_calls": [TOOL]}, "tool_calls")),
        Kind.EMPTY,
    ),
    "deepseek, json mode": (send_json(whole({"content": "\n\n  "})), Kind.EMPTY),
    "deepseek, busy": (
        send_json(whole({"content": GOOD}, "insufficient_system_resource")),
        Kind.SERVER,
    ),
    "glm, network": (send_json(whole({"content": GOOD}, "network_error")), Kind.SERVER),
    "openrouter": (send_json(whole({"content": ""}, "error")), Kind.SERVER),
    "no message": (send_json({"choices": [{"message": None}]}), Kind.SERVER),
    "null choices": (send_json({"choices": None, "base_resp": {"status_code": 1}}), Kind.SERVER),
    "a page": (send(b"<html><body>sign in</body></html>"), Kind.SERVER),
    "a stream": (send(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'), Kind.SERVER),
    "nothing": (send(b""), Kind.SERVER),
    "no text": (send(b"\xff\xfe\x00\x80" * 64), Kind.SERVER),
    "half a letter": (send(in_json(whole({"content": GOOD}))[:-40] + b"\xe5\xae"), Kind.SERVER),
    "half a pair": (send(b'{"choices": [{"message": {"content": "\\ud83d"}}]}'), Kind.SERVER),
    "deep": (send(b'{"a":' * 100_000), Kind.SERVER),
    "endless": (flood(), Kind.SERVER),
    "an endless error": (flood(500), Kind.SERVER),
    "no model loaded": (send_json({"error": "no model loaded"}), Kind.SERVER),
    "a filter in a 200": (send_json({"error": {"code": "1301", "message": "x"}}), Kind.FILTERED),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_answer_is_a_failure_of_one_kind(
    name: str, serve: Serve, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LARGEST", 1 << 20)
    reply, kind = BROKEN[name]
    settings = make_settings(serve(lambda asked: reply).url, retries=0, timeout_s=60.0)
    with pytest.raises(EndpointError) as caught:
        ask(settings)
    assert caught.value.kind is kind
    assert "\n" not in str(caught.value)


def test_a_refusal_is_no_utterance_either(serve: Serve, make_settings: Make) -> None:
    reply = send_json(whole(REFUSED))
    with pytest.raises(EndpointError, match="filtered after 1 attempt: .*refusal") as caught:
        ask(make_settings(serve(lambda asked: reply).url), schema=None)
    assert "assist" not in str(caught.value)


STOPPING: dict[str, tuple[int, Any, Kind]] = {
    "deepseek": (402, {"error": {"message": "Insufficient Balance", "code": "x"}}, Kind.BUDGET),
    "glm": (429, {"error": {"code": "1113", "message": "余额不足"}}, Kind.BUDGET),
    "glm, model": (400, {"error": {"code": "1211", "message": "模型不存在"}}, Kind.NOT_FOUND),
    "ollama": (404, {"error": 'model "x" not found'}, Kind.NOT_FOUND),
    "locked": (429, {"error": {"code": "1112", "message": "locked"}}, Kind.AUTH),
}


@pytest.mark.parametrize("name", STOPPING)
def test_what_only_a_user_can_mend_is_one_sentence(
    name: str, serve: Serve, make_settings: Make
) -> None:
    status, body, kind = STOPPING[name]
    server = serve(lambda asked: send(in_json(body), status))
    with pytest.raises(EndpointStop) as caught:
        ask(make_settings(server.url))
    assert (caught.value.kind, len(server.asked)) == (kind, 1)
    assert str(caught.value).startswith(f"endpoint 'judge': {server.url} ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_told_and_not_followed(
    status: int, serve: Serve, make_settings: Make
) -> None:
    """A prompt goes to nobody but the address that was named, and a key neither."""
    other = serve(lambda asked: say(GOOD))
    place = other.url.replace("//", "//user:secret@") + "/chat/completions?token=secret"
    server = serve(lambda asked: send(b"", status, {"Location": place}))
    with pytest.raises(EndpointStop, match=f"redirects to {other.url}/chat/completions") as caught:
        ask(make_settings(server.url))
    assert not other.asked
    assert "secret" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_an_utterance_far_longer_than_was_asked_for_is_none(
    serve: Serve, make_settings: Make
) -> None:
    server = serve(lambda asked: say("a" * (256 * 64 + asked.number)))
    settings = make_settings(server.url, max_tokens=64, retries=0)
    assert len(ask(settings, schema=None).text) == 256 * 64
    with pytest.raises(EndpointError, match="16385 characters, where 64 tokens were asked for"):
        ask(settings, schema=None)


@pytest.mark.parametrize("text", ["<think>" * 70_000, "<think></think>" * 30_000, "{}" * 250_000])
def test_a_long_answer_of_tags_or_braces_is_read_at_once(text: str) -> None:
    started = time.process_time()
    strip_leading_thoughts(text)
    with pytest.raises(AttemptFailed):
        find_object(strip_thoughts(text))
    assert time.process_time() - started < 5


def ask(settings: EndpointSettings, endpoint: Endpoint | None = None, **more: Any) -> Answer[Any]:
    """One call for a verdict, unless told otherwise."""

    async def go() -> Answer[Any]:
        used = endpoint or Endpoint(settings)
        try:
            chat: Callable[..., Any] = used.chat
            return await chat([{"role": "user", "content": "hi"}], **{"schema": Verdict} | more)
        finally:
            await used.aclose()

    return asyncio.run(go())
