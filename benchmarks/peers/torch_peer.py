"""The bench's worker on PyTorch: `transformers` samples, TRL's GRPOTrainer updates.

    python -m benchmarks.peers.torch_peer      in the peers' environment, from the repository root

Each library is called as its own users call it, with the settings that are best for it on a CPU:

| what | how | why |
| --- | --- | --- |
| weights | `AutoModelForCausalLM`, float32, `sdpa` attention | `eager` took up to twice as long |
| sampling | `model.generate`, all dialogues in one batch | token ids in and out, no tokenizer |
| cache | the default, dynamic one | the static one took 1.1 to 1.3 times as long |
| filters | `top_k=0`, `top_p=1` | the default of 50 looks for the largest logits at every step |
| turns | one `generate` a turn, on the whole view so far | as a rollout function of TRL does |
| threads | as many as the process has cores | the default is the machine's |

Rows of one length carry no padding, so that attention takes its fast causal path; rows of several
lengths are padded on the left, as `generate` asks for. `rollout` can keep the cache of a role's
dialogues from turn to turn (`keep_cache`): rows of equal length allow it with one more argument to
`generate`, and it is measured beside the plain call; rows that end where they like do not.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, GenerationConfig

from benchmarks.protocol import serve
from benchmarks.workload import CLOSER, HEADER

PAD = 0
"""Any id: padding is known by the attention mask, and what follows a stop is cut off here."""


def load_model(folder: str) -> Any:
    """A network in float32 that ends a turn only where it is told to."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.generation_config = GenerationConfig(pad_token_id=PAD)
    return model.eval()


def sampled(
    model: Any,
    views: Sequence[Sequence[int]],
    new_tokens: int,
    stop_ids: Sequence[int],
    cache: DynamicCache | None = None,
) -> list[list[int]]:
    """What each view goes on with, the stop id included, if it came to one.

    Args:
        views: token ids; shorter ones are padded on the left.
        new_tokens: most tokens a view; just as many if there are no stop ids.
        cache: what the model has read of these views by now; only for views of equal length.
    """
    longest = max(map(len, views))
    ids = torch.tensor([[PAD] * (longest - len(view)) + list(view) for view in views])
    lengths = torch.tensor([[len(view)] for view in views])
    mask = (torch.arange(longest) >= longest - lengths).long()
    how = GenerationConfig(
        max_new_tokens=new_tokens,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        eos_token_id=list(stop_ids) or None,
        pad_token_id=PAD,
    )
    kept = {} if cache is None else {"past_key_values": cache}
    with torch.inference_mode():
        out = model.generate(ids, attention_mask=mask, generation_config=how, **kept)
    rows = out[:, longest:].tolist()
    if not stop_ids:
        return rows
    stops = set(stop_ids)
    return [row[: next((i + 1 for i, x in enumerate(row) if x in stops), len(row))] for row in rows]


class TorchPeer:
    """The networks that are loaded, and what the bench asks of them."""

    def __init__(self) -> None:
        self.folder = ""
        self.models: list[Any] = []
        self._update: Any = None
        self._iterations: dict[Any, Any] = {}
        self._places = tempfile.TemporaryDirectory(prefix="bench_torch_")

    def about(self) -> dict[str, Any]:
        """What is measured, in words."""
        import trl

        return {
            "versions": {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "trl": trl.__version__,
            },
            "threads": torch.get_num_threads(),
        }

    def load(self, folder: str, seats: int) -> dict[str, Any]:
        """`seats` networks of their own from a folder; the ones before are forgotten."""
        self.folder, self._update, self._iterations = folder, None, {}
        self.models = [load_model(folder) for _ in range(seats)]
        return {"parameters": self.models[0].num_parameters()}

    def logits(self, ids: list[list[int]]) -> dict[str, Any]:
        """The path of an array [B, T, V] float32."""
        with torch.inference_mode():
            out = self.models[0](torch.tensor(ids)).logits
        path = Path(self._places.name) / "logits.npy"
        np.save(path, out.float().numpy())
        return {"path": str(path)}

    def generate(
        self, prompts: list[list[int]], new_tokens: int, stop_ids: list[int], seed: int
    ) -> dict[str, Any]:
        """One turn of the first network on prompts of equal length."""
        torch.manual_seed(seed)
        began = time.perf_counter()
        rows = sampled(self.models[0], prompts, new_tokens, stop_ids)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "tokens": sum(map(len, rows))}

    def rollout(
        self,
        prompts: Mapping[str, list[list[int]]],
        turns: int,
        turn_tokens: int,
        stop_ids: list[int],
        seed: int,
        keep_cache: bool = False,
    ) -> dict[str, Any]:
        """Dialogues of two networks; turn t is spoken by role t % 2, in all dialogues at once.

        Raises:
            ValueError: `keep_cache` with stop ids, where turns differ in length.
        """
        if keep_cache and stop_ids:
            raise ValueError("generate can keep a cache between turns only for rows of one length")
        roles = list(prompts)
        torch.manual_seed(seed)
        began, tokens = time.perf_counter(), 0
        views = {role: [list(prompt) for prompt in prompts[role]] for role in roles}
        caches = {role: DynamicCache() if keep_cache else None for role in roles}
        for turn in range(turns):
            speaker, listener = roles[turn % 2], roles[1 - turn % 2]
            for view in views[speaker]:
                view.extend(HEADER)
            said = sampled(
                self.models[turn % 2], views[speaker], turn_tokens, stop_ids, caches[speaker]
            )
            for own, other, words in zip(views[speaker], views[listener], said, strict=True):
                own.extend((*words, *CLOSER))
                other.extend((*HEADER, *words, *CLOSER))
                tokens += len(words)
        return {"seconds": time.perf_counter() - began, "tokens": tokens}

    def prepare_update(self, batch_file: str, micro_batch: int = 16) -> dict[str, Any]:
        """A fresh trainer around a fresh copy of the network, and the batch it will step on."""
        from benchmarks.peers.trl_peer import Update

        self._update = Update(self.folder, Path(batch_file), micro_batch, self._places.name)
        return {"rows": self._update.rows, "micro_batch": micro_batch}

    def update(self, repeat: int) -> dict[str, Any]:
        """`repeat` optimiser steps: seconds of all, loss and gradient norm of the first."""
        if self._update is None:
            raise ValueError("update needs prepare_update before it")
        return self._update.run(repeat)

    def iteration(
        self,
        prompts: dict[str, list[list[int]]],
        turns: int,
        turn_tokens: int,
        stop_ids: list[int],
        group: int,
        seed: int,
        micro_batch: int = 16,
    ) -> dict[str, Any]:
        """Two trainers take turns: each rolls out against the other's policy, then updates."""
        from benchmarks.peers.trl_peer import Pair

        key = (tuple(prompts), len(prompts[next(iter(prompts))]), group, micro_batch)
        if key not in self._iterations:
            self._iterations[key] = Pair(
                self.folder, tuple(prompts), key[1], group, micro_batch, self._places.name
            )
        torch.manual_seed(seed)
        return self._iterations[key].run(prompts, turns, turn_tokens, stop_ids)


def main() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    peer = TorchPeer()
    serve(
        {
            "about": peer.about,
            "load": peer.load,
            "logits": peer.logits,
            "generate": peer.generate,
            "rollout": peer.rollout,
            "prepare_update": peer.prepare_update,
            "update": peer.update,
            "iteration": peer.iteration,
        }
    )


if __name__ == "__main__":
    main()
