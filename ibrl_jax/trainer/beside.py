"""What runs beside an iteration's dialogues, and dialogues that run beside something else.

```
dialogues    |-----------------------|          a dialogue ends: its judges are asked
judges          |----agent0's----|---agent1's---|
reference          |-|  |-|   |-|               of rows of finished dialogues, a micro-batch a time
agent0's update                  |------|       once all rewards that it needs are there
agent1's                                        |------|
```
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Event, Thread
from typing import Any

import jax
import numpy as np

from ibrl_jax.dialogue.loop import Watch
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView
from ibrl_jax.domains.base import Role
from ibrl_jax.rewards.types import Reward
from ibrl_jax.rl.advantages import Credit, SeatId
from ibrl_jax.rl.batches import BatchSettings, RoleBatch, Row, abstract_batch, build
from ibrl_jax.sampler.engine import Engine

_PATIENCE_S = 0.02
"""How long other rewards must let themselves be waited for before an update starts without them:
those of rules are there at once, and a copy of a state would be made for nothing."""

_NO_CREDIT = Credit(advantage=0.0, baseline=0.0, spread=0.0, degenerate=False)


class References:
    """Log-probs of views under one role's start, a micro-batch at a time, in a thread.

    Views come as dialogues end and are grouped in that order, which with local policies alone does
    not depend on the clock.

    Args:
        score: log-probs [b, T] of a batch of one micro-batch.
        batching: the rows of an update.
        thread: where `score` is called.
    """

    def __init__(
        self,
        score: Callable[[RoleBatch], Any],
        batching: BatchSettings,
        thread: ThreadPoolExecutor,
    ) -> None:
        self._score, self._thread = score, thread
        self._batching = replace(
            batching, rows=batching.micro_batch, places=1, lengths=batching.lengths[-1:]
        )
        self._rows: list[Row] = []
        self._jobs: list[Future[dict[SeatId, np.ndarray]]] = []
        self.seconds = 0.0
        """Spent in the thread."""

    def warm(self) -> None:
        """Compile; padding alone is not run."""
        shape = abstract_batch(self._batching.rows, self._batching.lengths[-1])
        self._score(jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shape))

    def add(self, view: RoleView, draw: str, rollout: int) -> None:
        """A finished view; one that no batch can hold is left to whoever builds one."""
        if len(view.ids) > self._batching.lengths[-1]:
            return
        self._rows.append(Row(view=view, draw=draw, rollout=rollout, credit=_NO_CREDIT))
        if len(self._rows) == self._batching.rows:
            self.send()

    def send(self) -> None:
        """Let what was gathered be scored, also if that is less than a micro-batch."""
        rows, self._rows = self._rows, []
        if rows:
            self._jobs.append(self._thread.submit(self._scored, rows))

    def of(self, rows: Sequence[Row], batching: BatchSettings) -> np.ndarray:
        """The log-probs of rows, all of which were added, laid out as their batch [B, T] is."""
        self.send()
        known: dict[SeatId, np.ndarray] = {}
        for job in self._jobs:
            known |= job.result()
        return _laid_out(rows, [known[_seat(row)] for row in rows], batching).behaviour_logp

    def _scored(self, rows: list[Row]) -> dict[SeatId, np.ndarray]:
        began = time.perf_counter()
        labels = [np.full(len(row.view.ids), index, np.float32) for index, row in enumerate(rows)]
        batch = _laid_out(rows, labels, self._batching)
        where = batch.behaviour_logp
        masks = [row.view.loss_mask.astype(np.float32) for row in rows]
        sampled = _laid_out(rows, masks, self._batching).behaviour_logp > 0
        scored = self._score(batch.replace(loss_mask=sampled))
        logp, real = np.asarray(scored), batch.segment_ids > 0
        found = {_seat(row): logp[real & (where == i)] for i, row in enumerate(rows)}
        self.seconds += time.perf_counter() - began
        return found


def _laid_out(
    rows: Sequence[Row], values: Sequence[np.ndarray], batching: BatchSettings
) -> RoleBatch:
    """The batch of rows with other values [T] in the place of their behaviour log-probs.

    All but a first token counts as sampled, so that rows without a word of their own have a batch.
    """
    marked = [
        replace(row.view, behaviour_logp=value, loss_mask=np.arange(len(value)) > 0)
        for row, value in zip(rows, values, strict=True)
    ]
    views = zip(rows, marked, strict=True)
    batch = build([replace(row, view=view) for row, view in views], batching)
    assert batch is not None
    return batch


def _seat(row: Row) -> SeatId:
    return (row.view.role, row.draw, row.rollout)


@dataclass(kw_only=True)
class Course(Watch):
    """Follows an iteration's dialogues, and starts what need not wait for the last of them.

    Args:
        count: dialogues of the iteration.
        ranks: in which order judges may ask, by role, from 1.
        members: the roles that each owner of a learner state holds, of those that update now.
        references: of those of them whose reference passes run beside the dialogues.
        early: those of them that may learn when the rewards of their members are in.
        learn: starts an owner's update, given trajectories with those rewards alone.
    """

    count: int
    ranks: Mapping[Role, int]
    members: Mapping[Role, Sequence[Role]]
    references: Mapping[Role, References]
    early: Sequence[Role]
    learn: Callable[[Role, list[Trajectory], Course], Future[Any]]

    started: dict[Role, Future[Any]] = field(default_factory=dict)
    """The updates that were started, by owner."""
    _ended: dict[int, Trajectory] = field(default_factory=dict)
    _paid: dict[Role, dict[int, Reward]] = field(default_factory=dict)
    _engines: Sequence[Engine] = ()
    _sampled: Sequence[float] = ()
    _last_word: float | None = None
    _last_reward: float = 0.0

    def begin(self, engines: Mapping[Role, Engine]) -> None:
        """The first dialogue is about to begin."""
        self._engines = tuple(engines.values())
        self._sampled = [engine.stats.seconds for engine in self._engines]

    def seconds(self, waited: float, took: float) -> dict[str, float]:
        """What the dialogues' time went to, once they are over; see `Iteration.within`.

        `waited`: seconds for which somebody waited for them, of the `took` that they took.
        """
        spent = [e.stats.seconds - at for e, at in zip(self._engines, self._sampled, strict=True)]
        sampling = min(max(spent, default=0.0), took)
        judging = 0.0 if self._last_word is None else self._last_reward - self._last_word
        found = {"sampling": sampling, "judging": judging, "talking": took - sampling - judging}
        return found | ({"saved": took - waited} if took > waited else {})

    def rank(self, role: Role) -> int:
        return self.ranks[role]

    def ended(self, index: int, trajectory: Trajectory) -> None:
        self._last_word = time.perf_counter()
        self._ended[index] = trajectory
        for owner, references in self.references.items():
            for role in self.members[owner]:
                view = trajectory.views.get(role)  # none of a dialogue that was broken off
                if role in trajectory.matchup and view is not None:
                    references.add(view, trajectory.draw, trajectory.rollout)
            if len(self._ended) == self.count:
                references.send()

    def paid(self, index: int, role: Role, reward: Reward) -> None:
        self._last_reward = time.perf_counter()
        self._paid.setdefault(role, {})[index] = reward
        for owner in self.early:
            if role in self.members[owner] and self._all_in(self.members[owner]):
                asyncio.get_running_loop().call_later(_PATIENCE_S, self._start, owner)

    def _all_in(self, roles: Sequence[Role]) -> bool:
        return all(len(self._paid.get(role, ())) == self.count for role in roles)

    def _start(self, owner: Role) -> None:
        """If somebody is still waited for."""
        if self._all_in([*self.ranks]):
            return
        roles = self.members[owner]
        known = [
            replace(self._ended[i], rewards={role: self._paid[role][i] for role in roles})
            for i in range(self.count)
        ]
        self.started[owner] = self.learn(owner, known, self)


class Ahead:
    """Dialogues that are played in a thread of their own from now on.

    Args:
        play: makes the coroutine that plays them.
    """

    def __init__(self, play: Callable[[], Coroutine[Any, Any, list[Trajectory]]]) -> None:
        self._play = play
        self._outcome: Future[list[Trajectory]] = Future()
        self._task: asyncio.Task[Any] | None = None
        self._begun = Event()
        self._began = self._ended = time.perf_counter()
        self._thread = Thread(target=self._run, name="ahead")
        self._thread.start()

    def result(self) -> list[Trajectory]:
        """The dialogues, when they are over. Raises what playing them raised."""
        return self._outcome.result()

    @property
    def seconds(self) -> float:
        """How long they took, once they are over."""
        return self._ended - self._began

    def cancel(self) -> None:
        """Break them off, and wait until they are."""
        self._begun.wait()
        if self._task is not None:
            with suppress(RuntimeError):  # its loop is closed: it is over
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        async def whole() -> list[Trajectory]:
            self._task = asyncio.current_task()
            self._begun.set()
            return await self._play()

        try:
            played = asyncio.run(whole())
        except BaseException as error:
            self._ended = time.perf_counter()
            self._outcome.set_exception(error)
        else:
            self._ended = time.perf_counter()
            self._outcome.set_result(played)
        finally:
            self._begun.set()
