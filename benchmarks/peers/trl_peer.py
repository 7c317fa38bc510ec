"""TRL's GRPOTrainer in the bench: one optimiser step on a given batch, and whole iterations.

The trainer is TRL's own, unchanged: its loss, its micro-batches, its clipping, its AdamW. It is
driven step by step as `Trainer.train` drives it, without what that does around a step (callbacks,
logs, checkpoints), which can only make it faster. Settings that matter:

| setting | value | why |
| --- | --- | --- |
| `loss_type` | `dapo`, its default | the one that divides by all trained tokens of the batch |
| `gradient_checkpointing`, `bf16` | off | on by default: a second forward pass, and not float32 |
| `beta`, `epsilon`, `max_grad_norm` | .02, .2, 1 | what is compared |
| `use_bias_correction_kl` | off | on by default: the KL times the ratio, another loss than ours |
| `optim` | `adamw_torch_fused`, its default | all parameters in one call |
| `per_device_train_batch_size` | 16 | 8, 16, 64: alike at 0.1M; at 4M 64 took a tenth longer |

A trainer knows one policy. Dialogues come into it by `rollout_func`, TRL's hook for rollouts of
one's own, which works without vLLM: the function calls `generate` once a turn, of its trainer's
policy and of the counterpart's in turn, and hands back token ids with an `env_mask` (1: sampled by
this trainer's policy). So two policies are two trainers that take turns, and each update costs a
rollout of its own: what one trainer's rollout has sampled for the counterpart, the other cannot
use, since a trainer scores and trains on its own rollout alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.peers.torch_peer import load_model, sampled
from benchmarks.workload import CLOSER, HEADER, reward

STEPS = 1_000_000
"""More than are ever taken; the learning rate is constant."""


class Seat:
    """One policy in one trainer.

    Args:
        rows: dialogues an optimiser step; micro-batches of `micro_batch` of them are accumulated.
        group: consecutive rows whose rewards are normalised together.
        rollout: TRL's `rollout_func`.
    """

    def __init__(
        self,
        folder: str,
        place: str,
        *,
        rows: int,
        group: int,
        micro_batch: int,
        rollout: Callable[[list[str], Any], dict[str, Any]] | None,
    ) -> None:
        self.model = load_model(folder)
        self.micro_batches = rows // micro_batch
        args = GRPOConfig(
            output_dir=place,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=micro_batch,
            gradient_accumulation_steps=self.micro_batches,
            num_generations=group,
            max_completion_length=1,  # read by sampling and losses that are not used here
            temperature=1.0,
            beta=0.02,
            use_bias_correction_kl=False,
            epsilon=0.2,
            loss_type="dapo",
            learning_rate=1e-5,
            lr_scheduler_type="constant",
            adam_beta2=0.99,
            weight_decay=0.0,
            max_grad_norm=1.0,
            max_steps=STEPS,
            report_to=[],
            logging_strategy="no",
            save_strategy="no",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        self.trainer: Any = GRPOTrainer(
            model=self.model,
            reward_funcs=share,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": ["0"] * rows}),
            processing_class=numbers(self.model.config.vocab_size),
            rollout_func=rollout,
        )
        # As `Trainer.train` begins.
        self.trainer.create_optimizer_and_scheduler(STEPS)
        self.trainer.optimizer = self.trainer.accelerator.prepare(self.trainer.optimizer)
        self.trainer.current_gradient_accumulation_steps = self.micro_batches
        self.model.train()

    def step(self, examples: list[dict[str, Any]]) -> tuple[float, float]:
        """One optimiser step as `Trainer.train` takes it; the first of its micro-batches rolls out.

        Returns:
            loss and gradient norm (before clipping).
        """
        trainer, loss = self.trainer, 0.0
        for index in range(self.micro_batches):
            last = index == self.micro_batches - 1
            trainer.accelerator.gradient_state._set_sync_gradients(last)
            loss += float(trainer.training_step(self.model, examples, None))
        norm = trainer.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
        self.model.zero_grad()
        trainer.state.global_step += 1
        return loss, float(norm)


class Update:
    """Optimiser steps on one batch, which the trainer takes as if it had rolled it out itself.

    Args:
        batch_file: an npz of ids [B, T], prompt_length, loss_mask [B, T], behaviour_logp [B, T],
            reference_logp [B, T] and advantage [B]; columns after the last trained token of all
            rows are left out, and padding before that is read as tokens that nobody trains on.
    """

    def __init__(self, folder: str, batch_file: Path, micro_batch: int, place: str) -> None:
        with np.load(batch_file) as file:
            self._inputs = prepared({name: file[name] for name in file.files})
        self.rows = len(self._inputs["prompt_ids"])
        self._seat = Seat(
            folder, place, rows=self.rows, group=self.rows, micro_batch=micro_batch, rollout=None
        )
        self._seat.trainer._generate_and_score_completions = self._given

    def run(self, repeat: int) -> dict[str, Any]:
        began = time.perf_counter()
        taken = [self._seat.step([]) for _ in range(repeat)]
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "loss": taken[0][0], "grad_norm": taken[0][1]}

    def _given(self, _: list[dict[str, Any]]) -> dict[str, Any]:
        return dict(self._inputs)


def prepared(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """A batch in the words of `GRPOTrainer._generate_and_score_completions`."""
    first = int(np.min(batch["prompt_length"]))
    end = int(np.flatnonzero(batch["loss_mask"].any(axis=0)).max()) + 1
    ids = torch.tensor(batch["ids"][:, :end], dtype=torch.long)
    mask = torch.tensor(batch["loss_mask"][:, first:end], dtype=torch.long)
    return {
        "prompt_ids": ids[:, :first],
        "prompt_mask": torch.ones_like(ids[:, :first]),
        "completion_ids": ids[:, first:],
        "completion_mask": torch.ones_like(mask),
        "tool_mask": mask,
        "advantages": torch.tensor(batch["advantage"], dtype=torch.float32),
        "num_items_in_batch": mask.sum(),
        "old_per_token_logps": torch.tensor(batch["behaviour_logp"][:, first:end]).float(),
        "ref_per_token_logps": torch.tensor(batch["reference_logp"][:, first:end]).float(),
    }


class Pair:
    """Two trainers that take turns, one a role."""

    def __init__(
        self,
        folder: str,
        roles: Sequence[str],
        rows: int,
        group: int,
        micro_batch: int,
        place: str,
    ) -> None:
        self._roles = tuple(roles)
        self._dialogue: dict[str, Any] = {}
        self._spent: list[float] = []
        self._tokens: list[int] = []
        self._seats = [
            Seat(
                folder,
                f"{place}/{role}",
                rows=rows,
                group=group,
                micro_batch=micro_batch,
                rollout=self._rollout_of(index),
            )
            for index, role in enumerate(self._roles)
        ]

    def run(
        self,
        prompts: Mapping[str, list[list[int]]],
        turns: int,
        turn_tokens: int,
        stop_ids: Sequence[int],
    ) -> dict[str, Any]:
        """An update of each role.

        Returns:
            seconds of all; `rollout_seconds` and `update_seconds` a role (an update has its
            rewards, reference log-probs, loss and optimiser in it); `shared_seconds`, what it would
            take if the second role could learn from the first one's rollout; `tokens` sampled in
            each rollout; loss and gradient norm a role.
        """
        self._dialogue = dict(prompts=prompts, turns=turns, new=turn_tokens, stop_ids=stop_ids)
        self._spent, self._tokens, whole, taken = [], [], [], []
        for role, seat in zip(self._roles, self._seats, strict=True):
            examples = [{"prompt": text(ids)} for ids in prompts[role]]
            began = time.perf_counter()
            taken.append(seat.step(examples))
            whole.append(time.perf_counter() - began)
        seconds = sum(whole)
        return {
            "seconds": seconds,
            "shared_seconds": seconds - sum(self._spent[1:]),
            "rollout_seconds": self._spent,
            "update_seconds": [a - b for a, b in zip(whole, self._spent, strict=True)],
            "tokens": self._tokens,
            "loss": [loss for loss, _ in taken],
            "grad_norm": [norm for _, norm in taken],
        }

    def _rollout_of(self, own: int) -> Callable[[list[str], Any], dict[str, Any]]:
        """The `rollout_func` of the trainer of role `own`."""

        def rollout(texts: list[str], _: Any) -> dict[str, Any]:
            began = time.perf_counter()
            told = self._dialogue
            starts = [ids_of(line) for line in texts]
            against = told["prompts"][self._roles[1 - own]]
            views = [[list(ids) for ids in (starts if i == own else against)] for i in range(2)]
            masks: list[list[int]] = [[] for _ in texts]  # of the own view, after the prompt
            turns: list[list[list[int]]] = [[] for _ in texts]
            sampled_tokens = 0
            for turn in range(told["turns"]):
                speaker = turn % 2
                for view in views[speaker]:
                    view.extend(HEADER)
                said = sampled(
                    self._seats[speaker].model, views[speaker], told["new"], told["stop_ids"]
                )
                for row, words in enumerate(said):
                    sampled_tokens += len(words)
                    views[speaker][row].extend((*words, *CLOSER))
                    views[1 - speaker][row].extend((*HEADER, *words, *CLOSER))
                    on = int(speaker == own)
                    masks[row] += [0] * len(HEADER) + [on] * len(words) + [0] * len(CLOSER)
                    if on:
                        turns[row].append(words)
            self._tokens.append(sampled_tokens)
            out = {
                "prompt_ids": starts,
                "completion_ids": [v[len(s) :] for v, s in zip(views[own], starts, strict=True)],
                "logprobs": None,  # the loss takes its own: the policy has not moved since
                "env_mask": masks,
                "earned": [reward(own_turns) for own_turns in turns],
            }
            self._spent.append(time.perf_counter() - began)
            return out

        return rollout


def share(earned: list[float | None], **_: Any) -> list[float | None]:
    """The reward that the rollout has found for each dialogue."""
    return earned


def numbers(size: int) -> PreTrainedTokenizerFast:
    """A tokenizer whose words are the ids themselves: the trainer wants one, to decode for logs."""
    words = Tokenizer(WordLevel({str(i): i for i in range(size)}, unk_token="0"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="0", pad_token="0")


def text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def ids_of(line: str) -> list[int]:
    return [int(word) for word in line.split()]
