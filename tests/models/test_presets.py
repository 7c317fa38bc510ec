"""Sizes, parameter trees, and what a wrong config says."""

from dataclasses import replace
from functools import cache

import jax
import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.models import table as tables
from ibrl_jax.models.params import abstract_params, count_params, init_params, logical_axes
from ibrl_jax.models.presets import PRESETS, SCRATCH, preset
from ibrl_jax.models.table import EMBEDDED_VOCABULARY, table

BILLIONS = {
    "smollm2_135m": "0.135",
    "qwen2_5_0_5b": "0.494",
    "qwen2_5_1_5b": "1.54",
    "qwen2_5_3b": "3.09",
    "qwen2_5_7b": "7.62",
    "qwen3_0_6b": "0.596",
    "qwen3_1_7b": "1.72",
    "qwen3_4b": "4.02",
    "qwen3_8b": "8.19",
    "qwen3_5_0_8b": "0.752",
    "qwen3_5_2b": "1.88",
    "qwen3_5_4b": "4.21",
    "qwen3_5_9b": "8.95",
}

shapes_of = cache(abstract_params)
"""Each takes a while to trace, and several tests look at it."""


@pytest.mark.parametrize("name", BILLIONS)
def test_released_sizes_have_their_published_parameter_counts(name):
    count = count_params(shapes_of(preset(name))) / 1e9
    assert f"{count:.3g}" == BILLIONS[name]


def test_every_released_preset_is_counted_and_printed(monkeypatch):
    monkeypatch.setattr(tables, "abstract_params", shapes_of)
    assert set(BILLIONS) == set(PRESETS) - set(SCRATCH)
    printed = {str(cell) for cell in table().columns[2].cells}
    assert {"0.752 B", "1.88 B", "4.21 B", "8.95 B", "0.596 B", "135 M", "494 M"} <= printed


def test_small_sizes_are_small():
    assert count_params(abstract_params(preset("qwen3_tiny", vocab_size=370))) == pytest.approx(
        147e3, rel=0.01
    )
    assert count_params(abstract_params(preset("qwen3_micro", vocab_size=64))) < 30e3


def test_every_preset_overrides_fields_and_names_every_axis():
    for name in PRESETS:
        config = preset(name, vocab_size=128, rope_theta=5e6)
        assert (config.vocab_size, config.rope_theta) == (128, 5e6)
        plain = preset(name, **(dict(vocab_size=EMBEDDED_VOCABULARY) if name in SCRATCH else {}))
        shapes, axes = shapes_of(plain), logical_axes(plain)
        for shape, spec in zip(jax.tree.leaves(shapes), jax.tree.leaves(axes), strict=True):
            assert len(spec) == len(shape.shape)
            assert None not in spec


def test_kernels_start_with_variance_one_over_fan_in_and_differ_by_layer_and_seed():
    config = preset("qwen3_tiny", vocab_size=512)
    params, again, other = (init_params(config, seed) for seed in (0, 0, 1))
    layers = params["layers"]["block0"]
    for leaf, fan_in in [
        (params["embed"], 64),
        (layers["attention"]["q"], 64),
        (layers["attention"]["o"], 128),
        (layers["mlp"]["down"], 192),
    ]:
        assert np.std(leaf) * fan_in**0.5 == pytest.approx(1, abs=0.03)
    assert np.abs(layers["mlp"]["up"][0] - layers["mlp"]["up"][1]).max() > 0.1
    np.testing.assert_array_equal(params["embed"], again["embed"])
    assert np.abs(params["embed"] - other["embed"]).max() > 0.1


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: preset("qwen9"), "qwen3_tiny"),
        (lambda: preset("qwen3_tiny"), "vocab_size"),
        (lambda: preset("qwen3_8b", depth=3), "depth"),
        (lambda: preset("qwen3_8b", kv_heads=5), "kv_heads"),
        (lambda: preset("qwen3_8b", head_dim=7), "rotary_dim"),
        (lambda: preset("qwen3_8b", period=("full", "mamba")), "mamba"),
        (lambda: preset("qwen3_8b", period=("full",) * 5), "must divide model.layers, 36"),
        (lambda: preset("qwen3_8b", period=("full", "delta")), "model.delta"),
        (lambda: preset("qwen3_5_4b", period=("delta",)), "no full layer"),
        (lambda: preset("qwen3_8b", attention="flash"), "flash"),
        (lambda: preset("qwen3_8b", dtype="int8"), "int8"),
        (lambda: replace(preset("qwen3_8b"), layers=0), "layers"),
    ],
)
def test_mistakes_are_named(call, says):
    with pytest.raises(UserError, match=says):
        call()
