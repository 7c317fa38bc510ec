"""Who follows a stage hears of every dialogue and every reward, and says who is judged first."""

from __future__ import annotations

from typing import Any

import pytest

from ibrl_jax.dialogue.loop import Watch, play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.endpoints.errors import EndpointError, Kind
from ibrl_jax.endpoints.lane import RANK
from ibrl_jax.rewards.types import Case, Failed, Reward, Scored
from tests.dialogue.fakes import LEFT, RIGHT, Puppet, quiet


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
