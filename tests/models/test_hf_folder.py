"""Folders of weights: read into any sharding with little memory, written whole or not at all."""

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from ibrl_jax.errors import UserError
from ibrl_jax.models import hf_folder
from ibrl_jax.models.hf import from_tensors
from ibrl_jax.models.hf_config import TokenIds, network
from ibrl_jax.models.params import abstract_params
from tests.models.hf_families import FAMILIES, HOW, model

IDS = TokenIds(bos=1, eos=(2,), pad=None)


def wide(path):
    return jnp.float32


def write(folder, config, params, as_type=wide, max_shard=1 << 30, files=None):
    hf_folder.write(
        folder,
        config,
        params,
        as_type=as_type,
        ids=IDS,
        max_positions=512,
        files=files or {},
        max_shard=max_shard,
    )


@pytest.fixture
def written(tmp_path):
    """A hybrid in several files: its network, parameters and folder."""
    config, tensors = model("qwen35")
    params = from_tensors(config, tensors)
    write(tmp_path / "model", config, params, max_shard=20_000)
    return config, params, tmp_path / "model"


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_read(family, tmp_path):
    config, tensors = model(family)
    params = from_tensors(config, tensors)
    write(tmp_path / "model", config, params, files={"tokenizer.json": b"{}"})
    assert network(tmp_path / "model", **HOW) == config
    jax.tree.map(
        np.testing.assert_array_equal,
        hf_folder.read(tmp_path / "model", config, None, wide),
        params,
    )
    names = {path.name for path in (tmp_path / "model").iterdir()}
    configs = {"config.json", "generation_config.json"}
    assert names == configs | {"model.safetensors", "tokenizer.json"}
    generation = json.loads((tmp_path / "model/generation_config.json").read_text())
    assert generation == dict(bos_token_id=1, eos_token_id=2, pad_token_id=None)
    for name, tensor in load_file(tmp_path / "model/model.safetensors").items():
        np.testing.assert_array_equal(tensor, tensors[name])


def test_several_files_are_indexed_and_none_is_larger_than_asked(written):
    config, params, folder = written
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    total = 0
    for file in files:
        tensors = load_file(folder / file)
        assert all(index["weight_map"][name] == file for name in tensors)
        size = sum(tensor.nbytes for tensor in tensors.values())
        assert size <= 20_000
        total += size
    assert index["metadata"]["total_size"] == total
    read = hf_folder.read(folder, config, None, wide)
    jax.tree.map(np.testing.assert_array_equal, read, params)


def test_each_leaf_is_read_and_written_in_the_type_asked_for(tmp_path):
    def mixed(path):
        kept = path.rsplit("/", 1)[-1] in ("scale", "A_log", "dt_bias")
        return jnp.float32 if kept else jnp.bfloat16

    config, tensors = model("qwen35")
    params = from_tensors(config, tensors)
    write(tmp_path / "model", config, params, as_type=mixed)
    with safe_open(tmp_path / "model/model.safetensors", framework="numpy") as file:
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds["model.layers.0.linear_attn.A_log"] == "F32"
    assert kinds["model.layers.0.linear_attn.in_proj_qkv.weight"] == "BF16"
    assert json.loads((tmp_path / "model/config.json").read_text())["dtype"] == "bfloat16"
    for as_type in (mixed, wide):
        read = hf_folder.read(tmp_path / "model", config, None, as_type)
        for path, leaf in jax.tree_util.tree_leaves_with_path(read):
            name = "/".join(key.key for key in path)
            assert leaf.dtype == as_type(name)
            want = params
            for key in path:
                want = want[key.key]
            np.testing.assert_array_equal(
                np.asarray(leaf, np.float32), np.asarray(want.astype(mixed(name)), np.float32)
            )


def test_reading_holds_at_most_twice_the_largest_tensor(tmp_path, monkeypatch):
    """What numpy and Python hold on the way, the arrays of the device not counted."""
    about = dict(
        model_type="qwen3",
        vocab_size=64,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    config = network(about, **HOW)
    rng = np.random.default_rng(0)
    shapes = abstract_params(config)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    write(tmp_path / "model", config, params)
    monkeypatch.setattr("ibrl_jax.models.hf._BLOCK", 1 << 16)  # as small beside these tensors
    hf_folder.read(tmp_path / "model", config, None, wide)  # compiles
    largest = 4 * 256 * 1024
    tracemalloc.start()
    try:
        hf_folder.read(tmp_path / "model", config, None, wide)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 2 * largest


SHARDED = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from ibrl_jax.models import hf_folder
from ibrl_jax.models.hf import from_tensors
from ibrl_jax.models.params import abstract_params, logical_axes
from ibrl_jax.parallel.rules import shardings
from tests.models.hf_families import model

config, tensors = model("qwen35")
want = from_tensors(config, tensors)
types = (jax.sharding.AxisType.Auto,) * 3
for shape in [(8, 1, 1), (2, 2, 2)]:
    mesh = jax.make_mesh(shape, ("data", "fsdp", "tensor"), axis_types=types)
    places = shardings(mesh, logical_axes(config), abstract_params(config), "the parameters")
    read = hf_folder.read(Path(sys.argv[1]), config, places, lambda path: jnp.float32)
    jax.tree.map(np.testing.assert_array_equal, read, want)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding == s, read, places)))
out = Path(sys.argv[1]).parent / "again"
hf_folder.write(
    out, config, read, as_type=lambda path: jnp.float32, files={}, max_shard=1 << 30,
    ids=hf_folder.TokenIds(bos=None, eos=(1,), pad=None), max_positions=8,
)
back = hf_folder.read(out, config, None, lambda path: jnp.float32)
jax.tree.map(np.testing.assert_array_equal, back, want)
"""


def test_eight_devices_hold_their_shares_and_write_the_same(written):
    _, _, folder = written
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, str(folder)],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr


def test_a_failed_export_leaves_nothing(tmp_path, monkeypatch):
    config, tensors = model("qwen3")
    params = from_tensors(config, tensors)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf_folder, "_tensor", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "model", config, params)
    assert not list(tmp_path.iterdir())


def test_an_export_replaces_nothing(written):
    config, params, folder = written
    with pytest.raises(UserError, match="is there already"):
        write(folder, config, params)


def test_a_damaged_folder_is_one_sentence_that_names_the_file(written):
    config, _, folder = written
    file = sorted(folder.glob("model-*.safetensors"))[1]
    data = file.read_bytes()

    def refuses(message):
        with pytest.raises(UserError, match=message):
            hf_folder.read(folder, config, None, wide)

    for length in (len(data) - 1, len(data) // 2, 100, 0):
        os.truncate(file, length)
        refuses(f"{file.name} is cut short or broken")
    file.unlink()
    refuses(f"{file.name} is missing")
    some = load_file(sorted(folder.glob("model-*.safetensors"))[0])
    save_file(dict(list(some.items())[:1]), file)
    refuses("and so should|lacks the tensor")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    refuses("index.json cannot be read")
    (folder / "model.safetensors.index.json").unlink()
    refuses("has no weights")


def test_unknown_missing_misshapen_and_foreign_tensors_are_named(tmp_path):
    config, tensors = model("llama")
    name = "model.layers.1.mlp.up_proj.weight"

    def refuses(changes, message):
        kept = {k: v for k, v in (tensors | changes).items() if v is not None}
        save_file(kept, tmp_path / "model.safetensors")
        with pytest.raises(UserError, match=message):
            hf_folder.read(tmp_path, config, None, wide)

    refuses({name: None}, f"lacks the tensor '{name}'")
    refuses({name: tensors[name][1:]}, f"'{name}' has shape")
    refuses({"extra": np.zeros(2, np.float32)}, "has the tensor 'extra'")
    refuses({name: tensors[name].astype(np.int8)}, f"'{name}' is of type I8; it must be one of F32")
