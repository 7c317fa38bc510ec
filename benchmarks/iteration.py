"""A whole IB-RL iteration of two roles in the bench, made of the trainer's parts.

    rollout      64 dialogues of two policies: a coroutine each, a conductor, an engine a policy
    credit       the share of even ids a role said, normalised in its group
    update       of each role, side by side: its rows, reference log-probs, one step
    load         the new parameters into the engines

Both roles learn from the one rollout, each from its own rows of it. What a policy reads and samples
is appended to its view, and the view is what it is trained on. The workload is token ids alone
(`benchmarks.workload`), so domain, tokenizer and judges have no part in the time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.workload import CLOSER, HEADER, reward
from ibrl_jax.config import default_config
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.dialogue.views import PolicyRef, Segment, ViewBuilder
from ibrl_jax.identity import key_data
from ibrl_jax.models import hf_config, hf_folder
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import Params
from ibrl_jax.models.presets import LARGE_CHUNK, SMALL
from ibrl_jax.models.score import score
from ibrl_jax.rl.advantages import AdvantageSettings, Vote, credit
from ibrl_jax.rl.batches import BatchSettings, Row, build
from ibrl_jax.rl.learner import Hyper, Learner, LearnerSettings, LearnerState
from ibrl_jax.rl.losses import LossSettings
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings, Request

Ids = Sequence[Sequence[int]]

HYPER = Hyper(
    learning_rate=1e-5,
    warmup_updates=0.0,
    weight_decay=0.0,
    clip_norm=1.0,
    kl=0.02,
    entropy=0.0,
    clip_low=0.2,
    clip_high=0.2,
    temperature=1.0,
)

ADVANTAGE = AdvantageSettings(reward="own", advantage="role", ddof=1, eps=1e-4)
"""`eps` is TRL's, which the bench compares with."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """What an iteration is compiled for; see `iteration`. Lengths are in tokens."""

    folder: str
    roles: tuple[str, str]
    rows: int
    prompt: int
    turns: int
    turn_tokens: int
    stop_ids: tuple[int, ...]
    micro_batch: int
    block: int
    stragglers: float

    @property
    def turn(self) -> int:
        """The longest turn in a view."""
        return len(HEADER) + self.turn_tokens + len(CLOSER)

    @property
    def view(self) -> int:
        """The longest view."""
        return _rounded(self.prompt + self.turns * self.turn, 8)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Lengths that a micro-batch may be cut to: an eighth of the turns apart, from half on."""
        step = _rounded((self.view - self.prompt) // 8, 8)
        return (*range(max(self.view - 4 * step, step), self.view, step), self.view)

    def engine(self) -> EngineSettings:
        # Unread: the prompt, the other's first turn and a header; later the own last token and
        # closer, the other's turn and a header.
        first, later = self.prompt + self.turn, 1 + len(CLOSER) + self.turn
        in_step = self.block >= self.turn_tokens and not self.stragglers
        # In step, one half of the dialogues speaks while the other half is spoken to.
        shares = (2,) if in_step else (1, 2, 4, 8)
        return EngineSettings(
            slots=self.rows,
            max_length=self.view,
            rows=tuple(sorted({max(self.rows // n, 1) for n in shares})),
            new_tokens=tuple(sorted({_rounded(n + len(HEADER), 8) for n in (later, first)})),
            lengths=tuple(range(_rounded(self.prompt + self.turn, 64), self.view + 64, 64)),
            max_new=self.turn_tokens,
            block=self.block,
            stragglers=self.stragglers,
        )

    def learner(self) -> LearnerSettings:
        optimiser = default_config().optimiser
        return LearnerSettings(
            loss=LossSettings(normalise="tokens", constant=1.0, mask="own", kl_on_degenerate=True),
            micro_batch=self.micro_batch,
            lengths=self.cuts,
            trained_share=optimiser.trained_share,
            lanes=1,  # the roles' updates are side by side already
            b1=optimiser.b1,
            b2=optimiser.b2,
            eps=optimiser.eps,
            stacked=("layers",),
        )

    def batches(self) -> BatchSettings:
        return BatchSettings(
            lengths=(self.view,),
            rows=self.rows,
            micro_batch=self.micro_batch,
            pad_id=0,
            places=1,
        )


def iteration(
    folder: str,
    prompts: Mapping[str, Ids],
    turns: int,
    turn_tokens: int,
    stop_ids: Sequence[int],
    group: int,
    seed: int,
    micro_batch: int = 16,
) -> dict[str, Any]:
    """One iteration of both roles, from where the last one of the same sizes left them.

    Args:
        folder: the network that both roles start from.
        prompts: of each role, one a dialogue; dialogues in a row of `group` share a draw.
        turn_tokens: tokens of a turn at most; a stop id ends it before.

    Returns:
        seconds of all, of the rollout, and of what follows it (the roles' updates are side by
        side); tokens sampled; loss and gradient norm a role.
    """
    first, second = prompts
    engine = default_config().engine
    sizes = Sizes(
        folder=folder,
        roles=(first, second),
        rows=len(prompts[first]),
        prompt=max(len(ids) for role in prompts.values() for ids in role),
        turns=turns,
        turn_tokens=turn_tokens,
        stop_ids=tuple(stop_ids),
        micro_batch=micro_batch,
        block=engine.block,
        stragglers=engine.stragglers,
    )
    if sizes not in _MADE:
        _MADE.clear()
        _MADE[sizes] = Pair(sizes)
    return _MADE[sizes].run(prompts, group, seed)


class Pair:
    """Two policies, their engines and their learners' states."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        network = hf_config.network(Path(sizes.folder), chunk=LARGE_CHUNK, **SMALL)
        model, chunk = Decoder(network, None), default_config().optimiser.logp_chunk
        programs = Programs(model, sizes.engine(), sizes.stop_ids)
        programs.warmup()

        def scored(
            trained: Params,
            frozen: Params | None,
            ids: jax.Array,
            positions: jax.Array,
            segment_ids: jax.Array,
            temperature: jax.Array,
            at: jax.Array | None,
            /,
        ) -> tuple[jax.Array, jax.Array]:
            tokens = (ids, positions, segment_ids)
            return score(model, trained, frozen, *tokens, temperature, chunk, at)

        self._learner = Learner(scored, sizes.learner())
        self._engines: dict[str, Engine] = {}
        self._starts: dict[str, Params] = {}
        self._states: dict[str, LearnerState] = {}
        for role in sizes.roles:
            start = hf_folder.read(Path(sizes.folder), network, None, lambda path: np.float32)
            self._engines[role] = Engine(programs)
            self._engines[role].load("live", start)
            self._starts[role], self._states[role] = start, self._learner.init(start)

    def run(self, prompts: Mapping[str, Ids], group: int, seed: int) -> dict[str, Any]:
        sizes = self._sizes
        began = time.perf_counter()
        views = asyncio.run(self._rollout(prompts, seed))
        talked = time.perf_counter()
        rows = _rows(views, group)
        with ThreadPoolExecutor(len(sizes.roles)) as threads:
            learned = list(threads.map(self._learn, sizes.roles, (rows[r] for r in sizes.roles)))
        ended = time.perf_counter()
        return {
            "seconds": ended - began,
            "rollout_seconds": talked - began,
            "update_seconds": ended - talked,
            "tokens": sum(sum(view.loss_mask) for pair in views for view in pair.values()),
            "loss": [float(one["loss"]) for one in learned],
            "grad_norm": [float(one["grad_norm"]) for one in learned],
        }

    async def _rollout(self, prompts: Mapping[str, Ids], seed: int) -> list[dict[str, ViewBuilder]]:
        """The views of each dialogue, by role."""
        conductor = Conductor()
        try:
            talks = [
                self._talk(conductor, {role: prompts[role][n] for role in prompts}, (seed, n))
                for n in range(self._sizes.rows)
            ]
            return await asyncio.gather(*talks)
        finally:
            conductor.close()

    async def _talk(
        self, conductor: Conductor, prompts: Mapping[str, Sequence[int]], who: tuple[int, int]
    ) -> dict[str, ViewBuilder]:
        views, slots = {}, {}
        for role, ids in prompts.items():
            view = ViewBuilder(role=role, policy=PolicyRef(id=role, seat="live", version=0))
            view.read(ids, -1, Segment.TEMPLATE)
            views[role], slots[role] = view, self._engines[role].acquire()
        with conductor.dialogue():
            for turn in range(self._sizes.turns):
                speaker, listener = self._sizes.roles[turn % 2], self._sizes.roles[1 - turn % 2]
                views[speaker].read(HEADER, turn, Segment.TEMPLATE)
                done = await conductor.sample(
                    self._engines[speaker],
                    Request(
                        params="live",
                        slot=slots[speaker],
                        ids=views[speaker].ids,
                        key=key_data(*who, speaker, turn),
                        temperature=1.0,
                        max_new=self._sizes.turn_tokens,
                    ),
                )
                views[speaker].sampled(done.ids, done.logps, turn)
                views[speaker].read(CLOSER, turn, Segment.TEMPLATE)
                views[listener].read(HEADER, turn, Segment.TEMPLATE)
                views[listener].read(done.ids, turn, Segment.COUNTERPART)
                views[listener].read(CLOSER, turn, Segment.TEMPLATE)
        for role, slot in slots.items():
            self._engines[role].release(slot)
        return views

    def _learn(self, role: str, rows: list[Row]) -> dict[str, Any]:
        """One role's update, and its new policy into its engine."""
        batch = build(rows, self._sizes.batches())
        assert batch is not None
        batch = jax.device_put(batch)
        logp = self._learner.reference_logp(self._starts[role], None, batch, HYPER.temperature)
        batch = batch.replace(reference_logp=logp)
        self._states[role], metrics = self._learner.update(self._states[role], None, batch, HYPER)
        self._engines[role].load("live", self._states[role].params)
        metrics = jax.device_get(metrics)
        assert metrics["finite"], f"{role}: loss {metrics['loss']}"
        return metrics


_MADE: dict[Sizes, Pair] = {}
"""The pair of the last sizes: its programs, policies and moments live through the repeats."""


def _rows(dialogues: Sequence[Mapping[str, ViewBuilder]], group: int) -> dict[str, list[Row]]:
    """The rows of each role, credited."""
    votes = [
        Vote(
            role=role,
            draw=str(n // group),
            rollout=n % group,
            live=True,
            reward=reward([[i for i, on in zip(view.ids, view.loss_mask, strict=True) if on]]),
        )
        for n, views in enumerate(dialogues)
        for role, view in views.items()
    ]
    seats = credit(votes, ADVANTAGE).seats
    rows: dict[str, list[Row]] = {}
    for n, views in enumerate(dialogues):
        draw, rollout = str(n // group), n % group
        for role, view in views.items():
            earned = seats[role, draw, rollout]
            row = Row(view=view.finish(), draw=draw, rollout=rollout, credit=earned)
            rows.setdefault(role, []).append(row)
    return rows


def _rounded(n: int, step: int) -> int:
    return -(-n // step) * step
