"""The update as tunix's GRPO learner does it: its loss, its trainer's compiled step, optax's AdamW.

The completion of a row is everything after its prompt. Where the loss mask is 0 the tokens are
read and not trained on, which is how tunix's agentic learner marks what an environment said.

A batch is taken in micro-batches of few rows by its gradient accumulation: on a CPU that was its
fastest (by some 5% over 64 rows at once), and 25M parameters would not fit into memory otherwise.
Tunix averages the micro-batches' means, so the loss is normalised by tokens only if each has
equally many that are trained on; the bench's batches do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.rl import function_registry  # pyright: ignore[reportMissingImports]
from tunix.rl.grpo.grpo_learner import (  # pyright: ignore[reportMissingImports]
    GRPOConfig,
    TrainExample,
)
from tunix.rl.trainer import Trainer  # pyright: ignore[reportMissingImports]
from tunix.sft.peft_trainer import TrainingConfig  # pyright: ignore[reportMissingImports]

LEARNING_RATE, B1, B2, CLIP_NORM = 1e-5, 0.9, 0.99, 1.0
KL, CLIP = 0.02, 0.2
MICRO_BATCH = 8
"""Rows a pass forward and back."""


class Update:
    """A trainer of one role and the batch that it is measured on.

    Args:
        model: tunix's network; the steps change it.
        batch: `ids`, `loss_mask`, `behaviour_logp` and `reference_logp` of [B, T], a value at t
            belonging to the token at t; `advantage` [B]; `prompt_length`, the same in all rows.
    """

    def __init__(self, model: Any, batch: Mapping[str, Any], *, pad_id: int, eos_id: int) -> None:
        whole = example(batch)
        rows = len(whole.prompt_ids)
        micro = math.gcd(rows, MICRO_BATCH)
        self._micro = [_rows(whole, at, micro) for at in range(0, rows, micro)]
        self._trainer = _trainer(model, len(self._micro), pad_id=pad_id, eos_id=eos_id)
        self._step, _ = self._trainer.jit_train_and_eval_step(cache_nnx_graph=True)

    def steps(self, repeat: int) -> dict[str, Any]:
        """So many updates: seconds of all, and the first one's loss and gradient norm.

        The norm is of the whole batch's gradient, before clipping.
        """
        first, norm, seconds = [], 0.0, 0.0
        for n in range(repeat):
            began = time.perf_counter()
            found = [self._step(micro) for micro in self._micro]
            jax.block_until_ready((found, nnx.state(self._trainer.model)))
            seconds += time.perf_counter() - began
            if n == 0:
                first, norm = [float(loss) for loss, _, _ in found], self._norm()
        return {"seconds": seconds, "loss": sum(first) / len(first), "grad_norm": norm}

    def _norm(self) -> float:
        state = self._trainer.optimizer.opt_state
        if len(self._micro) > 1:
            state = state.inner_opt_state
        return float(state[0][...])


def example(batch: Mapping[str, Any]) -> TrainExample:
    """The batch as tunix's learner hands it to its trainer: prompts and completions apart."""
    prompt = int(np.ravel(batch["prompt_length"])[0])
    ids, mask = batch["ids"].astype(np.int32), batch["loss_mask"].astype(bool)

    def completion(name: str) -> jax.Array:
        """[B, C], zero where nothing is trained on."""
        return jnp.asarray(np.where(mask, batch[name], 0.0)[:, prompt:], jnp.float32)

    return TrainExample(
        prompt_ids=jnp.asarray(ids[:, :prompt]),
        prompt_mask=jnp.ones((len(ids), prompt), bool),
        completion_ids=jnp.asarray(ids[:, prompt:]),
        completion_mask=jnp.asarray(mask[:, prompt:]),
        advantages=jnp.asarray(batch["advantage"], jnp.float32),
        ref_per_token_logps=completion("reference_logp"),
        old_per_token_logps=completion("behaviour_logp"),
    )


def _rows(whole: TrainExample, at: int, count: int) -> TrainExample:
    return jax.tree.map(lambda x: x[at : at + count], whole)


def _trainer(model: Any, accumulate: int, *, pad_id: int, eos_id: int) -> Trainer:
    """The trainer, with the loss and the inputs that `GRPOLearner` gives it."""
    config = GRPOConfig(
        loss_agg_mode="token-mean", kl_loss_mode="low_var_kl", beta=KL, epsilon=CLIP
    )
    # The learner writes it there from the sampler's settings.
    config.temperature = 1.0  # pyright: ignore[reportAttributeAccessIssue]
    loss = function_registry.get_policy_loss_fn(config.policy_loss_fn)

    def loss_fn(model: Any, train_example: Any, algo_config: Any) -> Any:
        return loss(model, train_example, algo_config=algo_config, pad_id=pad_id, eos_id=eos_id)

    def as_input(train_example: Any) -> dict[str, Any]:
        return {"train_example": train_example, "algo_config": config}

    optimiser = optax.chain(
        _remember_norm(),
        optax.clip_by_global_norm(CLIP_NORM),
        optax.adamw(LEARNING_RATE, b1=B1, b2=B2, weight_decay=0.0),
    )
    settings = TrainingConfig(
        eval_every_n_steps=1, gradient_accumulation_steps=accumulate if accumulate > 1 else None
    )
    trainer = Trainer(model, optimiser, settings, custom_checkpoint_metadata_fn=dict)
    trainer.with_loss_fn(loss_fn, has_aux=True)
    trainer.with_gen_model_input_fn(as_input)
    # Placed as the step leaves it, or the second step would compile a program of its own; under a
    # mesh the trainer sees to that itself.
    state = nnx.state(trainer.optimizer)
    nnx.update(trainer.optimizer, jax.device_put(state, jax.devices()[0]))
    return trainer


def _remember_norm() -> optax.GradientTransformation:
    """Changes nothing; its state is the norm of the gradient that it saw last."""

    def init(params: Any) -> jax.Array:
        return jnp.zeros((), jnp.float32)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, jax.Array]:
        return updates, optax.global_norm(updates)

    return optax.GradientTransformation(init, update)
