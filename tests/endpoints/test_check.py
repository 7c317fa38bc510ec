"""The check tells a capable endpoint from one that lacks something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ibrl_jax.endpoints import CheckReport, EndpointSettings, EndpointStop, endpoint_check
from tests.endpoints.fault_server import (
    Asked,
    FaultServer,
    Reply,
    completion,
    late,
    say,
    send_json,
    status,
)

DAYS = '{"days": 7, "remark": "always"}'


def able(asked: Asked) -> Reply:
    """Does all that can be asked."""
    text = "1 2 3 4 5 " if "stop" in asked.body else "Ready, and steady."
    if "response_format" in asked.body or "JSON" in asked.prompt:
        text = DAYS
    finish = "length" if asked.body["max_tokens"] <= 8 else "stop"
    payload: dict[str, Any] = completion(text, finish=finish)
    if asked.body.get("logprobs"):
        payload["choices"][0]["logprobs"] = {"content": [{"token": "R", "logprob": -0.1}]}
    return at_once(asked, send_json(payload))


def at_once(asked: Asked, reply: Reply) -> Reply:
    """Slow where calls are timed against each other, so that a busy machine tells no tales."""
    return late(0.25, reply) if "town" in asked.prompt else reply


def poor(asked: Asked) -> Reply:
    """Chats, says nothing true of its length, and obeys a format only where it is told to."""
    kind = asked.body.get("response_format", {}).get("type")
    if kind == "json_schema":
        return status(400, "response_format is not supported")
    if "JSON" in asked.prompt and kind == "json_object":
        return say(DAYS)
    return at_once(asked, say(f"{asked.number}: 1 2 3 4 5 6 7 8 9", usage=None))


def found(report: CheckReport) -> dict[str, bool | None]:
    return {finding.topic: finding.ok for finding in report.findings}


@pytest.fixture
def check(
    serve: Callable[..., FaultServer], make_settings: Callable[..., EndpointSettings]
) -> Callable[..., CheckReport]:
    def run(script: Callable[[Asked], Reply]) -> CheckReport:
        return endpoint_check(make_settings(serve(script).url), say=print)

    return run


def test_an_able_endpoint_serves_as_both(
    check: Callable[..., CheckReport], capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(able)
    assert set(found(report).values()) == {True}
    assert (report.serves_counterpart, report.serves_judge) == (True, True)
    assert report.schema_mode == "json_schema"
    assert capsys.readouterr().out == f"{report}\n"
    assert "set schema_mode = 'json_schema'" in str(report)


def test_what_a_poor_endpoint_lacks_is_said(check: Callable[..., CheckReport]) -> None:
    report = check(poor)
    lacks = {topic for topic, ok in found(report).items() if ok is False}
    assert lacks == {
        "temperature 0", "max_tokens", "stop", "logprobs", "json_schema", "json by prompt"
    }  # fmt: skip
    assert report.schema_mode == "json_object"
    assert (report.serves_counterpart, report.serves_judge) == (False, True)


def test_a_server_that_takes_one_call_after_another_is_told(
    check: Callable[..., CheckReport],
) -> None:
    lock = asyncio.Lock()

    def script(asked: Asked) -> Reply:
        return late(0.25, say("x"), lock) if "town" in asked.prompt else able(asked)

    assert found(check(script))["parallel calls"] is False


def test_an_endpoint_that_cannot_chat_is_asked_no_more(check: Callable[..., CheckReport]) -> None:
    report = check(lambda asked: status(500))
    assert found(report)["chat"] is False
    assert {ok for topic, ok in found(report).items() if topic != "chat"} == {None}
    assert (report.serves_counterpart, report.serves_judge) == (False, False)


@pytest.mark.parametrize("code", [401, 404])
def test_a_wrong_key_or_address_stops_the_check(
    code: int, check: Callable[..., CheckReport]
) -> None:
    with pytest.raises(EndpointStop):
        check(lambda asked: status(code))
