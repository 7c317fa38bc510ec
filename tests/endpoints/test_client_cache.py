"""What was answered once is not asked again, and nothing else is kept."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from ibrl_jax.endpoints import Endpoint, EndpointError
from ibrl_jax.endpoints.cache import Cache
from tests.endpoints.asking import GOOD, HI, Make, Serve, Verdict, chat, chats, in_order
from tests.endpoints.fault_server import say


def test_an_answer_of_a_filter_in_an_old_cache_is_asked_for_again(
    serve: Serve, make_settings: Make, tmp_path: Path
) -> None:
    server = serve(in_order(say("I wou", finish="length"), say("whole")))
    settings = make_settings(server.url, cache_dir=str(tmp_path))
    assert [a.text for a in chats(settings, [{}, {}])] == ["I wou"] * 2  # a cut is a cut for good
    cache = Cache(tmp_path)
    (file,) = tmp_path.rglob("*.json")
    held = cache.get(file.stem)
    assert held is not None
    cache.put(file.stem, replace(held, finish="content_filter"), replace=True)
    assert [a.text for a in chats(settings, [{}, {}])] == ["whole"] * 2
    assert len(server.asked) == 2


def test_a_rerun_replays_each_sample_its_own(
    serve: Serve, make_settings: Make, tmp_path: Path
) -> None:
    server = serve(lambda asked: say(f"answer {asked.number}"))
    settings = make_settings(server.url, cache_dir=str(tmp_path))
    samples = [{"sample_index": i} for i in range(3)]
    first = chats(settings, samples)
    assert [answer.text for answer in first] == ["answer 0", "answer 1", "answer 2"]
    again = chats(settings, list(reversed(samples)))
    assert [answer.text for answer in again] == ["answer 2", "answer 1", "answer 0"]
    assert all(answer.cached and answer.attempts == 0 for answer in again)
    assert len(server.asked) == 3


def test_no_failure_is_cached(serve: Serve, make_settings: Make, tmp_path: Path) -> None:
    server = serve(in_order(say("prose"), say(GOOD)))
    settings = make_settings(server.url, cache_dir=str(tmp_path), retries=0)
    with pytest.raises(EndpointError, match="parse"):
        chat(settings, schema=Verdict)
    assert not chat(settings, schema=Verdict).cached
    cached = chat(settings, schema=Verdict)
    assert (cached.cached, cached.parsed) == (True, Verdict(score=0.5))


def test_the_same_question_at_once_has_one_answer(
    serve: Serve, make_settings: Make, tmp_path: Path
) -> None:
    server = serve(lambda asked: say(f"answer {asked.number}"), delay_s=0.05)
    endpoint = Endpoint(make_settings(server.url, cache_dir=str(tmp_path)))

    async def go() -> set[str]:
        answers = await asyncio.gather(*(endpoint.chat(HI) for _ in range(4)))
        await endpoint.aclose()
        return {answer.text for answer in answers}

    assert len(asyncio.run(go())) == 1
