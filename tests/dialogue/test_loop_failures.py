"""The dialogue loop: endpoints and engines that fail, and views that run full."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ibrl_jax.dialogue.agents import ApiSpeaker, ScriptedSpeaker
from ibrl_jax.dialogue.loop import play, playing
from ibrl_jax.endpoints.errors import EndpointError, EndpointStop, Kind
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Failed, Scored
from ibrl_jax.sampler.types import Completion, Request
from tests.dialogue.fakes import (
    CHAT,
    LEFT,
    RIGHT,
    Chatter,
    Puppet,
    TalkingEngine,
    polite,
    quiet,
    same,
    whole,
)

# ------------------------------------------------------------------------- failures


class FailingEndpoint:
    """Raises the errors it was given, one a call, then the last one for good; None is an answer."""

    def __init__(self, *errors: Exception | None) -> None:
        self.settings = SimpleNamespace(name="failing")
        self._errors = list(errors)
        self.calls = 0

    async def chat(self, messages: Sequence[Any], *, sample_index: int) -> Any:
        error = self._errors[min(self.calls, len(self._errors) - 1)]
        self.calls += 1
        await asyncio.sleep(0)
        if error:
            raise error
        return SimpleNamespace(text=f"answer {self.calls}", finish="stop")


def api(*errors: Exception | None) -> ApiSpeaker:
    return ApiSpeaker(endpoint=FailingEndpoint(*errors))  # type: ignore[arg-type]


def timed_out() -> EndpointError:
    return EndpointError(Kind.TIMEOUT, "failing", "no answer in 5 s", 3)


def soon(work: Any) -> Any:
    """Its result, if it ends in time."""
    return asyncio.run(asyncio.wait_for(work, 10))


def test_a_dialogue_whose_endpoint_fails_is_played_once_more(engines, local, hall, matches) -> None:
    """The second time is a dialogue of its own: nothing of the first is left in the view."""
    flaky, sound = api(None, timed_out(), None), api(None)
    views = []
    for speaker in (flaky, sound):
        speakers = {LEFT: local(engines[LEFT], LEFT), RIGHT: speaker}
        talk = hall(horizon=5, cuts_are_legal=True)
        (trajectory,) = play(talk, matches(speakers))
        assert trajectory.outcome.end_reason == "done"
        assert trajectory.rewards[LEFT] == Scored(value=1.0)
        views.append(trajectory.views[LEFT])
    assert flaky.endpoint.calls == 2 + 2  # type: ignore[attr-defined]
    first, second = (view.ids[view.turn_index <= 0].tolist() for view in views)
    assert first == second
    assert "answer 3" in whole(views[0])
    assert "answer 1" not in whole(views[0])


def test_a_dialogue_that_fails_twice_is_aborted_and_scores_nothing(
    engines, local, hall, matches
) -> None:
    """It keeps its reason; the dialogues beside it are as if it had not been there."""
    here = {role: local(engine, role) for role, engine in engines.items()}
    failing = api(timed_out())
    found = matches(here, 4)
    found[2] = replace(found[2], speakers={**here, RIGHT: failing})
    talk = hall(horizon=3, cuts_are_legal=True, concurrency=2)
    played = play(talk, found)
    assert failing.endpoint.calls == 2  # type: ignore[attr-defined]
    aborted = played.pop(2)
    assert aborted.outcome.end_reason == "aborted"
    assert "no answer in 5 s" in aborted.outcome.facts["abort"]
    assert not aborted.outcome.success
    assert aborted.views == {}
    for role in (LEFT, RIGHT):
        reward = aborted.rewards[role]
        assert isinstance(reward, Failed)
        assert "no answer in 5 s" in reward.reason  # so that whoever counts failures can name one
    assert all(t.outcome.end_reason == "done" for t in played)
    clean = [t for t in play(talk, matches(here, 4)) if t.draw != aborted.draw]
    for one, other in zip(played, clean, strict=True):
        same(one.views[LEFT], other.views[LEFT])


def test_a_refused_key_stops_everything_and_hangs_nothing(engines, local, hall, matches) -> None:
    here = {role: local(engine, role) for role, engine in engines.items()}
    refused = api(None, EndpointStop(Kind.AUTH, "endpoint 'failing' refused the key in KEY"))
    found = matches(here, 6)
    found[3] = replace(found[3], speakers={**here, LEFT: refused})
    with pytest.raises(UserError, match="refused the key in KEY"):
        soon(playing(hall(horizon=50, cuts_are_legal=True), found))
    assert play(hall(horizon=2, cuts_are_legal=True), matches(here, 6))  # all slots are free again


def test_an_unknown_family_stops_the_stage_with_one_sentence(hall, matches) -> None:
    class Strict(Chatter):
        def scripted(self, family: str, scenario: Any, role: str, rng: Any) -> Any:
            raise UserError(f"there is no family {family}")

    domain = Strict(horizon=2)
    engine = TalkingEngine(polite)
    speakers = {
        LEFT: Puppet(replies=quiet),
        RIGHT: ScriptedSpeaker(domain=domain, family="nobody"),
    }
    with pytest.raises(UserError, match="there is no family nobody"):
        soon(playing(hall(domain=domain), matches(speakers, 3)))
    assert len(engine.free) == engine.count


def test_slots_come_back_when_the_stage_is_cancelled(local, hall, matches) -> None:
    class Slow(TalkingEngine):
        def run(self, requests: Sequence[Request]) -> list[Completion]:
            time.sleep(0.01)
            return super().run(requests)

    engines = {role: Slow(polite) for role in (LEFT, RIGHT)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}

    async def main() -> None:
        stage = asyncio.create_task(playing(hall(horizon=10_000), matches(speakers, 4)))
        while not engines[RIGHT].requests:
            await asyncio.sleep(0.005)
        assert len(engines[LEFT].free) == engines[LEFT].count - 4
        stage.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stage

    soon(main())
    for engine in engines.values():
        assert len(engine.free) == engine.count


def test_an_engine_that_fails_fails_the_stage(local, hall, matches) -> None:
    class Gone(TalkingEngine):
        def run(self, requests: Sequence[Request]) -> list[Completion]:
            raise RuntimeError("the device is gone")

    engines = {LEFT: Gone(polite), RIGHT: TalkingEngine(polite)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    with pytest.raises(RuntimeError, match="the device is gone"):
        soon(playing(hall(), matches(speakers, 4)))
    for engine in engines.values():
        assert len(engine.free) == engine.count


# ------------------------------------------------------------------------- views that are too long


def longest(engine: TalkingEngine, tokens: int) -> TalkingEngine:
    """The engine, with views of so many tokens at most."""
    engine.settings.max_length = tokens
    return engine


def length_of(hall: Any, matches: Any, local: Any, says: str) -> int:
    """Tokens of LEFT's view when it has said that once and heard a short answer."""
    engine = TalkingEngine(lambda text, key: says)
    speakers = {LEFT: local(engine, LEFT, 64), RIGHT: Puppet(replies=quiet)}
    (trajectory,) = play(hall(horizon=3), matches(speakers))
    return int((trajectory.views[LEFT].turn_index <= 1).sum())


def test_who_talks_its_own_view_full_has_said_something_malformed(local, hall, matches) -> None:
    """The dialogue counts: its reward is paid, its view fits, and its words are trained on."""
    room = length_of(hall, matches, local, "well then")
    for spare in range(len(CHAT.header()) + 1):
        engine = longest(TalkingEngine(lambda text, key: "well then"), room + spare)
        speakers = {LEFT: local(engine, LEFT, 64), RIGHT: Puppet(replies=quiet)}
        (trajectory,) = play(hall(retries=2), matches(speakers))
        assert trajectory.outcome.end_reason == "malformed"
        assert trajectory.outcome.offender == LEFT
        assert trajectory.turns[-1].error_code == "truncated"
        assert trajectory.turns[-1].text == ""
        assert trajectory.retries[LEFT] == 2
        assert all(isinstance(reward, Scored) for reward in trajectory.rewards.values())
        view = trajectory.views[LEFT]
        assert len(view.ids) == room
        assert set(view.turn_index[view.loss_mask == 1]) == {0}
        assert len(engine.requests) == 1


def test_one_more_token_is_room_to_speak(local, hall, matches) -> None:
    room = length_of(hall, matches, local, "well then") + len(CHAT.header())
    engine = longest(TalkingEngine(lambda text, key: "well then"), room + 1)
    speakers = {LEFT: local(engine, LEFT, 64), RIGHT: Puppet(replies=quiet)}
    play(hall(horizon=3), matches(speakers))
    assert len(engine.requests) == 2


def test_words_that_overflow_the_other_sides_view_abort_the_dialogue_at_once(
    local, hall, matches
) -> None:
    """Not a second time: it would be the same. Nobody is paid, and no view is left."""
    played: list[int] = []

    def endless(seat: Any, turns: Sequence[Any], attempt: int) -> str:
        played.append(len(turns))
        return "on and on " * 50

    engine = longest(TalkingEngine(lambda text, key: "well"), 120)
    speakers = {LEFT: local(engine, LEFT, 64), RIGHT: Puppet(replies=endless)}
    (trajectory,) = play(hall(), matches(speakers))
    assert played == [1]
    assert trajectory.outcome.end_reason == "aborted"
    assert trajectory.views == {}
    for reward in trajectory.rewards.values():
        assert isinstance(reward, Failed)
        assert re.search(r"left's view of \d+ tokens .* 120 of config", reward.reason)
    assert len(engine.free) == engine.count


def test_a_prompt_that_leaves_no_room_is_nobodys_malformed_turn(local, hall, matches) -> None:
    engine = longest(TalkingEngine(polite), 5)
    speakers = {LEFT: local(engine, LEFT, 64), RIGHT: Puppet(replies=quiet)}
    (trajectory,) = play(hall(), matches(speakers))
    assert trajectory.outcome.end_reason == "aborted"
    assert not engine.requests


# ------------------------------------------------------------------------- control tokens in a turn
