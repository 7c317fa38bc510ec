"""One call at a time: what is sent, what comes back, and how each failure is named."""

from __future__ import annotations

import asyncio
import email.utils
import gc
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from ibrl_jax.endpoints import (
    Budget,
    Endpoint,
    EndpointError,
    EndpointStop,
    Kind,
)
from ibrl_jax.endpoints.call import backoff_s
from ibrl_jax.endpoints.client import RATE_LIMIT_WAITS
from ibrl_jax.errors import UserError
from tests.endpoints.asking import GOOD, HI, Make, Serve, Verdict, chat, chats, in_order
from tests.endpoints.conftest import KEY, KEY_ENV
from tests.endpoints.fault_server import (
    Asked,
    Reply,
    completion,
    drip,
    half_body,
    hang,
    reset,
    say,
    send_json,
    status,
)


def test_an_answer_says_what_came_back(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say(" hello ", usage=(7, 3))))
    answer = chat(make_settings(server.url))
    assert (answer.text, answer.parsed, answer.finish) == ("hello", None, "stop")
    assert (answer.tokens_in, answer.tokens_out) == (7, 3)
    assert (answer.cached, answer.attempts) == (False, 1)
    assert 0 < answer.latency_s < 5


def test_a_request_carries_the_settings_and_the_key(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say("x")))
    extra = {"top_p": 0.9, "max_tokens": None, "max_completion_tokens": 5}
    chats(make_settings(server.url, extra_body=extra), [{}, {"temperature": 0}])
    (first, second) = server.asked
    assert first.path == "/v1/chat/completions"
    assert first.headers["authorization"] == f"Bearer {KEY}"
    assert first.body == {
        "model": "scripted",
        "messages": HI,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_completion_tokens": 5,
    }
    assert second.body["temperature"] == 0


def test_nothing_of_the_environment_is_sent_but_the_named_key(
    serve: Serve, make_settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID"):
        monkeypatch.setenv(f"OPENAI_{name}", "marker-of-the-environment")
    mine = ("Authorization: Bearer marker", "User-Agent: marker", "X-Team: marker", "Host: marker")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "\n".join(mine))
    server = serve(in_order(say("x")))
    chats(make_settings(server.url), [{}])
    headers = server.asked[0].headers
    assert "marker-of-the-environment" not in str(headers)
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (headers["host"], headers["user-agent"]) == (server.url[7:-3], "ibrl_jax")
    assert not [name for name in headers if name.startswith("x-")]


def test_thoughts_never_reach_the_text(serve: Serve, make_settings: Make) -> None:
    thinking = say("<think>secret</think>Hello", reasoning_content="secret too")
    parts = send_json(
        completion(None)
        | {
            "choices": [
                {
                    "finish_reason": "stop",
                    "message": {
                        "content": [
                            {"type": "thinking", "thinking": [{"text": "secret"}]},
                            {"type": "text", "text": "Hello"},
                        ]
                    },
                }
            ]
        }
    )
    server = serve(in_order(thinking, parts))
    assert [a.text for a in chats(make_settings(server.url), [{}, {}])] == ["Hello", "Hello"]


def test_a_schema_gives_a_validated_object(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say(f"<think>well</think>```json\n{GOOD}\n```")))
    assert chat(make_settings(server.url), schema=Verdict).parsed == Verdict(score=0.5)
    asked = server.asked[0].body["response_format"]
    assert asked["type"] == "json_schema"
    assert asked["json_schema"]["strict"] is True
    assert asked["json_schema"]["schema"] == Verdict.model_json_schema()


@pytest.mark.parametrize(
    ("mode", "sent"),
    [("json_schema", "json_schema"), ("json_object", "json_object"), ("none", None)],
)
def test_a_schema_mode_is_what_is_sent(
    mode: str, sent: str | None, serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(say(GOOD)))
    chat(make_settings(server.url, schema_mode=mode), schema=Verdict)
    assert server.asked[0].body.get("response_format", {}).get("type") == sent


@pytest.mark.parametrize("code", [400, 422, 500])
@pytest.mark.parametrize("works", ["json_object", None])
def test_auto_settles_on_the_strictest_mode_that_is_accepted(
    works: str | None, code: int, serve: Serve, make_settings: Make
) -> None:
    def script(asked: Asked) -> Reply:
        kind = asked.body.get("response_format", {}).get("type")
        return say(GOOD) if kind == works else status(code, "no:\n  response_format")

    server = serve(script)
    settings = make_settings(server.url, retries=0)
    first, second = chats(settings, [{"schema": Verdict}, {"schema": Verdict}])
    assert first.attempts == (2 if works else 3)
    assert second.attempts == 1


def test_a_mode_settles_for_a_form_whatever_it_is_validated_by(
    serve: Serve, make_settings: Make
) -> None:
    """Verdicts on calls of other lengths are one form, and one refusal is enough for all."""

    class Stricter(Verdict):
        pass

    Stricter.__name__ = Verdict.__name__
    Stricter.model_config["title"] = "Verdict"
    assert Stricter.model_json_schema() == Verdict.model_json_schema()

    def script(asked: Asked) -> Reply:
        kind = asked.body.get("response_format", {}).get("type")
        return say(GOOD) if kind == "json_object" else status(400, "response_format")

    server = serve(script)
    first, second = chats(
        make_settings(server.url, retries=0), [{"schema": Verdict}, {"schema": Stricter}]
    )
    assert (first.attempts, second.attempts) == (2, 1)


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": None, "completion_tokens": None}])
def test_a_server_may_count_no_tokens(
    usage: dict[str, None], serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(send_json(completion("x") | {"usage": usage})))
    answer = chat(make_settings(server.url))
    assert (answer.text, answer.tokens_in, answer.tokens_out) == ("x", None, None)


def test_what_a_server_says_of_an_error_is_quoted_on_one_line(
    serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(status(400, "1 error:\n  {'loc':\t('body',)}")))
    with pytest.raises(EndpointError) as error:
        chat(make_settings(server.url))
    assert "(1 error: {'loc': ('body',)})" in str(error.value)


def test_a_bad_request_is_not_retried_and_settles_no_mode(
    serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(*[status(400, "the context is too long")] * 3, say(GOOD)))
    endpoint = Endpoint(make_settings(server.url))
    with pytest.raises(EndpointError, match="bad_request after 3 attempts: .*context is too long"):
        chats(endpoint.settings, [{"schema": Verdict}], endpoint)
    chats(endpoint.settings, [{"schema": Verdict}], endpoint)
    assert server.asked[3].body["response_format"]["type"] == "json_schema"


FAULTS: dict[str, tuple[Reply, Kind]] = {
    "hang": (hang, Kind.TIMEOUT),
    "drip": (drip("late", 0.01), Kind.TIMEOUT),
    "408": (status(408), Kind.TIMEOUT),
    "429": (status(429), Kind.RATE_LIMITED),
    "500": (status(500), Kind.SERVER),
    "503 html": (send_json("<html>busy</html>", 503), Kind.SERVER),
    "no completion": (send_json({"hello": 1}), Kind.SERVER),
    "no choices": (send_json({"choices": []}), Kind.SERVER),
    "error in a 200": (send_json({"error": {"message": "busy", "code": 429}}), Kind.RATE_LIMITED),
    "broken off": (say(GOOD, finish="insufficient_system_resource"), Kind.SERVER),
    "reset": (reset, Kind.CONNECTION),
    "half a body": (half_body, Kind.CONNECTION),
    "empty": (say(""), Kind.EMPTY),
    "null": (say(None), Kind.EMPTY),
    "only thoughts": (say("<think>hm</think>"), Kind.EMPTY),
    "half a json": (say('{"score": 0.'), Kind.PARSE),
    "prose": (say("I would say a half."), Kind.PARSE),
    "out of range": (say('{"score": 7}'), Kind.SCHEMA),
    "wrong schema": (say('{"points": 1}'), Kind.SCHEMA),
}


def patience_s(fault: str) -> float:
    """Short only where it has to run out, so that a busy machine makes no time-outs."""
    return 0.75 if fault in ("hang", "drip") else 10.0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_passing_fault_is_retried(fault: str, serve: Serve, make_settings: Make) -> None:
    reply, kind = FAULTS[fault]
    server = serve(in_order(reply, say(GOOD)))
    endpoint = Endpoint(make_settings(server.url, timeout_s=patience_s(fault)))
    (answer,) = chats(endpoint.settings, [{"schema": Verdict}], endpoint)
    assert (answer.parsed, answer.attempts) == (Verdict(score=0.5), 2)
    assert endpoint.ledger.summary()["retries"] == {str(kind): 1}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lasting_fault_is_typed(fault: str, serve: Serve, make_settings: Make) -> None:
    reply, kind = FAULTS[fault]
    server = serve(in_order(reply))
    endpoint = Endpoint(make_settings(server.url, timeout_s=patience_s(fault), retries=1))
    with pytest.raises(EndpointError) as caught:
        chats(endpoint.settings, [{"schema": Verdict}], endpoint)
    tries = 1 + (RATE_LIMIT_WAITS if kind is Kind.RATE_LIMITED else 1)
    assert (caught.value.kind, caught.value.attempts, len(server.asked)) == (kind, tries, tries)
    assert not isinstance(caught.value, UserError)
    total = endpoint.ledger.summary()
    assert (total["answered"], total["failures"]) == (0, {str(kind): 1})


def test_a_closed_port_is_a_connection_failure(make_settings: Make) -> None:
    settings = make_settings(key_env=None, retries=0)
    with pytest.raises(EndpointError, match=r"connection after 1 attempt: no connection to http"):
        chat(settings)


def test_a_rate_limit_is_waited_for_and_takes_no_try_from_other_faults(
    serve: Serve, make_settings: Make
) -> None:
    busy = [status(429)] * 4
    server = serve(in_order(*busy, say("prose"), *busy, say(GOOD)))
    answer = chat(make_settings(server.url, retries=1), schema=Verdict)
    assert (answer.parsed, answer.attempts) == (Verdict(score=0.5), 10)
    server = serve(in_order(say("prose"), status(429), say("prose"), say(GOOD)))
    with pytest.raises(EndpointError, match="parse after 3 attempts"):
        chat(make_settings(server.url, retries=1), schema=Verdict)


@pytest.mark.parametrize("finish", ["length", "MAX_TOKENS"])
def test_an_answer_cut_off_is_never_parsed(finish: str, serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say(GOOD, finish=finish)))
    with pytest.raises(EndpointError) as caught:
        chat(make_settings(server.url), schema=Verdict)
    assert (caught.value.kind, len(server.asked)) == (Kind.TRUNCATED, 1)


@pytest.mark.parametrize("schema", [None, Verdict])
@pytest.mark.parametrize("finish", ["content_filter", "sensitive", "SAFETY"])
def test_what_a_content_filter_held_back_is_no_answer_however_whole_it_looks(
    finish: str, schema: Any, serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(say(GOOD, finish=finish, usage=(7, 3))))
    endpoint = Endpoint(make_settings(server.url))
    with pytest.raises(EndpointError, match=finish.lower()) as caught:
        chats(endpoint.settings, [{"schema": schema}], endpoint)
    assert (caught.value.kind, len(server.asked)) == (Kind.FILTERED, 1)
    total = endpoint.ledger.summary()
    assert (total["failures"], total["tokens_out"]) == ({"filtered": 1}, 3)


def test_an_utterance_cut_off_says_so(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say("I would", finish="length"), say("<think>I", finish="length")))
    endpoint = Endpoint(make_settings(server.url))
    (answer,) = chats(endpoint.settings, [{}], endpoint)
    assert answer.finish == "length"
    with pytest.raises(EndpointError, match="truncated"):
        chats(endpoint.settings, [{}], endpoint)


@pytest.mark.parametrize(
    ("code", "message", "kind", "sentence"),
    [
        (401, f"bad key {KEY}", Kind.AUTH, f"refused the key .* variable {KEY_ENV}$"),
        (403, f"bad key {KEY}", Kind.AUTH, f"refused the key .* variable {KEY_ENV}$"),
        (404, "no such model", Kind.NOT_FOUND, "http://127.* model 'scripted' .*no such model"),
        (400, "Model Not Exist", Kind.NOT_FOUND, "http://127.* model 'scripted'"),
        (402, "Insufficient Balance", Kind.BUDGET, "quota is spent"),
    ],
)
def test_what_a_user_must_mend_stops_at_once(
    code: int, message: str, kind: Kind, sentence: str, serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(status(code, message)))
    endpoint = Endpoint(make_settings(server.url))
    for _ in range(2):  # the second is not even sent
        with pytest.raises(EndpointStop, match=sentence) as caught:
            chats(endpoint.settings, [{}], endpoint)
        assert caught.value.kind is kind
        assert isinstance(caught.value, UserError)
        assert not isinstance(caught.value, EndpointError)
        assert KEY not in str(caught.value)
    assert len(server.asked) == 1


def test_a_server_that_wants_a_key_is_told_apart(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(status(401)))
    with pytest.raises(EndpointStop, match="asks for a key; name its environment variable"):
        chat(make_settings(server.url, key_env=None))


def test_back_off_doubles_within_its_bound_and_repeats(make_settings: Make) -> None:
    settings = make_settings(backoff_s=0.1, max_wait_s=0.7)
    waits = [backoff_s(settings, "key", failures) for failures in range(1, 6)]
    for wait, longest in zip(waits, [0.1, 0.2, 0.4, 0.8, 1.6], strict=True):
        assert min(longest / 2, 0.7) <= wait <= min(longest, 0.7)
    assert waits == [backoff_s(settings, "key", failures) for failures in range(1, 6)]
    assert waits[0] != backoff_s(settings, "other key", 1)


def test_retry_after_is_waited_for_by_every_call(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(status(429, Retry_After="0.3"), say("x")))
    endpoint = Endpoint(make_settings(server.url, concurrency=1))

    async def go() -> float:
        started = time.perf_counter()
        await asyncio.gather(endpoint.chat(HI), endpoint.chat(HI, sample_index=1))
        await endpoint.aclose()
        return time.perf_counter() - started

    assert 0.3 <= asyncio.run(go()) < 3
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "after",
    [{"Retry_After": "3600"}, {"Retry_After": email.utils.formatdate(time.time() + 3600)},
     {"Retry_After_Ms": "3600000"}],
)  # fmt: skip
def test_a_long_retry_after_is_bounded(
    after: dict[str, str], serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(status(429, **after), say("x")))
    started = time.perf_counter()
    assert chat(make_settings(server.url, max_wait_s=0.2)).text == "x"
    assert 0.2 <= time.perf_counter() - started < 3


def test_requests_a_minute_are_kept(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say("x")))
    started = time.perf_counter()
    chats(make_settings(server.url, requests_per_minute=600), [{}] * 4)
    assert time.perf_counter() - started >= 0.3


def test_a_budget_stops_before_the_call_that_would_exceed_it(
    serve: Serve, make_settings: Make
) -> None:
    server = serve(in_order(say("x", usage=(30, 10))))
    budget = Budget(max_calls=None, max_tokens=300, max_cost=None)
    endpoint = Endpoint(make_settings(server.url, budget=budget))

    async def go() -> list[Any]:
        calls = [endpoint.chat(HI, sample_index=i) for i in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        await endpoint.aclose()
        return results

    results = asyncio.run(go())
    stops = [result for result in results if isinstance(result, EndpointStop)]
    total = endpoint.ledger.summary()
    assert len(server.asked) == total["answered"] == 20 - len(stops)
    # One call is bounded by 64 + 16 + 4 + 2 + 64 = 150 tokens: it fits while 150 are spent.
    assert total["answered"] == 4
    assert total["tokens_in"] + total["tokens_out"] <= 300
    assert "budget.max_tokens = 300" in str(stops[0])
    assert stops[0].kind is Kind.BUDGET


def test_a_cancelled_call_gives_its_place_back(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(hang, say("x")))
    endpoint = Endpoint(make_settings(server.url, concurrency=1))

    async def go() -> str:
        first = asyncio.create_task(endpoint.chat(HI))
        while not server.asked:
            await asyncio.sleep(0.01)
        first.cancel()
        text = (await endpoint.chat(HI)).text
        await endpoint.aclose()
        return text

    assert asyncio.run(go()) == "x"
    assert endpoint.ledger.summary()["failures"] == {"cancelled": 1}
    assert endpoint.ledger.in_flight == 0


def test_an_endpoint_serves_one_event_loop_after_another(serve: Serve, make_settings: Make) -> None:
    server = serve(in_order(say("x")))
    endpoint = Endpoint(make_settings(server.url))
    for _ in range(3):  # nobody closes: the connection ends with its loop, without a warning
        assert asyncio.run(endpoint.chat(HI)).text == "x"
        gc.collect()


def test_the_key_appears_nowhere(
    serve: Serve, make_settings: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bad = status(500, f"trace: Bearer {KEY}")
    server = serve(in_order(bad, say("fine"), bad, bad, bad))
    settings = make_settings(server.url, cache_dir=str(tmp_path / "cache"))
    endpoint = Endpoint(settings, ledger_file=tmp_path / "ledger.jsonl")
    chats(settings, [{}], endpoint)
    with pytest.raises(EndpointError, match=r"trace: Bearer \*\*\*") as caught:
        chats(settings, [{"sample_index": 1}], endpoint)
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == 2
    shown = [*files, caplog.text, repr(endpoint), repr(settings), repr(caught.value)]
    shown += [str(endpoint.ledger.summary())]
    assert caplog.records
    assert not [text for text in shown if KEY in text]
