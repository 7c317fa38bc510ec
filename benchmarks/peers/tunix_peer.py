"""google-tunix 0.1.7 as the bench's worker: its Qwen3, its vanilla sampler, its GRPO step.

    .venv-bench/bin/python -m benchmarks.peers.tunix_peer

How it is called, and why a user would call it so:

- `Sampler` of `tunix.generate.sampler` is what its vanilla rollout engine drives, and the only
  sampler of tunix that runs on a CPU (the others are vLLM and SGLang). It takes text; here the
  tokenizer is one that hands ids through, so that neither encoding nor decoding is measured.
- A turn is one call of a role's sampler, of all dialogues at once, on the whole view so far: it
  keeps no cache between calls. So do tunix's agentic learners.
- float32, its default for Qwen3; no rematerialisation; temperature 1 by way of `top_p=1` and no
  `top_k`, its short cut around sorting the vocabulary. No log-probs are asked for.
- The update is its GRPO learner's: the loss registered as "grpo", settings in `GRPOConfig`, and the
  step that its `Trainer` compiles (optimiser donated, graph cached), called as its `train` does but
  without the metrics and checkpoints around it.

What is stepped around, each time to its advantage:

- It compiles anew for every prompt length, batch, number of new tokens and temperature. Prompts are
  padded to the longest view that a turn can have, which is a list fixed beforehand: exact where no
  turn ends early. The first call of each compiles, and the bench reports it apart.
- Every decoding step attends to the whole of the sampler's cache, however short the view. So each
  length has a sampler whose cache ends where its turn does, over the same weights.
- Its rotary base is 1e6 whatever the configuration says; `load` refuses other folders.
- Without a seed it draws with the same one each call; every turn gives one of its own.
- It tells padding by id, and takes that id for a hole wherever it stands, also among sampled
  tokens. Ours is one that no network samples.
- No turn without an id that ends it: where nothing may, it is one that no network samples.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.generate.sampler import CacheConfig, Sampler  # pyright: ignore[reportMissingImports]
from tunix.models.qwen3 import model as qwen3  # pyright: ignore[reportMissingImports]
from tunix.models.qwen3.params import (  # pyright: ignore[reportMissingImports]
    create_model_from_safe_tensors,
)
from tunix.rl.common import process_ids  # pyright: ignore[reportMissingImports]

from benchmarks.peers.tunix_update import Update
from benchmarks.protocol import serve
from benchmarks.workload import CLOSER, HEADER

PAD, NEVER = -1, -2
"""Ids that no network samples: padding, and the end of a turn that nothing ends. A gather wraps
the first to a row of the embedding, and the mask hides what comes of it."""
ROTARY_BASE = 1e6

Ids = Sequence[Sequence[int]]


class Plain:
    """A tokenizer whose text is the ids themselves."""

    def encode(self, text: list[int]) -> list[int]:
        return text

    def decode(self, ids: list[int]) -> str:
        """What nobody reads: the ids are what is used."""
        return ""

    def bos_id(self) -> None:
        return None

    def eos_id(self) -> int:
        return NEVER

    def pad_id(self) -> int:
        return PAD


class Seat:
    """A role's policy: its network, and a sampler for each shape that its turns have."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._samplers: dict[tuple[int, int], Sampler] = {}

    def turn(
        self, views: Ids, longest: int, new_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> list[list[int]]:
        """What the policy says after each view, the id that ended it included.

        Args:
            longest: what the views are padded to, tokens.
        """
        found = self._sampler(longest, new_tokens)(
            views,
            max_generation_steps=new_tokens,
            max_prompt_length=longest,
            temperature=1.0,
            top_p=1.0,
            eos_tokens=list(stop_ids) or [NEVER],
            seed=seed,
        )
        said = [ids.tolist() for ids in found.tokens]
        # It leaves out the id that ended a turn.
        return [ids if len(ids) == new_tokens else [*ids, stop_ids[0]] for ids in said]

    def _sampler(self, longest: int, new_tokens: int) -> Sampler:
        key = longest, new_tokens
        if key not in self._samplers:
            config = self.model.config
            cache = CacheConfig(
                cache_size=longest + new_tokens,
                num_layers=config.num_layers,
                num_kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
            )
            self._samplers[key] = Sampler(self.model, Plain(), cache)
        return self._samplers[key]


class Tunix:
    """The worker's state and its methods, named and shaped as every worker's are."""

    def __init__(self) -> None:
        self._folder = Path()
        self._seats: list[Seat] = []
        self._update: Update | None = None

    def load(self, folder: str, seats: int) -> dict[str, Any]:
        """Read the folder's weights once a seat, and drop what was held before."""
        self._folder, self._update = Path(folder), None
        self._seats = [Seat(read(self._folder)) for _ in range(seats)]
        leaves = jax.tree.leaves(nnx.state(self._seats[0].model, nnx.Param))
        return {"parameters": sum(leaf.size for leaf in leaves)}

    def logits(self, ids: Ids) -> dict[str, Any]:
        """[B, T, V] in float32, as a file."""
        found = _logits(self._seats[0].model, jnp.asarray(ids, jnp.int32))
        with tempfile.NamedTemporaryFile(suffix=".npy", delete=False) as file:
            np.save(file, np.asarray(found))
        return {"path": file.name}

    def generate(
        self, prompts: Ids, new_tokens: int, stop_ids: Sequence[int], seed: int
    ) -> dict[str, Any]:
        """One batch, one turn."""
        longest = max(len(ids) for ids in prompts)
        began = time.perf_counter()
        said = self._seats[0].turn(prompts, longest, new_tokens, stop_ids, seed)
        return {"seconds": time.perf_counter() - began, "tokens": sum(map(len, said))}

    def rollout(
        self,
        prompts: Mapping[str, Ids],
        turns: int,
        turn_tokens: int,
        stop_ids: Sequence[int],
        seed: int,
    ) -> dict[str, Any]:
        """Two policies in turns, of all dialogues at once."""
        views = [[list(ids) for ids in role] for role in prompts.values()]
        longest = [max(map(len, role)) for role in views]
        tokens = 0
        began = time.perf_counter()
        for turn in range(turns):
            speaker = turn % 2
            for view in views[speaker]:
                view += HEADER
            said = self._seats[speaker].turn(
                views[speaker],
                longest[speaker] + len(HEADER),
                turn_tokens,
                stop_ids,
                seed * turns + turn,
            )
            tokens += sum(map(len, said))
            for own, other, ids in zip(views[speaker], views[1 - speaker], said, strict=True):
                own += [*ids, *CLOSER]
                other += [*HEADER, *ids, *CLOSER]
            longest = [n + len(HEADER) + turn_tokens + len(CLOSER) for n in longest]
        return {"seconds": time.perf_counter() - began, "tokens": tokens}

    def prepare_update(self, batch_file: str) -> dict[str, Any]:
        """A trainer over weights of its own, as the folder has them, and the batch beside it."""
        with np.load(batch_file) as batch:
            self._update = Update(read(self._folder), batch, pad_id=PAD, eos_id=NEVER)
        return {}

    def update(self, repeat: int) -> dict[str, Any]:
        """So many steps on the batch; the loss and the gradient's norm are those of the first."""
        assert self._update is not None, "prepare_update comes first"
        return self._update.steps(repeat)


def read(folder: Path) -> Any:
    """The folder's network with arrays of its own.

    Raises:
        ValueError: its rotary base is not the one that tunix's Qwen3 uses whatever it is told.
    """
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if about["rope_theta"] != ROTARY_BASE:
        raise ValueError(
            f"{folder} has rope_theta {about['rope_theta']}; "
            f"tunix's Qwen3 always computes with {ROTARY_BASE:.0f}"
        )
    config = qwen3.ModelConfig(
        num_layers=about["num_hidden_layers"],
        vocab_size=about["vocab_size"],
        embed_dim=about["hidden_size"],
        hidden_dim=about["intermediate_size"],
        num_heads=about["num_attention_heads"],
        head_dim=about["head_dim"],
        num_kv_heads=about["num_key_value_heads"],
        rope_theta=int(about["rope_theta"]),
        norm_eps=about["rms_norm_eps"],
        use_tied_embedding=about["tie_word_embeddings"],
    )
    return create_model_from_safe_tensors(str(folder), config, dtype=jnp.float32)


@nnx.jit
def _logits(model: Any, ids: jax.Array) -> jax.Array:
    """[B, T, V] of ids [B, T] without padding."""
    ids, positions, mask, _ = process_ids(ids[:, :1], ids[:, 1:], PAD, NEVER)
    return model(ids, positions, None, mask)[0]


def main() -> None:
    worker = Tunix()
    methods = ("load", "logits", "generate", "rollout", "prepare_update", "update")
    with tempfile.TemporaryDirectory() as programs:
        # One that lives as long as the worker: the second seat reads back what the first compiled.
        jax.config.update("jax_compilation_cache_dir", programs)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        serve({name: getattr(worker, name) for name in methods})


if __name__ == "__main__":
    main()
