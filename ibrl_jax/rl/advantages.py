"""Group-relative advantages, a role at a time (paper, section 4.1).

For role i and one draw q of a scenario, over the scored rollouts G(i, q) that its live policy
played,

    A(i, g) = (R(i, g) - mean(i, q)) / (std(i, q) + eps)
    mean(i, q) = sum_g R(i, g) / |G(i, q)|
    std(i, q)^2 = sum_g (R(i, g) - mean(i, q))^2 / (|G(i, q)| - ddof)

A group is a draw's, found by its id and never by a position in a list or by the text of a prompt.
One trajectory is one vote, however many turns it has. A failed reward is no member, and neither is
a past or frozen seat, or one with no token that is trained on, such as that of a role whose
counterpart ended the dialogue before it spoke: what is left out of the loss is left out of mean and
deviation. In a group of fewer than two members, or without variance, all advantages are
exactly 0.

The sums are float64 on the host, of rewards less the group's smallest, and exactly rounded
(`fsum`): equal rewards give exactly 0, tiny differences on a large offset keep their digits, and
the order of the votes changes nothing.

The two ablations change one term each: `reward = shared` replaces R(i, g) by the mean over the
roles of that dialogue; `advantage = joint` pools the rewards of all live roles of a draw in one
group.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Pending, Scored

SeatId = tuple[str, str, int]
"""(role, draw, rollout): one seat of one dialogue."""


@dataclass(frozen=True, kw_only=True)
class AdvantageSettings:
    """`reward`, `advantage`: the isolation flags. `ddof`: 0 or 1. `eps`: in units of the reward."""

    reward: Literal["own", "shared"]
    advantage: Literal["role", "joint"]
    ddof: int
    eps: float

    def __post_init__(self) -> None:
        if self.reward not in ("own", "shared"):
            raise UserError(f"isolation.reward is `{self.reward}`: it must be `own` or `shared`.")
        if self.advantage not in ("role", "joint"):
            raise UserError(
                f"isolation.advantage is `{self.advantage}`: it must be `role` or `joint`."
            )
        if self.ddof not in (0, 1):
            raise UserError(f"advantage.ddof is {self.ddof}: it must be 0 or 1.")
        if not (self.eps >= 0.0 and math.isfinite(self.eps)):
            raise UserError(f"advantage.eps is {self.eps}: it must be a finite number, 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Vote:
    """What one seat of one dialogue was paid; `reward` is None when it could not be scored.

    `live` says whether the role's policy under training held the seat, and has a token there that
    is trained on. Other seats cast no vote; their rewards are read by `reward = shared` alone.
    """

    role: str
    draw: str
    rollout: int
    live: bool
    reward: float | None

    @property
    def seat(self) -> SeatId:
        return (self.role, self.draw, self.rollout)


@dataclass(frozen=True, kw_only=True)
class Credit:
    """What one live, scored seat is credited with.

    `baseline` and `spread` are its group's mean and std (with ddof). `degenerate` marks a group
    that can say nothing, as against a member that happens to sit on the mean.
    """

    advantage: float
    baseline: float
    spread: float
    degenerate: bool


@dataclass(frozen=True, kw_only=True)
class RoleStats:
    """Counts for one role: live seats (as in `Vote`), those that were scored, groups with any.

    `mean_spread` is the mean std over the groups, degenerate ones counting as 0; `mean_reward` is
    over the scored live seats (the mixed reward under `shared`). Both are 0 where there is nothing.
    """

    live: int
    scored: int
    groups: int
    degenerate: int
    mean_spread: float
    mean_reward: float


@dataclass(frozen=True, kw_only=True)
class Credits:
    """`seats` holds exactly the live, scored seats; `stats` every role that has a vote."""

    seats: Mapping[SeatId, Credit]
    stats: Mapping[str, RoleStats]


def votes_of(trajectories: Iterable[Trajectory], mask: str) -> list[Vote]:
    """One vote for every rewarded seat; live are the roles of the matchup that have something to
    learn from under `mask`, the isolation flag.

    Raises ValueError when a reward is still pending.
    """
    votes = []
    for t in trajectories:
        for role, reward in t.rewards.items():
            if isinstance(reward, Pending):
                raise ValueError(f"{role} of draw {t.draw}, rollout {t.rollout}: reward pending")
            votes.append(
                Vote(
                    role=role,
                    draw=t.draw,
                    rollout=t.rollout,
                    live=role in t.matchup and role in t.views and t.views[role].trains(mask),
                    reward=reward.value if isinstance(reward, Scored) else None,
                )
            )
    return votes


def credit(votes: Sequence[Vote], settings: AdvantageSettings) -> Credits:
    """Advantages of the live, scored seats (the module's equation), and counts for each role.

    Raises ValueError for a seat that votes twice, a reward that is not finite, and, under
    `reward = shared`, a dialogue without a vote of every role.
    """
    _check(votes)
    rewards = _shared(votes) if settings.reward == "shared" else {v.seat: v.reward for v in votes}

    groups: dict[Hashable, dict[SeatId, float]] = defaultdict(dict)
    for vote in votes:
        reward = rewards[vote.seat]
        if vote.live and reward is not None:
            key = vote.draw if settings.advantage == "joint" else (vote.role, vote.draw)
            groups[key][vote.seat] = reward

    seats: dict[SeatId, Credit] = {}
    for members in groups.values():
        seats |= _normalise(members, settings.ddof, settings.eps)
    roles = dict.fromkeys(v.role for v in votes)
    return Credits(seats=seats, stats={r: _stats(r, votes, rewards, seats) for r in roles})


def _check(votes: Sequence[Vote]) -> None:
    seen: set[SeatId] = set()
    for vote in votes:
        if vote.seat in seen:
            raise ValueError(
                f"two votes for {vote.role} of draw {vote.draw}, rollout {vote.rollout}"
            )
        if vote.reward is not None and not math.isfinite(vote.reward):
            raise ValueError(
                f"{vote.role} of draw {vote.draw}, rollout {vote.rollout}: reward {vote.reward} is "
                "no score; a reward that failed is None"
            )
        seen.add(vote.seat)


def _shared(votes: Sequence[Vote]) -> dict[SeatId, float | None]:
    """Each seat's reward is the mean over the roles of its dialogue; None if any of them failed."""
    roles = {v.role for v in votes}
    dialogues: dict[tuple[str, int], dict[str, float | None]] = defaultdict(dict)
    for vote in votes:
        dialogues[vote.draw, vote.rollout][vote.role] = vote.reward
    mixed: dict[SeatId, float | None] = {}
    for (draw, rollout), paid in dialogues.items():
        if len(roles) < 2 or paid.keys() != roles:
            raise ValueError(
                f"draw {draw}, rollout {rollout}: a shared reward needs the reward of every role, "
                f"and there is only that of {', '.join(sorted(paid))}"
            )
        scored = [r for r in paid.values() if r is not None]
        mean = math.fsum(scored) / len(roles) if len(scored) == len(roles) else None
        mixed |= {(role, draw, rollout): mean for role in paid}
    return mixed


def _normalise(members: Mapping[SeatId, float], ddof: int, eps: float) -> dict[SeatId, Credit]:
    """The credits of one group."""
    size, least = len(members), min(members.values())
    offsets = {seat: reward - least for seat, reward in members.items()}
    centre = math.fsum(offsets.values()) / size
    degenerate = not any(offsets.values())  # a lone member is its own least
    spread = 0.0
    if not degenerate:
        # Scaled by the largest offset, so that no square leaves the range of a float64.
        scale = max(offsets.values())
        squares = math.fsum(((o - centre) / scale) ** 2 for o in offsets.values())
        spread = scale * math.sqrt(squares / (size - ddof))
    return {
        seat: Credit(
            advantage=0.0 if degenerate else (offset - centre) / (spread + eps),
            baseline=least + centre,
            spread=spread,
            degenerate=degenerate,
        )
        for seat, offset in offsets.items()
    }


def _stats(
    role: str,
    votes: Sequence[Vote],
    rewards: Mapping[SeatId, float | None],
    seats: Mapping[SeatId, Credit],
) -> RoleStats:
    # All seats of a role in one draw share one group, also when other roles are in it.
    groups = {draw: c for (r, draw, _), c in seats.items() if r == role}
    paid = [r for seat, r in rewards.items() if seat in seats and seat[0] == role and r is not None]
    return RoleStats(
        live=sum(v.live and v.role == role for v in votes),
        scored=len(paid),
        groups=len(groups),
        degenerate=sum(c.degenerate for c in groups.values()),
        mean_spread=math.fsum(c.spread for c in groups.values()) / max(len(groups), 1),
        mean_reward=math.fsum(paid) / max(len(paid), 1),
    )
