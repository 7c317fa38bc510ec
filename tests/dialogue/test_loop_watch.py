"""Who follows a stage hears of every dialogue and every reward, and says who is judged first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ibrl_jax.dialogue.agents import Utterance
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.loop import Watch, play, playing
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.endpoints.errors import EndpointError, EndpointStop, Kind
from ibrl_jax.endpoints.lane import RANK
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Case, Failed, Reward, Scored
from tests.dialogue.fakes import LEFT, RIGHT, Puppet, TalkingEngine, polite, quiet


class Diary(Watch):
    def __init__(self) -> None:
        self.dialogues: dict[int, Trajectory] = {}
        self.rewards: dict[tuple[int, Role], Reward] = {}

    def rank(self, role: Role) -> int:
        return {LEFT: 2, RIGHT: 1}[role]

    def ended(self, index: int, trajectory: Trajectory) -> None:
        assert not trajectory.rewards
        self.dialogues[index] = trajectory

    def paid(self, index: int, role: Role, reward: Reward) -> None:
        assert index in self.dialogues
        self.rewards[index, role] = reward


class Ranked:
    """Pays the rank of the task that it is asked in."""

    async def score(self, case: Case) -> Scored | Failed:
        return Scored(value=float(RANK.get()))


def test_a_watch_hears_of_each_dialogue_and_each_reward_once(hall, matches) -> None:
    diary = Diary()
    speakers = {role: Puppet(replies=quiet) for role in (LEFT, RIGHT)}
    played = play(hall(concurrency=2), matches(speakers, 5), diary)
    assert sorted(diary.dialogues) == [0, 1, 2, 3, 4]
    for index, trajectory in enumerate(played):
        assert diary.dialogues[index].turns == trajectory.turns
        for role in (LEFT, RIGHT):
            assert diary.rewards[index, role] is trajectory.rewards[role]


def test_a_judge_asks_in_its_roles_rank_and_a_speaker_before_all(hall, matches) -> None:
    spoken: list[int] = []

    def reply(seat: Any, turns: Any, attempt: int) -> str:
        spoken.append(RANK.get())
        return "well"

    speakers = {role: Puppet(replies=reply) for role in (LEFT, RIGHT)}
    judges = {role: Ranked() for role in (LEFT, RIGHT)}
    (trajectory,) = play(hall(judges=judges), matches(speakers), Diary())
    assert trajectory.rewards == {LEFT: Scored(value=2.0), RIGHT: Scored(value=1.0)}
    assert set(spoken) == {0}


@pytest.mark.parametrize("role", [LEFT, RIGHT])
def test_a_dialogue_that_was_broken_off_is_told_with_its_failed_rewards(
    hall, matches, role: Role
) -> None:
    def fails(seat: Any, turns: Any, attempt: int) -> str:
        raise EndpointError(Kind.TIMEOUT, "it", "no answer", 1)

    diary = Diary()
    other = RIGHT if role == LEFT else LEFT
    speakers = {role: Puppet(replies=fails), other: Puppet(replies=quiet)}
    play(hall(), matches(speakers), diary)
    assert list(diary.dialogues) == [0]
    assert all(isinstance(reward, Failed) for reward in diary.rewards.values())
    assert len(diary.rewards) == 2


# ------------------------------------------------------------------------- judges that take long


class Slow:
    """A judge that pays once a diary holds so many dialogues, and counts who waits for it."""

    def __init__(self, diary: Diary, dialogues: int) -> None:
        self._diary, self._dialogues = diary, dialogues
        self.asked: list[str] = []

    async def score(self, case: Case) -> Scored | Failed:
        self.asked.append(case.scenario_id)
        while len(self._diary.dialogues) < self._dialogues:
            await asyncio.sleep(0)
        return Scored(value=1.0)


@pytest.mark.parametrize("seats", [1, 2])
def test_who_waits_for_a_judge_has_given_its_seat_to_the_next(
    local, hall, matches, seats: int
) -> None:
    """No judge answers before all have talked, and the engines have a slot a seat."""
    diary = Diary()
    judge = Slow(diary, 5)
    engines = {role: TalkingEngine(polite, slots=seats) for role in (LEFT, RIGHT)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    stage = hall(concurrency=seats, judges={LEFT: judge, RIGHT: judge})
    played = soon(playing(stage, matches(speakers, 5), diary))
    assert list(diary.dialogues) == [0, 1, 2, 3, 4]
    assert judge.asked == [f"s{index}" for index in range(5) for _ in (LEFT, RIGHT)]
    assert [t.scenario.id for t in played] == [f"s{index}" for index in range(5)]
    for index, trajectory in enumerate(played):
        assert trajectory.rewards == {role: Scored(value=1.0) for role in (LEFT, RIGHT)}
        assert trajectory.turns == diary.dialogues[index].turns


def test_a_judge_is_asked_while_others_still_talk(hall, matches) -> None:
    """The second dialogue ends when somebody has been asked about the first."""
    judge = Slow(diary := Diary(), 0)

    class Talkative(Puppet):
        def sit(self, seat: Any, conductor: Conductor) -> Any:
            return SimpleNamespace(reply=self.reply, close=lambda: None)

        async def reply(self, turns: Any, attempt: int) -> Utterance:
            while "s0" not in judge.asked:
                await asyncio.sleep(0)
            return Utterance(text="well", end="stop")

    quick, slow = Puppet(replies=quiet), Talkative(replies=quiet)
    found = matches({LEFT: quick, RIGHT: quick}, 2)
    found[1] = replace(found[1], speakers={LEFT: quick, RIGHT: slow})
    soon(playing(hall(judges={LEFT: judge, RIGHT: judge}), found, diary))
    assert list(diary.dialogues) == [0, 1]


def test_a_judge_that_stops_the_stage_stops_those_who_talk_and_those_who_wait(
    local, hall, matches
) -> None:
    class Refused(Slow):
        async def score(self, case: Case) -> Scored | Failed:
            await super().score(case)
            raise EndpointStop(Kind.AUTH, "endpoint 'it' refused the key in KEY")

    diary = Diary()
    engines = {role: TalkingEngine(polite, slots=2) for role in (LEFT, RIGHT)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    judges = {LEFT: Refused(diary, 3), RIGHT: Slow(diary, 9)}
    with pytest.raises(UserError, match="refused the key in KEY"):
        soon(playing(hall(concurrency=2, judges=judges), matches(speakers, 9), diary))
    assert len(diary.dialogues) < 9
    assert not diary.rewards
    for engine in engines.values():
        assert len(engine.free) == engine.count


def test_a_speaker_that_stops_the_stage_leaves_its_seat_to_nobody(hall, matches) -> None:
    begun: list[str] = []

    def refused(seat: Any, turns: Any, attempt: int) -> str:
        begun.append(seat.scenario.public["topic"])
        raise EndpointStop(Kind.AUTH, "endpoint 'it' refused the key in KEY")

    speakers = {role: Puppet(replies=refused) for role in (LEFT, RIGHT)}
    with pytest.raises(UserError, match="refused the key in KEY"):
        soon(playing(hall(concurrency=1), matches(speakers, 4)))
    assert begun == ["topic0."]


def test_a_stage_that_is_cancelled_while_its_judges_are_waited_for_ends(hall, matches) -> None:
    diary = Diary()
    judge = Slow(diary, 99)
    speakers = {role: Puppet(replies=quiet) for role in (LEFT, RIGHT)}
    stage = hall(concurrency=1, judges={LEFT: judge, RIGHT: judge})

    async def main() -> None:
        task = asyncio.create_task(playing(stage, matches(speakers, 3), diary))
        while len(judge.asked) < 6:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    soon(main())
    assert not diary.rewards


def soon(work: Any) -> Any:
    """Its result, if it ends in time."""
    return asyncio.run(asyncio.wait_for(work, 10))
