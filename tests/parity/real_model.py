"""A released model, SmolLM2-135M-Instruct: its own words by our engine, then IB-RL on it.

    make parity-real                                      (needs torch and gguf)
    python tests/parity/real_model.py words | train       one of its two parts

words: 32 greedy tokens after each of eight prompts, in the chat template of its tokenizer. Our
engine, which reads all eight at once from padded batches, must give the reference's, token for
token; both compute in float32.

train: `configs/dond/smollm2-lora.py` by the ordinary trainer, in a process of its own. Prints the
speed, the memory, and what the iterations changed, whatever it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import torch  # pyright: ignore[reportMissingImports]
import transformers
from real_weights import FOLDER, fetch

from ibrl_jax.models import hf_config, hf_folder
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.presets import LARGE
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings, Request

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

NEW = 32
CONFIG = "configs/dond/smollm2-lora.py"
RUN = Path("runs/smollm2-lora/seed0")
TERSE = "Answer in one short sentence."
DIALOGUES: Sequence[Sequence[tuple[str, str]]] = (
    [("user", "What is the capital of France?")],
    [("user", "Why is the sky blue?")],
    [("system", TERSE), ("user", "How many legs does a spider have?")],
    [("system", TERSE), ("user", "Name a fruit."), ("assistant", "Apple."), ("user", "Another!")],
    [("user", "Write a line of Python that adds 12 and 345.")],
    [("user", "Übersetze ins Englische: Guten Morgen, wie geht es dir?")],
    [("system", "You sell a bicycle for $120."), ("user", "I can pay 80. Deal?")],
    [("user", "Two books, one hat and three balls are to be shared. What do you propose? " * 4)],
)


def words(folder: Path) -> int:
    """How many of the dialogues go on otherwise than by the reference."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    prompts = [
        tokenizer.apply_chat_template(
            [dict(role=role, content=text) for role, text in dialogue],
            add_generation_prompt=True,
            return_dict=False,
        )
        for dialogue in DIALOGUES
    ]
    began = time.monotonic()
    want, margin = by_reference(folder, prompts)
    between = time.monotonic()
    got = by_us(folder, prompts)
    ended = time.monotonic()
    differing = 0
    for dialogue, ours, theirs in zip(DIALOGUES, got, want, strict=True):
        same = sum(a == b for a, b in zip(ours, theirs, strict=False))
        differing += ours != theirs
        print(
            f"{same:2} of {NEW} tokens equal  {dialogue[-1][1][:32]!r:36} {said(tokenizer, ours)}"
        )
        if ours != theirs:
            print(f"{'the reference':58} {said(tokenizer, theirs)}")
    print(f"the closest choice of a token was by {margin:.1e} in its logit")
    print(f"{between - began:.0f} s by the reference, {ended - between:.0f} s by us, all included")
    return differing


def by_reference(folder: Path, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], float]:
    """Greedy tokens, each prompt alone, and the smallest distance of a choice to the next best."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    out, margin = [], np.inf
    with torch.no_grad():
        for prompt in prompts:
            ids, cache, given = [], None, list(prompt)
            for _ in range(NEW):
                answer = model(torch.tensor([given]), cache=cache, use_cache=True)
                cache = answer.past_key_values
                best = answer.logits[0, -1].topk(2)
                margin = min(margin, float(best.values[0] - best.values[1]))
                given = [int(best.indices[0])]
                ids += given
            out.append(ids)
    return out, margin


def by_us(folder: Path, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """Greedy tokens by the sampler's engine, all prompts in one call."""
    network = hf_config.network(folder, **{**LARGE, "dtype": "float32", "chunk": 64})
    settings = EngineSettings(
        slots=len(prompts),
        max_length=192,
        rows=(len(prompts),),
        new_tokens=(48,),  # longer prompts are read in pieces
        lengths=(192,),
        max_new=NEW,
        block=NEW,
        stragglers=0.0,
    )
    never = network.vocab_size  # no token stops it: all 32 are compared
    engine = Engine(Programs(Decoder(network, None), settings, (never,)))
    params = hf_folder.read(folder, network, None, lambda path: np.dtype("float32"))
    engine.load("released", params)
    requests = [
        Request("released", engine.acquire(), ids, key=(0, i), temperature=0.0, max_new=NEW)
        for i, ids in enumerate(prompts)
    ]
    return [done.ids for done in engine.run(requests)]


def said(tokenizer: Any, ids: Sequence[int]) -> str:
    return repr(tokenizer.decode(ids))


def train() -> None:
    """Train by the config; print what it took and what it changed."""
    began = time.monotonic()
    command = (sys.executable, "-m", "ibrl_jax.train", f"--config={CONFIG}")
    process = subprocess.Popen(command)
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(0.2)
    if process.wait():
        raise SystemExit(process.returncode)
    rows = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["seconds"] for row in rows]
    print(
        f"\n{len(rows)} iterations, {time.monotonic() - began:.0f} s with all that is around them"
    )
    print(f"peak memory of the process (resident): {peak / 2**30:.2f} GiB")
    for name in seconds[0]:
        print(
            f"seconds an iteration, {name:12} median {np.median([s[name] for s in seconds]):7.2f}"
        )
    sampled = sum(row["dialogues"]["tokens"] for row in rows)
    print(f"tokens sampled: {sampled}, {sampled / sum(s['rollout'] for s in seconds):.1f} a second")
    print(f"\n{'':30}{'first 5':>10}{'last 5':>10}")
    for name, value in figures(rows[:5]).items():
        print(f"{name:30}{value:10.3f}{figures(rows[-5:])[name]:10.3f}")


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Means over some iterations; NaN where nothing was measured."""

    def mean(values: Sequence[float | None]) -> float:
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known else float("nan")

    turns = sum(row["dialogues"]["turns"] * row["dialogues"]["count"] for row in rows)
    kinds = [of_role for row in rows for of_role in row["format_failures"].values()]
    malformed = sum(sum(of_role.values()) for of_role in kinds)
    out = {
        "turns that are well formed": 1 - malformed / turns,
        "dialogues with a deal": mean([row["dialogues"]["agreement"] for row in rows]),
        "turns a dialogue": mean([row["dialogues"]["turns"] for row in rows]),
    }
    for role in rows[0]["roles"]:
        for key in ("reward", "kl", "entropy", "grad_norm"):
            out[f"{role} {key}"] = mean([row["roles"][role].get(key) for row in rows])
    return out


def main(parts: Sequence[str]) -> int:
    folder = fetch(FOLDER)
    if "words" in parts:
        with jax.default_matmul_precision("highest"):
            differing = words(folder)
        if differing:
            print(f"{differing} of {len(DIALOGUES)} dialogues differ")
            return 1
    if "train" in parts:
        train()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ("words", "train")))
