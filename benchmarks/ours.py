"""ibrl_jax as the bench's worker: its engine rolls out, its learner updates.

    python -m benchmarks.ours

It is called as the trainer calls it: an engine a role, whose slots keep their caches from the first
turn to the last; buckets as a config gives them, fitting the workload's lengths; the network
compiled as presets of this size are; how an update's rows are cut up measured beforehand, as a run
does that asks for it. Programs are compiled when they are first needed, in the first call of each
kind, which the bench reports apart.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.parts import HYPER, Ids, engines, learner, requests, row_batch, scorer
from benchmarks.protocol import serve
from benchmarks.sizes import SIZES, write_folder
from benchmarks.workload import CLOSER, FIRST, HEADER
from ibrl_jax import host
from ibrl_jax.dialogue.conductor import Conductor
from ibrl_jax.identity import key_data
from ibrl_jax.models import hf_config, hf_folder
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import Params, abstract_params, count_params
from ibrl_jax.models.presets import LARGE_CHUNK, SMALL
from ibrl_jax.rl.batches import RoleBatch
from ibrl_jax.rl.learner import Learner, LearnerState
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import Request
from ibrl_jax.trainer.tune import Tuned


class Ours:
    """The networks that are loaded, and what the bench asks of them."""

    def __init__(self) -> None:
        self._place = TemporaryDirectory(prefix="bench_ours_")
        self._model = Decoder(SIZES["0.1M"].network, None)
        self._policies: list[Params] = []
        self._engines: dict[Any, list[Engine]] = {}
        self._learner: Learner | None = None
        self._cut: Tuned | None = None
        self._state: LearnerState | None = None
        self._batch: RoleBatch | None = None
        self._folder = ""

    def close(self) -> None:
        """Remove the files that were written for others."""
        self._place.cleanup()

    def about(self) -> dict[str, Any]:
        names = ("jax", "jaxlib", "flax", "optax", "numpy")
        return {"versions": {name: metadata.version(name) for name in names}}

    def make(self, folder: str, size: str) -> dict[str, Any]:
        write_folder(Path(folder), size)
        network = SIZES[size].network
        return {"parameters": count_params(abstract_params(network)), "vocab": network.vocab_size}

    def load(self, folder: str, seats: int) -> dict[str, Any]:
        """`seats` networks of their own from a folder; the ones before are forgotten."""
        network = hf_config.network(Path(folder), chunk=LARGE_CHUNK, **SMALL)
        self._folder, self._model = folder, Decoder(network, None)
        self._engines, self._learner, self._state, self._batch = {}, None, None, None
        self._policies = [
            hf_folder.read(Path(folder), network, None, lambda path: np.float32)
            for _ in range(seats)
        ]
        return {"parameters": count_params(abstract_params(network))}

    def logits(self, ids: Ids) -> dict[str, Any]:
        """[B, T, V] in float32, as a file."""
        tokens = jnp.asarray(ids, jnp.int32)
        values = {"params": self._policies[0]}
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        hidden: Any = self._model.apply(values, tokens, positions, None)
        path = Path(self._place.name) / "logits.npy"
        np.save(path, np.asarray(self._model.apply(values, hidden, method=Decoder.logits)))
        return {"path": path}

    def generate(
        self, prompts: Ids, new_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> dict[str, Any]:
        """One turn of the first network."""
        longest = max(map(len, prompts))
        engine = self._seats(
            len(prompts), len(prompts), (longest,), longest + new_tokens, new_tokens, stop_ids
        )[0]
        began = time.perf_counter()
        slots = [engine.acquire() for _ in prompts]
        done = engine.run(requests(slots, prompts, new_tokens, seed, "turn"))
        tokens = sum(len(one.ids) for one in done)
        for slot in slots:
            engine.release(slot)
        return {"seconds": time.perf_counter() - began, "tokens": tokens}

    def rollout(
        self,
        prompts: Mapping[str, Ids],
        turns: int,
        turn_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
    ) -> dict[str, Any]:
        """Dialogues of two networks, in which turn t is spoken by role t % 2.

        A coroutine each, and a conductor that runs both engines: as the trainer plays.
        """
        opening = max(len(ids) for role in prompts.values() for ids in role)
        turn = len(HEADER) + turn_tokens + len(CLOSER)
        count = len(next(iter(prompts.values())))
        # What is unread: the prompt, the other's first turn, a header; later the own last token and
        # closer, the other's turn, a header.
        first, later = opening + turn + len(HEADER), 1 + len(CLOSER) + turn + len(HEADER)
        engines = self._seats(
            count, max(count // 2, 1), (later, first), opening + turns * turn, turn_tokens, stop_ids
        )
        began = time.perf_counter()
        tokens = asyncio.run(_talk_all(engines, list(prompts.values()), turns, turn_tokens, seed))
        return {"seconds": time.perf_counter() - began, "tokens": tokens}

    def write_batch(
        self, path: str, rows: int, prompt: int, turns: int, turn_tokens: int, seed: int
    ) -> dict[str, Any]:
        """A batch for every implementation to update on: views of `turns` turns that end with a
        sampled token, and log-probs near those of the network that is loaded.
        """
        rng = np.random.default_rng(seed)
        turn = len(HEADER) + turn_tokens + len(CLOSER)
        length = prompt + turns * turn - len(CLOSER)
        ids = rng.integers(FIRST, self._model.config.vocab_size, size=(rows, length))
        mask = np.zeros((rows, length), bool)
        for number in range(0, turns, 2):
            at = prompt + number * turn + len(HEADER)
            mask[:, at : at + turn_tokens] = True
        blank = row_batch(ids, mask)
        scored = scorer(self._model, rows)
        own = np.asarray(scored.reference_logp(self._policies[0], None, blank, 1.0))
        np.savez(
            path,
            ids=ids.astype(np.int32),
            prompt_length=np.int32(prompt),
            loss_mask=mask,
            behaviour_logp=(own + rng.normal(0, 0.1, own.shape)).astype(np.float32),
            reference_logp=(own + rng.normal(0, 0.2, own.shape)).astype(np.float32),
            advantage=rng.normal(size=rows).astype(np.float32),
        )
        return {"tokens": ids.size, "length": length}

    def prepare_update(self, batch_file: str) -> dict[str, Any]:
        """A fresh learner, and the batch on the device."""
        with np.load(batch_file) as file:
            batch = row_batch(file["ids"], file["loss_mask"]).replace(
                behaviour_logp=file["behaviour_logp"],
                reference_logp=file["reference_logp"],
                advantage=file["advantage"],
            )
        rows, length = batch.ids.shape
        self._learner, self._cut = learner(self._model, self._policies[0], rows, length)
        self._state = self._learner.init(self._policies[0])
        self._batch = jax.device_put(batch)
        return {"rows": rows}

    def update(self, repeat: int) -> dict[str, Any]:
        """`repeat` steps: seconds of all, loss and gradient norm of the first; how rows are cut."""
        assert self._learner is not None
        assert self._cut is not None
        assert self._state is not None
        assert self._batch is not None
        seen = []
        began = time.perf_counter()
        for _ in range(repeat):
            self._state, metrics = self._learner.update(self._state, None, self._batch, HYPER)
            seen.append(metrics)
        jax.block_until_ready(self._state)
        first = jax.device_get(seen)[0]
        seconds = time.perf_counter() - began
        told = {name: first[name] for name in ("loss", "grad_norm")}
        return {"seconds": seconds, **told, "cut": asdict(self._cut)}

    def iteration(self, **args: Any) -> dict[str, Any]:
        """A whole iteration of both roles."""
        from benchmarks.iteration import iteration

        return iteration(self._folder, **args)

    def _seats(
        self,
        slots: int,
        rows: int,
        new_tokens: tuple[int, ...],
        max_length: int,
        max_new: int,
        stop_ids: Sequence[int],
    ) -> list[Engine]:
        """An engine a policy, kept for the next call of the same sizes."""
        key = slots, rows, new_tokens, max_length, max_new, tuple(stop_ids)
        if key not in self._engines:
            self._engines[key] = engines(
                self._model,
                self._policies,
                slots=slots,
                rows=rows,
                new_tokens=new_tokens,
                lengths=range(128, max_length, 64),
                max_length=max_length,
                max_new=max_new,
                stop_ids=stop_ids,
            )
        return self._engines[key]


async def _talk_all(
    engines: Sequence[Engine], prompts: Sequence[Ids], turns: int, turn_tokens: int, seed: int
) -> int:
    """Plays a dialogue for each pair of prompts; the number of tokens that were sampled."""
    conductor = Conductor()

    async def talk(number: int) -> int:
        views = [list(role[number]) for role in prompts]
        slots = [engine.acquire() for engine in engines]
        tokens = 0
        with conductor.dialogue():
            for turn in range(turns):
                who = turn % 2
                own, other = views[who], views[1 - who]
                own += HEADER
                key = key_data(seed, number, turn)
                request = Request("policy", slots[who], own, key, 1.0, turn_tokens)
                said = (await conductor.sample(engines[who], request)).ids
                own += (*said, *CLOSER)
                other += (*HEADER, *said, *CLOSER)
                tokens += len(said)
        for engine, slot in zip(engines, slots, strict=True):
            engine.release(slot)
        return tokens

    try:
        return sum(await asyncio.gather(*(talk(n) for n in range(len(prompts[0])))))
    finally:
        conductor.close()


def main() -> None:
    host.prepare()
    worker = Ours()
    methods = ("about", "make", "load", "logits", "generate", "rollout")
    methods += ("write_batch", "prepare_update", "update", "iteration")
    with closing(worker):
        serve({name: getattr(worker, name) for name in methods})


if __name__ == "__main__":
    main()
