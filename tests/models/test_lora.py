"""Adapters: where they sit, that fresh ones change nothing, that merged they compute the same."""

import functools
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util

from ibrl_jax.errors import UserError
from ibrl_jax.models.cache import empty_cache
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings, held_type, merge, variables
from ibrl_jax.models.params import abstract_adapters, adapter_axes, count_params, init_adapters
from ibrl_jax.models.presets import preset
from ibrl_jax.models.serving import Adapted, laid_out, next_logits, read, serving_adapters

HYBRID = preset("qwen3_5_micro", vocab_size=32, layers=2, period=("delta", "full"))
LORA = LoraSettings(rank=3, alpha=6.0, targets=("q", "attention/o", "z", "mlp/down"))
IDS = np.random.default_rng(0).integers(0, 32, (2, 9)).astype(np.int32)
POSITIONS = np.broadcast_to(np.arange(9), (2, 9)).astype(np.int32)
QUICK = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def base(random_params):
    return jax.tree.map(jax.numpy.asarray, random_params(HYBRID))


@pytest.fixture(scope="module")
def adapters():
    """Adapters that have moved."""
    rng = np.random.default_rng(1)
    return jax.tree.map(
        lambda x: (0.3 * rng.normal(size=x.shape)).astype(np.float32),
        abstract_adapters(HYBRID, LORA),
    )


@functools.partial(jax.jit, static_argnums=0, compiler_options=QUICK)
def hidden(lora, trained, frozen) -> Any:
    return Decoder(HYBRID, lora).apply(variables(trained, frozen), IDS, POSITIONS, None)


def test_adapters_sit_on_what_the_targets_name_and_nowhere_else():
    flat: Any = traverse_util.flatten_dict(abstract_adapters(HYBRID, LORA), sep="/")
    kernels = {name.rsplit("_", 1)[0] for name in flat}
    assert {name.removeprefix("layers/") for name in kernels} == {
        *(f"block0/delta/{kernel}" for kernel in ("q", "z")),
        *(f"block1/attention/{kernel}" for kernel in ("q", "o")),
        *(f"block{j}/mlp/down" for j in range(2)),
    }
    assert flat["layers/block1/attention/q_a"].shape == (1, 32, 3)
    assert flat["layers/block1/attention/q_b"].shape == (1, 3, 4, 32)  # query and gate
    assert flat["layers/block1/attention/o_a"].shape == (1, 4, 16, 3)
    assert flat["layers/block1/attention/o_b"].shape == (1, 3, 32)


def test_fresh_adapters_equal_the_base_bitwise(base):
    fresh = init_adapters(HYBRID, LORA, 0)
    flat: Any = traverse_util.flatten_dict(fresh)
    assert all(np.any(x) for path, x in flat.items() if path[-1][-1] == "a")
    np.testing.assert_array_equal(hidden(LORA, fresh, base), hidden(None, base, None))


def test_merged_weights_compute_what_base_and_adapters_do(base, adapters):
    want = hidden(LORA, adapters, base)
    assert np.abs(want - hidden(None, base, None)).max() > 0.1
    merged = merge(LORA, base, adapters)
    np.testing.assert_allclose(hidden(None, merged, None), want, atol=1e-4)


def test_reading_with_a_cache_equals_training_over_one_shared_base(base, adapters):
    model = Decoder(HYBRID, LORA)

    def advance(base, adapters):
        params = laid_out(HYBRID, Adapted(base=base, adapters=serving_adapters(HYBRID, adapters)))
        cache = empty_cache(HYBRID, 2, 12)
        real = np.ones((2, 9), bool)
        given: Any = (IDS, POSITIONS, real)
        x, _ = read(model, params, given[0], given[1], given[2], cache)
        return x, next_logits(model, params, x)

    x, _ = jax.jit(advance, compiler_options=QUICK)(base, adapters)
    np.testing.assert_allclose(x, hidden(LORA, adapters, base), atol=2e-5)


def test_gradients_reach_the_adapters_and_only_them(base, adapters):
    def loss(trained):
        x: Any = Decoder(HYBRID, LORA).apply(variables(trained, base), IDS, POSITIONS, None)
        return (x**2).sum()

    grads = jax.jit(jax.grad(loss), compiler_options=QUICK)(adapters)
    assert jax.tree.structure(grads) == jax.tree.structure(adapters)
    assert all(np.any(g) for g in jax.tree.leaves(grads))
    assert count_params(grads) < 0.4 * count_params(base)


def test_every_axis_of_an_adapter_has_a_name():
    axes: Any = traverse_util.flatten_dict(adapter_axes(HYBRID, LORA), sep="/")
    assert tuple(axes["layers/block1/attention/q_a"]) == ("layers", "embed", "lora_rank")
    assert tuple(axes["layers/block1/attention/q_b"]) == (
        "layers", "lora_rank", "heads", "head_dim",
    )  # fmt: skip


def test_a_base_is_held_in_the_compute_type_but_for_norms_and_decays(base):
    names = {path[-1] for path in traverse_util.flatten_dict(base)}
    wide = {name for name in names if held_type(name, "bfloat16") == "float32"}
    assert wide == {"scale", "A_log", "dt_bias"}
    assert all(held_type(name, "bfloat16") == "bfloat16" for name in names - wide)


@pytest.mark.parametrize(
    "targets, says",
    [
        (("q", "qq"), "config.lora.targets names 'qq', which matches nothing in this network"),
        (("delta/q",), "names 'delta/q', which matches nothing"),
        ((), "config.lora.targets is empty"),
    ],
)
def test_a_target_that_matches_nothing_is_named(targets, says):
    dense = preset("qwen3_micro", vocab_size=32)
    with pytest.raises(UserError, match=says):
        init_adapters(dense, replace(LORA, targets=targets), 0)
