"""A network is what its config.json says, in every spelling; what we do not do is refused."""

import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.models.hf_config import TokenIds, network, to_hf
from ibrl_jax.models.presets import LARGE, preset
from tests.models.hf_families import FAMILIES, HOW, golden

IDS = TokenIds(bos=None, eos=(5, 6), pad=5)
HYBRID = ("delta", "delta", "delta", "full")


def about(family, **changes):
    values = golden(family)[0] | changes
    return {name: value for name, value in values.items() if value is not None}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_survives_the_way_there_and_back(family):
    config = network(about(family), **HOW)
    told = to_hf(config, ids=IDS, max_positions=512, dtype="float32")
    assert network(told, **HOW) == config
    assert told["eos_token_id"] == [5, 6]


@pytest.mark.parametrize("name", ["qwen2_5_7b", "qwen3_4b", "qwen3_5_9b", "smollm2_135m"])
def test_a_preset_survives_too(name):
    config = preset(name)
    told = to_hf(config, ids=IDS, max_positions=512, dtype="bfloat16")
    chunk = config.delta.chunk if config.delta else 1
    assert network(told, chunk=chunk, **LARGE) == config


def test_rope_theta_is_read_in_both_spellings():
    alone = about("qwen3", rope_theta=5e6)
    assert network(alone, **HOW).rope_theta == 5e6
    inside = about("qwen3", rope_theta=None, rope_parameters=dict(rope_theta=7e6))
    assert network(inside, **HOW).rope_theta == 7e6
    assert network(about("llama", rope_theta=None), **HOW).rope_theta == 1e4
    old = about("llama", rope_scaling=dict(type="default"), rope_theta=3)
    assert network(old, **HOW).rope_theta == 3.0


def test_a_rotated_part_of_a_head_is_read_in_both_spellings():
    assert network(about("qwen35"), **HOW).rotary_dim == 4
    rope = dict(rope_type="default", rope_theta=1e7)
    assert network(about("qwen35", rope_parameters=rope), **HOW).rotary_dim == 4
    half = about("qwen35", rope_parameters=rope, partial_rotary_factor=0.5)
    assert network(half, **HOW).rotary_dim == 8


def test_the_period_is_the_shortest_that_the_layers_repeat():
    assert network(about("qwen35"), **HOW).period == HYBRID
    assert network(about("qwen35", layer_types=None), **HOW).period == HYBRID
    pair = network(about("qwen35", layer_types=None, full_attention_interval=2), **HOW)
    assert pair.period == ("delta", "full")
    odd = ["full_attention"] + ["linear_attention"] * 7
    assert len(network(about("qwen35", layer_types=odd), **HOW).period) == 8
    assert network(about("qwen3"), **HOW).period == ("full",)


def test_the_text_model_is_found_inside_one_that_sees_images():
    text = about("qwen35", tie_word_embeddings=None)
    nested = dict(model_type="qwen3_5", text_config=text, vision_config={})
    assert not network(nested, **HOW).tied
    tied = network(nested | dict(tie_word_embeddings=True), **HOW)
    assert tied == network(about("qwen35"), **HOW)


def test_heads_are_as_wide_as_the_family_says_where_the_file_does_not():
    assert network(about("llama", head_dim=None), **HOW).head_dim == 8
    assert network(about("qwen3", head_dim=None), **HOW).head_dim == 128


@pytest.mark.parametrize(
    "family, changes, message",
    [
        ("qwen3", dict(model_type="gemma"), "model_type 'gemma'; known are llama, qwen2"),
        ("qwen3", dict(hidden_size=None), "config.json lacks 'hidden_size'"),
        ("qwen3", dict(hidden_size="32"), "'hidden_size': '32'; it must be a whole number"),
        ("qwen3", dict(hidden_size=True), "'hidden_size': True; it must be a whole number"),
        ("qwen3", dict(num_attention_heads=0), "model.heads is 0"),
        ("qwen3", dict(tie_word_embeddings=1), "must be true or false"),
        ("qwen3", dict(attention_bias=True), "sets 'attention_bias'"),
        ("qwen25", dict(use_sliding_window=True), "sets 'use_sliding_window'"),
        ("llama", dict(hidden_act="gelu"), "hidden_act 'gelu'"),
        ("llama", dict(rope_scaling=dict(rope_type="llama3")), "rotary positions 'llama3'"),
        ("qwen25", dict(rope_scaling=dict(type="yarn", factor=4.0)), "rotary positions 'yarn'"),
        ("qwen3", dict(rope_parameters={"full_attention": {}}), "from layer to layer"),
        ("qwen3", dict(partial_rotary_factor=0.5), "partial_rotary_factor of 0.5"),
        ("qwen3", dict(layer_types=["full_attention"]), "no list of num_hidden_layers, 2"),
        ("qwen3", dict(layer_types=["sliding_attention"] * 2), "type 'sliding_attention'"),
        ("qwen3", dict(layer_types=["linear_attention"] * 2), "type 'linear_attention'"),
        ("qwen35", dict(attn_output_gate=False), "no 'attn_output_gate'"),
        ("qwen35", dict(linear_key_head_dim=None), "lacks 'linear_key_head_dim'"),
        ("qwen3", dict(model_type="qwen3_5"), "lacks 'text_config'"),
    ],
)
def test_what_we_do_not_do_is_refused(family, changes, message):
    with pytest.raises(UserError, match=message):
        network(about(family, **changes), **HOW)


def test_a_network_of_no_family_is_not_exported():
    mixed = preset("qwen3_micro", vocab_size=8, qkv_bias=True)
    with pytest.raises(UserError, match="of no family that transformers knows"):
        to_hf(mixed, ids=IDS, max_positions=8, dtype="float32")


def test_a_folder_without_a_readable_config_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"config.json cannot be read \(No such file"):
        network(tmp_path, **HOW)
    for text, message in [("{", "is not JSON"), ("[]", "holds no JSON object")]:
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=message):
            network(tmp_path, **HOW)
