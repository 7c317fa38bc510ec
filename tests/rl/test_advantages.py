"""Credit is a role's own, a draw's own, and exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef, RoleView, Segment
from ibrl_jax.domains.base import Outcome, Scenario
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Failed, Pending, Scored
from ibrl_jax.rl.advantages import AdvantageSettings, Vote, credit, votes_of


def settings(**changes) -> AdvantageSettings:
    base: dict[str, Any] = dict(reward="own", advantage="role", ddof=1, eps=0.0)
    return AdvantageSettings(**(base | changes))


def votes(role, rewards, *, draw="d", past=()) -> list[Vote]:
    return [
        Vote(role=role, draw=draw, rollout=g, live=g not in past, reward=r)
        for g, r in enumerate(rewards)
    ]


def of(credits, role, draw="d") -> dict[int, float]:
    return {g: c.advantage for (r, d, g), c in credits.seats.items() if (r, d) == (role, draw)}


def test_two_roles_of_one_draw_are_two_groups():
    got = credit(votes("agent0", [1, 0.9]) + votes("agent1", [0.5, 0.8]), settings())
    assert of(got, "agent0") == pytest.approx({0: 0.7071, 1: -0.7071}, abs=1e-4)
    assert of(got, "agent1") == pytest.approx({0: -0.7071, 1: 0.7071}, abs=1e-4)


@given(st.randoms(use_true_random=False))
def test_order_of_votes_changes_no_bit(random):
    given_ = votes("a", [0.1, 0.7, 0.3, 0.2]) + votes("b", [3, 1, 2, 9], draw="e")
    shuffled = random.sample(given_, len(given_))
    assert credit(shuffled, settings()).seats == credit(given_, settings()).seats


def test_zero_sum_rewards_leave_nothing_when_isolated_and_favour_the_winner_when_joint():
    both = votes("agent0", [1] * 4) + votes("agent1", [-1] * 4)
    isolated = credit(both, settings())
    assert {c.advantage for c in isolated.seats.values()} == {0.0}
    joint = credit(both, settings(advantage="joint"))
    assert list(of(joint, "agent0").values()) == pytest.approx([math.sqrt(7 / 8)] * 4)
    assert list(of(joint, "agent1").values()) == pytest.approx([-math.sqrt(7 / 8)] * 4)
    assert joint.stats["agent0"].degenerate == 0
    assert isolated.stats["agent0"].degenerate == 1


def test_other_roles_rewards_change_no_bit_unless_joint_or_shared():
    mine, calm, wild = votes("a", [1, 2, 4]), votes("b", [0, 0, 0]), votes("b", [9, -9, None])
    assert of(credit(mine + calm, settings()), "a") == of(credit(mine + wild, settings()), "a")
    for flag in (dict(advantage="joint"), dict(reward="shared")):
        assert of(credit(mine + calm, settings(**flag)), "a") != of(
            credit(mine + wild, settings(**flag)), "a"
        )


def test_past_seat_has_no_row_and_no_vote():
    got = credit(
        votes("agent0", [1, 2, 3, 6]) + votes("agent1", [1, 3, 100, -100], past={2, 3}), settings()
    )
    assert of(got, "agent1") == pytest.approx({0: -0.7071, 1: 0.7071}, abs=1e-4)
    assert got.seats["agent1", "d", 0].baseline == 2
    assert got.seats["agent0", "d", 0].baseline == 3
    assert got.stats["agent1"].live == 2
    assert got.stats["agent0"].live == 4


def test_a_failed_reward_has_no_row_and_no_vote():
    got = credit(votes("agent0", [1, 3, 2, None]), settings())
    assert of(got, "agent0") == {0: -1.0, 1: 1.0, 2: 0.0}
    assert (got.stats["agent0"].live, got.stats["agent0"].scored) == (4, 3)
    assert not got.seats["agent0", "d", 2].degenerate  # on the mean, of a group with a signal


def test_one_trajectory_has_one_vote():
    got = credit(votes("agent0", [1, 0, 0, 0]), settings())
    assert got.seats["agent0", "d", 0].baseline == 0.25
    assert of(got, "agent0") == pytest.approx({0: 1.5, 1: -0.5, 2: -0.5, 3: -0.5})


def test_a_second_vote_of_a_seat_is_refused():
    with pytest.raises(ValueError, match="two votes for a of draw d, rollout 1"):
        credit(votes("a", [1, 2]) + votes("a", [1, 2])[1:], settings())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match="no score"):
        credit(votes("a", [1, bad]), settings())


def test_same_scenario_drawn_twice_is_two_groups():
    got = credit(votes("a", [0, 1], draw="d1") + votes("a", [10, 11], draw="d2"), settings())
    assert of(got, "a", "d1") == of(got, "a", "d2")
    assert got.seats["a", "d2", 0].baseline == 10.5
    assert got.stats["a"].groups == 2


@pytest.mark.parametrize(
    "rewards", [[5.0], [5.0, None, None], [0.1] * 3, [float(np.float32(0.7))] * 4]
)
def test_lone_and_equal_rewards_give_exactly_zero(rewards):
    got = credit(votes("a", rewards), settings())
    assert {c.advantage for c in got.seats.values()} == {0.0}
    assert all(c.degenerate and c.spread == 0.0 for c in got.seats.values())
    assert (got.stats["a"].groups, got.stats["a"].degenerate) == (1, 1)


def test_tiny_differences_on_a_large_offset_keep_their_precision():
    steps = np.array([0.0, 1.0, 3.0])  # in units in the last place of the offset
    got = of(credit(votes("a", 1e6 + steps * np.spacing(1e6)), settings()), "a")
    expected = (steps - steps.mean()) / steps.std(ddof=1)
    assert list(got.values()) == pytest.approx(expected.tolist(), abs=1e-12)


@given(
    st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1, max_size=8),
    st.sampled_from([0, 1]),
    st.sampled_from([0.0, 1e-6]),
)
def test_advantages_are_finite_centred_and_at_most_of_unit_deviation(rewards, ddof, eps):
    got = np.array(
        list(of(credit(votes("a", rewards), settings(ddof=ddof, eps=eps)), "a").values())
    )
    assert np.isfinite(got).all()
    assert abs(got.sum()) < 1e-9
    assert (got**2).sum() <= (len(rewards) - ddof) * (1 + 1e-9) or len(rewards) == 1


def test_ddof_and_eps_enter_as_named():
    assert of(credit(votes("a", [0, 2]), settings(ddof=0)), "a") == {0: -1.0, 1: 1.0}
    assert of(credit(votes("a", [0, 2]), settings(ddof=0, eps=1.0)), "a") == {0: -0.5, 1: 0.5}


def test_shared_reward_is_the_mean_of_the_dialogue_and_reads_a_past_seat_that_casts_no_vote():
    both = votes("a", [1, 3]) + votes("b", [5, 1], past={0, 1})
    got = credit(both, settings(reward="shared"))
    assert of(got, "a") == pytest.approx({0: 0.7071, 1: -0.7071}, abs=1e-4)  # (3, 2), not (1, 3)
    assert of(got, "b") == {}
    assert got.stats["a"].mean_reward == 2.5


def test_shared_reward_fails_with_either_of_its_parts():
    got = credit(votes("a", [1, 2, 3]) + votes("b", [1, None, 3]), settings(reward="shared"))
    assert set(of(got, "a")) == set(of(got, "b")) == {0, 2}


def test_shared_reward_without_the_other_seat_is_refused():
    with pytest.raises(ValueError, match="needs the reward of every role"):
        credit(votes("a", [1, 2]) + votes("b", [1]), settings(reward="shared"))


def test_a_third_role_is_one_more_group():
    got = credit(votes("a", [0, 1]) + votes("b", [1, 0]) + votes("c", [2, 2]), settings())
    assert of(got, "c") == {0: 0.0, 1: 0.0}
    assert len(got.stats) == 3
    mean = credit(
        votes("a", [0, 1]) + votes("b", [1, 0]) + votes("c", [2, 5]), settings(reward="shared")
    )
    assert mean.stats["b"].mean_reward == pytest.approx(1.5)


def test_stats_count_groups_and_average_their_spread():
    got = credit(votes("a", [0, 2], draw="x") + votes("a", [7, 7], draw="y"), settings(ddof=0))
    s = got.stats["a"]
    assert (s.groups, s.degenerate, s.mean_spread, s.mean_reward) == (2, 1, 0.5, 4.0)


def view(role: str, segments: Sequence[Segment]) -> RoleView:
    segment = np.array(segments, np.int8)
    own = segment == Segment.OWN
    return RoleView(
        role=role,
        policy=PolicyRef(id=role, seat="live", version=0),
        ids=np.zeros(len(own), np.int32),
        segment=segment,
        turn_index=np.zeros(len(own), np.int32),
        loss_mask=own.astype(np.int8),
        behaviour_logp=np.zeros(len(own), np.float32),
    )


SPOKE = (Segment.TEMPLATE, Segment.COUNTERPART, Segment.OWN)


def trajectory(*, views: Mapping[str, Sequence[Segment]] = {"a": SPOKE}, **rewards) -> Trajectory:
    return Trajectory(
        scenario=Scenario(id="s", cluster="s", public={}, private={}),
        draw="d",
        rollout=0,
        first="a",
        matchup=frozenset({"a"}),
        speakers={},
        turns=(),
        views={role: view(role, segments) for role, segments in views.items()},
        outcome=Outcome(end_reason="agreed", success=True),
        rewards=rewards,
        retries={},
    )


def test_votes_of_a_trajectory_are_live_by_matchup_and_none_where_the_judge_failed():
    got = votes_of([trajectory(a=Scored(value=0.5), b=Failed(reason="time-out"))], "own")
    assert [(v.role, v.live, v.reward) for v in got] == [("a", True, 0.5), ("b", False, None)]
    with pytest.raises(ValueError, match="pending"):
        votes_of([trajectory(a=Pending())], "own")


@pytest.mark.parametrize(
    "heard, mask, live",
    [
        ((Segment.TEMPLATE, Segment.COUNTERPART), "own", False),
        ((Segment.TEMPLATE, Segment.COUNTERPART), "all", True),
        ((Segment.TEMPLATE,), "all", False),
        (SPOKE, "own", True),
    ],
)
def test_a_seat_with_nothing_to_learn_from_has_no_vote(heard, mask, live):
    (vote,) = votes_of([trajectory(views={"a": heard}, a=Scored(value=0.0))], mask)
    assert (vote.live, vote.reward) == (live, 0.0)


def test_who_never_spoke_moves_nobody_elses_advantage():
    spoke = [
        replace(trajectory(a=Scored(value=reward)), rollout=n)
        for n, reward in enumerate((0.2, 0.6))
    ]
    silent = replace(trajectory(views={"a": (Segment.TEMPLATE,)}, a=Scored(value=0.0)), rollout=2)
    alone = credit(votes_of(spoke, "own"), settings())
    assert credit(votes_of([*spoke, silent], "own"), settings()).seats == alone.seats


@pytest.mark.parametrize(
    "bad", [dict(reward="both"), dict(advantage="group"), dict(ddof=2), dict(eps=-1.0)]
)
def test_a_bad_setting_is_named(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        settings(**bad)
