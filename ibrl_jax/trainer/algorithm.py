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

Where a dialogue or a judge waits for an endpoint, what need not wait does not (`trainer.beside`):
reference passes run as dialogues end, and a role whose rewards are all in learns while those of
others come. It learns on a copy of its state, which takes the state's place when all rewards are in
and enough of them could be scored: until then no parameter has moved, whatever stops the iteration.

With `pipeline.max_staleness` 1 the dialogues of k + 1 are played while k's updates run, by the
parameters before them, and the update of k + 1 corrects for it (`trainer.learning`). After an
iteration that ends with a checkpoint nothing is under way, so the checkpoint is all there is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import jax
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_hall
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Match, playing
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params
from ibrl_jax.parallel.hosts import ALONE, Hosts
from ibrl_jax.rl.advantages import Credits, credit, votes_of
from ibrl_jax.rl.batches import RoleBatch, Row, build, rows_of
from ibrl_jax.rl.learner import Hyper, Learner, LearnerState, check_finite
from ibrl_jax.rl.pool import OpponentPool
from ibrl_jax.rl.schedule import updates_now
from ibrl_jax.trainer import build as builders
from ibrl_jax.trainer.beside import Ahead, Course, References
from ibrl_jax.trainer.clock import Clock
from ibrl_jax.trainer.dialogues import LIVE, PAST, check_coverage, play_shared, seat
from ibrl_jax.trainer.iteration import Iteration, Rollout
from ibrl_jax.trainer.learning import Learned, Lesson, learn, parts
from ibrl_jax.trainer.placing import at_home, places
from ibrl_jax.trainer.weights import Weights


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
            for name in self._sat_by(role):
                cast.load(role, name, at_home(frozen[name]))
        self._threads = ThreadPoolExecutor(
            max_workers=len(self.roles), thread_name_prefix="learner"
        )
        self._aside = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reference")
        self._ahead: Rollout | None = None
        self._warming: list[Future[None]] = []
        self._warming_since: float | None = None
        self.warmed: tuple[int, float] | None = None
        """Programs that should be all, and the seconds until they were there; None: not yet."""
        self.clock = Clock()
        if config.pipeline.max_staleness and not self._at_liberty:
            raise UserError(
                "config.pipeline.max_staleness=1 needs one process and one device a role, since "
                "programs of several devices must not run side by side; set it to 0"
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
        """Programs of the sampler and the learner, built so far."""
        return self.cast.compilations + self.learner.compilations

    @property
    def compiled_late(self) -> int:
        """Programs built since all that should be needed were there; there should be none."""
        return 0 if self.warmed is None else self.compilations - self.warmed[0]

    def warm(self) -> None:
        """Compile everything that an iteration can need; several processes in the same order."""
        self.begin_warm()
        self._await_warm()

    def begin_warm(self) -> None:
        """Compile what dialogues need, then start to compile what the updates need.

        One after the other: from a cache on disk both are tracing, which threads cannot share.
        """
        began = time.perf_counter()
        self.cast.warm()
        owners = {self.places[owner]: owner for owner in self.members}
        # States of one place have one shape: one program serves all.
        work = [partial(self._warm_learner, owner) for owner in owners.values()]
        if self.hosts.count > 1:
            for one in work:
                one()
        else:
            self._warming = [self._threads.submit(one) for one in work]
        self._warming_since = began

    def _await_warm(self) -> None:
        """What the updates need is there from here on."""
        for job in self._warming:
            job.result()
        if self._warming_since is not None:
            self.warmed = (self.compilations, time.perf_counter() - self._warming_since)
        self._warming, self._warming_since = [], None

    def iterate(self) -> Iteration:
        """One iteration.

        Raises:
            UserError: too little could be scored; all parameters are as before.
            TrainingError: a loss or gradient is not finite, and that role's parameters are as
                before; or these themselves are no longer finite.
        """
        clock = self.clock
        clock.lap("other")
        rollout, self._ahead = self._ahead or self._set_out(self.iteration), None
        clock.lap("prepare")
        trajectories, within = self._arrive(rollout)
        check_coverage(trajectories, self.iteration, self.config.rewards.min_coverage)
        clock.lap("rollout")
        if self._may_run_ahead():
            self._ahead = self._set_out(self.iteration + 1)
            self._run_ahead(self._ahead)
            clock.lap("prepare")
        staleness = max(self.version(o) - before for o, before in rollout.versions.items())
        self._await_warm()
        clock.lap("compile")
        credits, learned = self._update(trajectories, rollout)
        self._stock_pools()
        clock.lap("update")
        done = Iteration(
            iteration=self.iteration,
            trajectories=trajectories,
            credits=credits,
            updates={owner: one.metrics for owner, one in learned.items()},
            drawn=rollout.drawn,
            staleness=staleness,
            seconds=clock.take(),
            within=within | parts(learned, [r.seconds for r in rollout.course.references.values()]),
        )
        self.iteration += 1
        return done

    @property
    def settled(self) -> bool:
        """Whether nothing is under way: what a checkpoint would hold now is all there is."""
        return self._ahead is None

    def close(self) -> None:
        """Break off what is under way."""
        under_way, self._ahead = self._ahead, None
        if under_way is not None and under_way.ahead is not None:
            under_way.ahead.cancel()

    def rollouts(self) -> list[Trajectory]:
        """The dialogues of this iteration; nothing else changes."""
        drawn = self._seat_policies(self.iteration)
        return self._play(self._matches(self.iteration, drawn), None)

    def learn(
        self, trajectories: Sequence[Trajectory]
    ) -> tuple[Credits, dict[Role, dict[str, float]]]:
        """Credit every live seat, then update each role whose turn it is.

        Gives the credits and each update's metrics.
        """
        credits, learned = self._update(trajectories, None)
        return credits, {owner: one.metrics for owner, one in learned.items()}

    # Dialogues

    def _set_out(self, iteration: int) -> Rollout:
        """Seat everybody for an iteration, by the policies as they are now."""
        drawn = self._seat_policies(iteration)
        matches = self._matches(iteration, drawn)
        return Rollout(
            drawn=drawn,
            versions={owner: self.version(owner) for owner in self.members},
            matches=matches,
            course=self._course(iteration, len(matches)),
        )

    def _arrive(self, rollout: Rollout) -> tuple[list[Trajectory], dict[str, float]]:
        """The dialogues when they are over, and the seconds of their parts."""
        course, ahead = rollout.course, rollout.ahead
        began = time.perf_counter()
        with jax.profiler.TraceAnnotation("rollout"):
            if ahead is None:
                course.begin(self.cast.engines)
                trajectories = self._play(rollout.matches, course)
            else:
                trajectories = ahead.result()
        waited = time.perf_counter() - began
        return trajectories, course.seconds(waited, waited if ahead is None else ahead.seconds)

    def _run_ahead(self, rollout: Rollout) -> None:
        rollout.course.begin(self.cast.engines)
        rollout.ahead = Ahead(partial(playing, self._hall, rollout.matches, rollout.course))

    def _play(self, matches: Sequence[Match], course: Course | None) -> list[Trajectory]:
        return play_shared(self._hall, matches, course, self.hosts, self.iteration)

    def _seat_policies(self, iteration: int) -> dict[Role, int | None]:
        """Load the live policies, and one past snapshot of each role that has one."""
        drawn: dict[Role, int | None] = {}
        for role in self.learners:
            self.cast.load(role, LIVE, at_home(self.params(role)))
            pool = self.pools[role]
            drawn[role] = past = (
                pool.sample(self.config.seed, iteration, below=self.version(role))
                if self.config.stabilise.pool
                else None
            )
            if past is not None:
                self.cast.load(role, PAST, at_home(pool.params(past)))
        return drawn

    def _matches(self, iteration: int, drawn: Mapping[Role, int | None]) -> list[Match]:
        live = {role: self.version(role) for role in self.learners}
        return seat(
            self.config, self.cast, iteration, self.learners, self._frozen, live=live, past=drawn
        )

    # What runs beside what

    def _course(self, iteration: int, count: int) -> Course:
        """What can run beside an iteration's dialogues, and in which order judges may ask."""
        due = {o: roles for o, roles in self.members.items() if self._turn_at(iteration, o)}
        flags = self.config.isolation
        coupled = flags["reward"] == "shared" or flags["advantage"] == "joint"
        early = self.config.pipeline.early_updates and not self.config.pipeline.max_staleness
        order = [] if coupled else [role for roles in due.values() for role in roles]
        return Course(
            count=count,
            ranks={r: order.index(r) + 1 if r in order else len(order) + 1 for r in self.roles},
            members=due,
            references={o: self._references(o) for o in due} if self._beside else {},
            early=[*due] if early and not coupled and self._at_liberty else [],
            learn=self._learn_aside,
        )

    def _references(self, owner: Role) -> References:
        start, temperature = self._start[owner], self.hyper[owner].temperature

        def score(batch: RoleBatch) -> jax.Array:
            return self.learner.reference_logp(start.trained, start.frozen, batch, temperature)

        return References(score, self._batching, self._aside)

    def _learn_aside(
        self, owner: Role, trajectories: list[Trajectory], course: Course
    ) -> Future[Learned | None]:
        """Start an owner's update on a copy of its state; None if it has nothing to learn from."""

        warming = list(self._warming)

        def work() -> Learned | None:
            for job in warming:
                job.result()
            credits = self._credit(trajectories)
            lesson = self._lesson(owner, trajectories, credits, course, aside=True)
            return None if lesson is None else self._learn(owner, lesson)

        return self._threads.submit(work)

    @property
    def _at_liberty(self) -> bool:
        """Whether programs may run in whatever order: one process, and one device a role.

        Two programs on the same several devices can wait for each other for ever, and so can those
        of several processes in another order.
        """
        return self.hosts.count == 1 and all(p.mesh is None for p in self.places.values())

    @property
    def _beside(self) -> bool:
        """Whether reference passes run beside the dialogues: where these wait for an endpoint.

        Otherwise engines leave no core idle.
        """
        roles = self.config.roles.values()
        asked = any(role.judge for role in roles) or any(
            name.startswith("api:") for role in roles if not role.train for name in role.counterpart
        )
        return asked and self._at_liberty

    def _may_run_ahead(self) -> bool:
        """Whether the next iteration's dialogues may be under way when this one ends."""
        config, following = self.config, self.iteration + 1
        last = following == config.iterations or following % config.run.checkpoint_every == 0
        return config.pipeline.max_staleness > 0 and not last

    # Updates

    def _turn_of(self, owner: Role) -> bool:
        """u_i(k): whether a role updates now."""
        return self._turn_at(self.iteration, owner)

    def _turn_at(self, iteration: int, owner: Role) -> bool:
        own = self.config.roles[owner]
        if not self.config.stabilise.stagger:
            return True
        return updates_now(iteration, own.update_every, own.update_offset)

    def _update(
        self, trajectories: Sequence[Trajectory], rollout: Rollout | None
    ) -> tuple[Credits, dict[Role, Learned]]:
        """The updates of this iteration: those that were started, and those that were not.

        They share nothing, and run side by side but on one mesh of several devices, and in one
        process.
        """
        credits = self._credit(trajectories)
        jobs: dict[Role, Callable[[], Learned | None]] = {}
        for owner in self.members:
            if not self._turn_of(owner):
                continue
            if rollout is not None and owner in rollout.course.started:
                jobs[owner] = rollout.course.started[owner].result
                continue
            course = None if rollout is None else rollout.course
            lesson = self._lesson(owner, trajectories, credits, course)
            if lesson is None:
                continue
            if rollout is not None and self.version(owner) > rollout.versions[owner]:
                lesson = replace(lesson, behind=True)
            work = partial(self._learn, owner, lesson)
            jobs[owner] = self._threads.submit(work).result if self._side_by_side else work
        learned: dict[Role, Learned] = {}
        for owner, job in jobs.items():
            one = job()
            if one is not None:
                learned[owner], self.states[owner] = one, one.state
        for owner, one in learned.items():
            check_finite(one.metrics, owner)
        return credits, learned

    def _credit(self, trajectories: Sequence[Trajectory]) -> Credits:
        votes = votes_of(trajectories, self.config.isolation["mask"])
        return credit(votes, builders.advantage_settings(self.config))

    def _lesson(
        self,
        owner: Role,
        trajectories: Sequence[Trajectory],
        credits: Credits,
        course: Course | None,
        *,
        aside: bool = False,
    ) -> Lesson | None:
        """What an owner learns from these dialogues; None if that is nothing."""
        batch = self._batch(owner, trajectories, credits)
        references = None if course is None else course.references.get(owner)
        if batch is None:
            return None
        if references is None:
            return Lesson(batch=batch, aside=aside)
        rows = self._rows(owner, trajectories, credits)
        known = partial(references.of, rows, self._batching)
        return Lesson(batch=batch, reference=known, aside=aside)

    def _rows(self, owner: Role, trajectories: Sequence[Trajectory], credits: Credits) -> list[Row]:
        return [r for role in self.members[owner] for r in rows_of(trajectories, credits, role)]

    def _batch(
        self, owner: Role, trajectories: Sequence[Trajectory], credits: Credits
    ) -> RoleBatch | None:
        return build(self._rows(owner, trajectories, credits), self._batching)

    def _learn(self, owner: Role, lesson: Lesson) -> Learned:
        return learn(
            self.learner,
            self.states[owner],
            self._start[owner],
            self.places[owner],
            self.hyper[owner],
            lesson,
            micro_batch=self._batching.micro_batch,
            epochs=self.config.loss.epochs,
            truncate=self.config.pipeline.truncate,
        )

    def _warm_learner(self, owner: Role) -> None:
        shape = self._batching
        rows, micro, views = shape.rows, shape.micro_batch, shape.places
        place = self.places[owner]
        batches = [place.abstract_batch(rows, n, micro, views) for n in shape.lengths]
        frozen = self._start[owner].frozen
        self.learner.warmup(self.states[owner], frozen, batches, self.hyper[owner], True)
        if self._beside:
            self._references(owner).warm()

    @property
    def _side_by_side(self) -> bool:
        """Whether updates may run so: see `_at_liberty`. They also may with a mesh a role."""
        if self.hosts.count > 1:
            return False
        meshes = [self.places[owner].mesh for owner in self.members]
        return None in meshes or len(set(meshes)) == len(meshes)

    def _sat_by(self, role: Role) -> list[str]:
        """The frozen policies that may hold a role's seat, by name."""
        settings = self.config.roles[role]
        return [] if settings.train else [n for n in self._frozen if n in settings.counterpart]

    def _stock_pools(self) -> None:
        if not self.config.stabilise.pool or len(self.learners) < 2:
            return  # a lone learner is live in every dialogue
        for role in self.learners:
            version, versions = self.version(role), self.pools[role].versions
            newest = versions[-1] if versions else 0
            if version // self.config.pool.every > newest // self.config.pool.every:
                self.pools[role].add(version, self.params(role))
