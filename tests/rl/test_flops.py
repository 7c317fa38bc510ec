"""What the compiler counts is what the mathematics asks: nothing is computed twice unseen.

A product of [m, k] and [k, n] is 2 m k n operations; a pass back is twice a pass forward.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ibrl_jax.models.cache import empty_cache
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import abstract_params, count_params
from ibrl_jax.models.presets import preset
from ibrl_jax.models.score import score
from ibrl_jax.models.serving import next_logits, read, serving_params
from ibrl_jax.rl.batches import abstract_batch

ROWS, LENGTH, VOCAB = 2, 128, 256


@pytest.fixture(scope="module")
def network() -> ModelConfig:
    return preset("qwen3_tiny", vocab_size=VOCAB)


def counted(program: Any) -> float:
    return float(program.cost_analysis()["flops"])


def products(config: ModelConfig) -> int:
    """Multiply-adds of a token's passage through all kernels, the tied output among them."""
    return count_params(abstract_params(config))


def attention(config: ModelConfig, seen: float) -> float:
    """Multiply-adds of a token's attention, scores and sums, over `seen` others."""
    return 2 * config.layers * config.heads * config.head_dim * seen


def update_program(toy: Any, config: ModelConfig) -> Any:
    def scored(trained, frozen, ids, positions, segment_ids, temperature, at):
        model, tokens = Decoder(config, None), (ids, positions, segment_ids)
        return score(model, trained, frozen, *tokens, temperature, LENGTH, at)

    learner = toy.learner(score=scored, micro=ROWS, stacked=("layers",))
    on_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    params = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=on_device),
        abstract_params(config),
    )
    batches = [abstract_batch(2 * ROWS, LENGTH)]
    learner.warmup(learner.abstract(params), None, batches, toy.hyper(), reference=False)
    (program,) = learner.programs.values()
    return program


def test_an_update_computes_each_product_three_times_and_the_logits_once_more(toy, network):
    """Its loop over micro-batches is counted once, so the count is that of one."""
    tokens = ROWS * LENGTH
    needed = 6 * tokens * (products(network) + attention(network, LENGTH / 2))
    again = 2 * tokens * network.hidden * VOCAB  # logits are not kept for the way back
    found = counted(update_program(toy, network))
    assert 1.0 < found / (needed + again) < 1.25


def test_a_decode_step_reads_each_kernel_once_and_the_cache_once(network):
    rows, entries = 8, 64

    def step(params: Any, ids: jax.Array, positions: jax.Array, cache: Any) -> Any:
        model, real = Decoder(network, None), jnp.ones((rows, 1), bool)
        hidden, cache = read(model, params, ids, positions, real, cache)
        return next_logits(model, params, hidden), cache

    params = jax.eval_shape(partial(serving_params, network), abstract_params(network))
    one = jax.ShapeDtypeStruct((rows, 1), np.int32)
    cache = jax.eval_shape(partial(empty_cache, network, rows, entries))
    found = counted(jax.jit(step).lower(params, one, one, cache).compile())
    needed = 2 * rows * (products(network) + attention(network, entries))
    assert 1.0 < found / needed < 1.25


def test_log_probs_of_some_tokens_cost_what_they_need(network):
    """All but the head, and all but the last layer's keys and values, is of those tokens alone."""
    model, rows, some = Decoder(network, None), 4, LENGTH // 4
    ids = jax.ShapeDtypeStruct((rows, LENGTH), np.int32)
    at = jax.ShapeDtypeStruct((rows, some), np.int32)

    def of(params: Any, ids: jax.Array, at: jax.Array | None) -> Any:
        return score(model, params, None, ids, ids, None, 1.0, LENGTH, at)

    params = abstract_params(network)
    whole = counted(jax.jit(of, static_argnums=2).lower(params, ids, None).compile())
    found = counted(jax.jit(of).lower(params, ids, at).compile())
    c = network
    layer = c.hidden * (2 * c.heads * c.head_dim + 3 * c.mlp) + 2 * c.heads * c.head_dim * LENGTH
    spared = 2 * rows * (LENGTH - some) * (layer + c.hidden * VOCAB)
    assert 0.8 * spared < whole - found < 1.2 * spared
