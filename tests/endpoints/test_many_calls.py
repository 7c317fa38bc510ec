"""A thousand calls at once, a third of them into a fault."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from ibrl_jax.endpoints import Answer, Endpoint, EndpointError, EndpointSettings, Kind
from tests.endpoints.fault_server import (
    Asked,
    FaultServer,
    Reply,
    drip,
    half_body,
    hang,
    reset,
    say,
    status,
)

CALLS = 1000
FAULT_SHARE = 0.3


class Verdict(BaseModel):
    number: int
    score: float = Field(gt=0, le=1)


FAULTS: list[Reply] = [
    hang,
    drip("late", 0.05),
    status(429, Retry_After="0.01"),
    status(500),
    reset,
    half_body,
    say(""),
    say('{"number": 1, "score": 0.'),
    say("Hard to tell, 0 perhaps."),
    say('{"number": 1, "score": 1.5}'),
    say('{"points": 0}'),
    say('{"number": 1, "score": 0.5}', finish="length"),
]


def test_every_call_is_answered_or_typed_as_failed(
    serve: Callable[..., FaultServer], make_settings: Callable[..., EndpointSettings]
) -> None:
    tries: Counter[str] = Counter()

    def script(asked: Asked) -> Reply:
        number, attempt = asked.prompt, tries[asked.prompt]
        tries[number] += 1
        chance = random.Random(f"{number}/{attempt}")
        if chance.random() < FAULT_SHARE:
            return chance.choice(FAULTS)
        return say(f'{{"number": {number}, "score": 0.5}}')

    server = serve(script)
    endpoint = Endpoint(make_settings(server.url, timeout_s=0.75, retries=1, concurrency=32))

    async def go() -> list[Answer[Verdict] | BaseException]:
        calls = (
            endpoint.chat([{"role": "user", "content": str(i)}], schema=Verdict)
            for i in range(CALLS)
        )
        results = await asyncio.gather(*calls, return_exceptions=True)
        await endpoint.aclose()
        return results

    results = asyncio.run(asyncio.wait_for(go(), 60))
    failures: Counter[Kind] = Counter()
    for number, result in enumerate(results):
        if isinstance(result, Answer):
            assert result.parsed == Verdict(number=number, score=0.5)  # its own, and no zero
        else:
            assert isinstance(result, EndpointError), result
            failures[result.kind] += 1

    total = endpoint.ledger.summary()
    assert total["calls"] == CALLS
    assert total["answered"] == CALLS - failures.total()
    assert total["failures"] == {str(kind): n for kind, n in failures.items()}
    assert total["requests"] >= len(server.asked) == tries.total()
    assert set(total["failed_requests"]) == {
        "timeout", "rate_limited", "server", "connection", "empty", "parse", "schema", "truncated"
    }  # fmt: skip
    assert failures.total() > 30
    assert endpoint.ledger.in_flight == 0


def test_many_calls_never_exchange_text(
    serve: Callable[..., FaultServer], make_settings: Callable[..., EndpointSettings]
) -> None:
    server = serve(lambda asked: say(f"to {asked.prompt}"), delay_s=0.002)
    endpoint = Endpoint(make_settings(server.url, concurrency=16))

    async def go() -> list[Any]:
        calls = (endpoint.chat([{"role": "user", "content": f"call {i}"}]) for i in range(300))
        answers = await asyncio.gather(*calls)
        await endpoint.aclose()
        return answers

    texts = [answer.text for answer in asyncio.run(go())]
    assert texts == [f"to call {i}" for i in range(300)]
    assert 8 <= server.most_at_once <= 16
