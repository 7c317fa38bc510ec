"""Algorithm 1: rollouts, rewards, advantages, updates, pool.

For iteration k:

1. Q scenarios are drawn, each with G rollouts; each rollout draws who is live in it. Past seats of
   a role are held by one snapshot from its pool.
2. All dialogues are played; each is judged as it ends.
3. A role's advantages come from its own scored rewards, a draw at a time.
4. Each role whose turn it is updates; whatever belongs to another role is not touched.
5. Every so many updates a role's policy enters its pool.

All that a run must remember is `Algorithm.states` (the learners'), `Algorithm.pools` and
`Algorithm.iteration`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
from ml_collections import ConfigDict

from ibrl_jax.dialogue.agents import Speaker
from ibrl_jax.dialogue.build import at_once, build_hall
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Match, play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.hosts import ALONE, Hosts
from ibrl_jax.rewards.types import Failed
from ibrl_jax.rl.advantages import Credits, credit, votes_of
from ibrl_jax.rl.batches import RoleBatch, build, rows_of
from ibrl_jax.rl.learner import Hyper, Learner, LearnerState, check_finite
from ibrl_jax.rl.pool import OpponentPool
from ibrl_jax.rl.schedule import updates_now
from ibrl_jax.trainer import build as builders
from ibrl_jax.trainer.draws import draw_scenarios, live_roles
from ibrl_jax.trainer.placing import at_home, places
from ibrl_jax.trainer.weights import Weights

LIVE, PAST = "live", "past"


@dataclass(kw_only=True)
class Iteration:
    """What one iteration did, for whoever writes it down."""

    iteration: int
    trajectories: list[Trajectory]
    credits: Credits
    updates: dict[Role, dict[str, float]]
    drawn: dict[Role, int | None]
    seconds: dict[str, float] = field(default_factory=dict)


class Algorithm:
    """The state of a run between iterations, and the step from one to the next."""

    def __init__(
        self,
        config: ConfigDict,
        cast: Cast,
        start: Weights,
        frozen: Mapping[str, Params],
        hosts: Hosts = ALONE,
    ) -> None:
        """Every role at iteration 0.

        Args:
            start: both roles' first values, and each one's own reference for good. A base under
                adapters is one for all roles, references, snapshots and engines of a mesh.
            frozen: what trained of the counterparts that are policies, by their name in the config.
            hosts: the processes that play an iteration's dialogues between them.
        """
        self.config = config
        self.hosts = hosts
        self.cast = cast
        self.roles: tuple[Role, ...] = cast.domain.roles
        self.learners = tuple(role for role in self.roles if config.roles[role].train)
        # Who owns a learner state, and for which roles: each for itself, or one for all of them.
        self.members: dict[Role, tuple[Role, ...]] = {role: (role,) for role in self.learners}
        if config.isolation["update"] == "tied":
            self.members = {self.learners[0]: self.learners}
        self.iteration = 0
        self.places = places(config, cast.speech, self.roles)
        self._start: dict[Role, Weights] = {
            role: Weights(
                trained=place.trained(start.trained),
                frozen=None if start.frozen is None else place.base(start.frozen),
            )
            for role, place in self.places.items()
        }
        self.learner: Learner = builders.build_learner(config, cast.speech)
        self._batching = builders.batch_settings(config, len(next(iter(self.members.values()))))
        self.hyper: dict[Role, Hyper] = {r: builders.hyper_of(config, r) for r in self.roles}
        self.states: dict[Role, LearnerState] = {
            owner: self.learner.init(self._start[owner].trained) for owner in self.members
        }
        self.pools: dict[Role, OpponentPool] = {
            r: builders.build_pool(config, r) for r in self.learners
        }
        self._hall = build_hall(
            config,
            cast.domain,
            retries=config.rollout.retries,
            concurrency=at_once(config, hosts.count),
            endpoints=cast.endpoints,
        )
        self._frozen = dict(frozen)
        # In one order in every process, here and below: each copy is one that all take part in.
        bases = {place: at_home(self._start[r].frozen) for r, place in self.places.items()}
        for role, place in self.places.items():
            cast.hold(role, bases[place])
            for name, params in frozen.items():
                cast.load(role, name, at_home(params))
        self._threads = ThreadPoolExecutor(
            max_workers=len(self.roles), thread_name_prefix="learner"
        )

    def owner(self, role: Role) -> Role:
        """The role whose learner state holds this role's policy."""
        return next(owner for owner, roles in self.members.items() if role in roles)

    def params(self, role: Role) -> Params:
        """What trains of a role's live policy."""
        return self.states[self.owner(role)].params

    def version(self, role: Role) -> int:
        """How many updates a role's live policy has had."""
        return int(self.states[self.owner(role)].updates)

    @property
    def compilations(self) -> int:
        return self.cast.compilations + self.learner.compilations

    def warm(self) -> None:
        """Compile everything that an iteration can need; several processes in the same order."""
        owners = {self.places[owner]: owner for owner in self.members}
        work = [self.cast.warm]  # states of one place have one shape: one program serves all
        work += [partial(self._warm_learner, owner) for owner in owners.values()]
        if self.hosts.count > 1:
            for one in work:
                one()
            return
        for job in [self._threads.submit(one) for one in work]:
            job.result()

    def iterate(self) -> Iteration:
        """One iteration.

        Raises:
            UserError: too little could be scored.
            TrainingError: a loss or gradient is not finite; that role's parameters are as before.
        """
        clock = _Clock()
        drawn = self._seat_policies()
        matches = self._matches(drawn)
        clock.stage("prepare")
        trajectories = self._play(matches)
        clock.stage("rollout")
        self._check_coverage(trajectories)
        credits, updates = self.learn(trajectories)
        self._stock_pools()
        clock.stage("update")
        done = Iteration(
            iteration=self.iteration,
            trajectories=trajectories,
            credits=credits,
            updates=updates,
            drawn=drawn,
            seconds=clock.seconds,
        )
        self.iteration += 1
        return done

    def rollouts(self) -> list[Trajectory]:
        """The dialogues of this iteration; nothing else changes."""
        return self._play(self._matches(self._seat_policies()))

    def learn(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[Credits, dict[Role, dict[str, float]]]:
        """Credit every live seat, then update each role whose turn it is.

        The roles' updates share nothing, and run side by side but on one mesh of several devices,
        and in one process.
        Gives the credits and each update's metrics.
        """
        credits = credit(votes_of(trajectories), builders.advantage_settings(self.config))
        batches = {
            o: self._batch(o, trajectories, credits) for o in self.members if self._turn_of(o)
        }
        due = {owner: batch for owner, batch in batches.items() if batch is not None}
        if self._side_by_side:
            jobs = {o: self._threads.submit(self._learn, o, batch) for o, batch in due.items()}
            updates = {owner: job.result() for owner, job in jobs.items()}
        else:
            updates = {owner: self._learn(owner, batch) for owner, batch in due.items()}
        for owner, metrics in updates.items():
            check_finite(metrics, owner)
        return credits, updates

    def _play(self, matches: Sequence[Match]) -> list[Trajectory]:
        """All dialogues, in the matches' order; each process plays its share of the draws.

        Raises:
            UserError: a process could not play its share; every process raises it.
        """
        if self.hosts.count == 1:
            return play(self._hall, matches)
        mine: list[Trajectory] = []
        problem = ""
        try:
            mine = play(self._hall, self.hosts.share(matches, key=lambda match: match.draw))
        except UserError as error:  # the others must know, since all save what was finished
            problem = str(error)
        parts = self.hosts.exchange(f"trajectories {self.iteration}", (mine, problem))
        for _, said in parts:
            if said:
                raise UserError(said)
        return [trajectory for part, _ in parts for trajectory in part]

    def _turn_of(self, owner: Role) -> bool:
        """u_i(k): whether a role updates now."""
        own = self.config.roles[owner]
        if not self.config.stabilise.stagger:
            return True
        return updates_now(self.iteration, own.update_every, own.update_offset)

    def _seat_policies(self) -> dict[Role, int | None]:
        """Load the live policies, and one past snapshot of each role that has one."""
        drawn: dict[Role, int | None] = {}
        for role in self.learners:
            self.cast.load(role, LIVE, at_home(self.params(role)))
            pool = self.pools[role]
            drawn[role] = past = (
                pool.sample(self.config.seed, self.iteration, below=self.version(role))
                if self.config.stabilise.pool
                else None
            )
            if past is not None:
                self.cast.load(role, PAST, at_home(pool.params(past)))
        return drawn

    def _matches(self, drawn: Mapping[Role, int | None]) -> list[Match]:
        stocked = [role for role, version in drawn.items() if version is not None]
        matches = []
        for draw in draw_scenarios(self.config, self.cast.domain, self.iteration):
            for rollout in range(self.config.rollout.group):
                live = live_roles(
                    self.config, draw, rollout, self.iteration, self.learners, stocked
                )
                speakers: dict[Role, Speaker] = {}
                for role in self.roles:
                    if role in live:
                        speakers[role] = self._policy(role, LIVE, self.version(role))
                    elif role in self.learners:
                        version = drawn[role]
                        assert version is not None
                        speakers[role] = self._policy(role, PAST, version)
                    else:
                        speakers[role] = self._counterpart(role, draw.counterparts[role])
                matches.append(
                    Match(
                        stage=("train", self.iteration),
                        draw=draw.id,
                        rollout=rollout,
                        scenario=draw.scenario,
                        first=draw.first,
                        matchup=live,
                        speakers=speakers,
                    )
                )
        return matches

    def _policy(self, role: Role, seat: Any, version: int) -> Speaker:
        ref = PolicyRef(id=role, seat=seat, version=version)
        return self.cast.local(role, seat, ref, self.config.roles[role].temperature)

    def _counterpart(self, role: Role, name: str) -> Speaker:
        if name in self._frozen:
            ref = PolicyRef(id=name.partition(":")[2], seat="frozen", version=0)
            return self.cast.local(role, name, ref, self.config.roles[role].temperature)
        return self.cast.named(name, role)

    def _check_coverage(self, trajectories: list[Trajectory]) -> None:
        rewards = [reward for t in trajectories for reward in t.rewards.values()]
        failed = [reward.reason for reward in rewards if isinstance(reward, Failed)]
        coverage = 1 - len(failed) / len(rewards)
        if coverage < self.config.rewards.min_coverage:
            raise UserError(
                f"only {coverage:.0%} of iteration {self.iteration}'s rewards could be scored "
                f"({len(failed)} of {len(rewards)} failed), less than config.rewards.min_coverage; "
                f"the first failure: {failed[0]}"
            )

    def _batch(
        self, owner: Role, trajectories: Sequence[Trajectory], credits: Credits
    ) -> RoleBatch | None:
        rows = [r for role in self.members[owner] for r in rows_of(trajectories, credits, role)]
        return build(rows, self._batching)

    def _learn(self, owner: Role, batch: RoleBatch) -> dict[str, float]:
        """One role's update: its own batch, its own reference, its own optimiser.

        Gives the metrics of the first pass, which is on-policy (loss, KL, entropy, difference
        between sampler and trainer), the clip fractions of the last, and whether all were finite.
        """
        hyper, place, start = self.hyper[owner], self.places[owner], self._start[owner]
        passes = []
        batch = place.batch(batch, self._batching.micro_batch)
        logp = place.done(
            self.learner.reference_logp(start.trained, start.frozen, batch, hyper.temperature)
        )
        batch = batch.replace(reference_logp=place.beside(logp, batch))
        for _ in range(self.config.loss.epochs):
            self.states[owner], metrics = place.done(
                self.learner.update(self.states[owner], start.frozen, batch, hyper)
            )
            passes.append(metrics)
        passes = jax.device_get(passes)
        metrics = dict(passes[0])
        metrics |= {key: passes[-1][key] for key in ("clip_low", "clip_high", "updates")}
        refused = next((one for one in passes if not one["finite"]), None)
        if refused is not None:
            metrics = refused
        return {key: float(value) for key, value in metrics.items()}

    def _warm_learner(self, owner: Role) -> None:
        rows, micro = self._batching.rows, self._batching.micro_batch
        place = self.places[owner]
        batches = [place.abstract_batch(rows, n, micro) for n in self._batching.lengths]
        frozen = self._start[owner].frozen
        self.learner.warmup(self.states[owner], frozen, batches, self.hyper[owner], True)

    @property
    def _side_by_side(self) -> bool:
        """Two programs on the same several devices can wait for each other for ever, and so can
        those of several processes in another order."""
        if self.hosts.count > 1:
            return False
        meshes = [self.places[owner].mesh for owner in self.members]
        return None in meshes or len(set(meshes)) == len(meshes)

    def _stock_pools(self) -> None:
        if not self.config.stabilise.pool:
            return
        for role in self.learners:
            version, versions = self.version(role), self.pools[role].versions
            newest = versions[-1] if versions else 0
            if version // self.config.pool.every > newest // self.config.pool.every:
                self.pools[role].add(version, self.params(role))


class _Clock:
    """Seconds of each stage since the last one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def stage(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[name] = now - self._last
        self._last = now
