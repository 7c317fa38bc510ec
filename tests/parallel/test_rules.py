"""Every name has its place on the mesh, and what cannot be placed is refused by name."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh
from jax.sharding import PartitionSpec as P

from ibrl_jax.errors import UserError
from ibrl_jax.models.cache import cache_axes, empty_cache
from ibrl_jax.models.lora import LoraSettings
from ibrl_jax.models.params import (
    abstract_adapters,
    abstract_params,
    adapter_axes,
    count_params,
    logical_axes,
)
from ibrl_jax.models.presets import preset
from ibrl_jax.parallel.mesh import AXES
from ibrl_jax.parallel.place import gather, put
from ibrl_jax.parallel.rules import RULES, batch_sharding, constrain, mesh_of, shardings, spec, use


def mesh(data, fsdp, tensor) -> AbstractMesh:
    return AbstractMesh((data, fsdp, tensor), AXES, axis_types=(AxisType.Auto,) * 3)


def one_device() -> Mesh:
    return Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES, axis_types=(AxisType.Auto,) * 3)


def shape(*sizes, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def kernels(kv_heads=2):
    """(logical axes, shapes) of two kernels of a layer."""
    axes = {"q": P("layers", "embed", "heads", "head_dim"), "k": P(None, "embed", "kv_heads", None)}
    shapes = {"q": shape(2, 32, 4, 16), "k": shape(2, 32, kv_heads, 16)}
    return {"attention": axes}, {"attention": shapes}


def test_a_rule_names_axes_of_the_mesh_alone():
    assert {axis for wanted in RULES.values() for axis in wanted} == set(AXES)


@pytest.mark.parametrize(
    "axes, placed",
    [
        (P("vocab", "embed"), P("tensor", "fsdp")),
        (P("layers", "embed", "heads", "head_dim"), P(None, "fsdp", "tensor", None)),
        (P("lora_rank", "kv_heads", "head_dim"), P(None, "tensor", None)),
        (P("value_heads", None, "conv"), P("tensor", None, None)),
        (P("slots", "kv_heads", "head_dim", None), P(("data", "fsdp"), "tensor", None, None)),
        (P("batch", "time", None), P(("data", "fsdp"), None, None)),
        (P(), P()),
    ],
)
def test_names_become_axes_of_the_mesh(axes, placed):
    assert spec(axes, "x") == placed


@pytest.mark.parametrize(
    "axes, sentence",
    [
        (P("heads", "mlp"), "two axes of layers/q, heads and mlp, both want the mesh axis tensor"),
        (P("batch", None, "embed"), "two axes of layers/q, batch and embed, both want .* fsdp"),
        (P("embed", "embed"), "two axes of layers/q, embed and embed, both want .* fsdp"),
    ],
)
def test_a_collision_is_refused_by_name(axes, sentence):
    with pytest.raises(UserError, match=sentence):
        spec(axes, "layers/q")


def test_a_name_without_a_rule_is_no_silent_replication():
    with pytest.raises(ValueError, match="no rule for an axis named 'head'"):
        spec(P("head"), "x")


def test_shardings_follow_the_tree():
    m = mesh(2, 2, 2)
    placed = shardings(m, *kernels(), "the model")["attention"]
    assert placed["q"].spec == P(None, "fsdp", "tensor", None)
    assert placed["k"].spec == P(None, "fsdp", "tensor", None)
    assert placed["k"].mesh == m
    assert placed["k"].shard_shape((2, 32, 2, 16)) == (2, 16, 1, 16)


def test_axes_left_out_at_the_end_are_whole():
    placed = shardings(mesh(1, 8, 1), [P("embed")], [shape(32, 7)], "the model")
    assert placed[0].shard_shape((32, 7)) == (4, 7)


def test_an_indivisible_dimension_is_refused_with_name_size_and_axis():
    with pytest.raises(UserError) as refused:
        shardings(mesh(1, 2, 4), *kernels(), "the model")
    assert str(refused.value) == (
        "attention/k of the model has kv_heads 2, which mesh.tensor = 4 does not divide; choose a "
        "tensor that divides it."
    )


def test_an_indivisible_dimension_of_two_axes_names_both():
    with pytest.raises(UserError, match="slots 6, which mesh.data x mesh.fsdp = 4 does not divide"):
        shardings(mesh(2, 2, 2), [P("slots")], [shape(6)], "the cache")


def test_a_collision_in_a_tree_names_the_parameter():
    with pytest.raises(UserError, match="two axes of mlp/up of the model, mlp and vocab, both"):
        shardings(
            mesh(1, 1, 1),
            {"mlp": {"up": P("mlp", "vocab")}},
            {"mlp": {"up": shape(2, 2)}},
            "the model",
        )


def test_more_names_than_axes_is_an_error():
    with pytest.raises(ValueError, match="w of the model is"):
        shardings(mesh(1, 1, 1), {"w": P("embed", "mlp")}, {"w": shape(4)}, "the model")


def test_rows_of_a_batch_are_spread_over_data_and_fsdp():
    batch = {"ids": shape(8, 16), "advantage": shape(8)}
    placed = batch_sharding(mesh(2, 2, 2), batch)
    assert placed["ids"].shard_shape((8, 16)) == (2, 16)
    assert placed["advantage"].shard_shape((8,)) == (2,)


def test_rows_within_a_micro_batch_are_spread_and_micro_batches_are_not():
    batch = {"ids": shape(3, 8, 16), "advantage": shape(3, 8)}
    placed = batch_sharding(mesh(2, 2, 2), batch)
    assert placed["ids"].shard_shape((3, 8, 16)) == (3, 2, 16)
    assert placed["advantage"].shard_shape((3, 8)) == (3, 2)


@pytest.mark.parametrize("sizes", [(6, 16), (6,), (4, 6, 16)])
def test_rows_that_cannot_be_spread_are_refused_by_the_setting_s_name(sizes):
    with pytest.raises(UserError) as refused:
        batch_sharding(mesh(2, 2, 2), shape(*sizes))
    assert str(refused.value) == (
        "a batch has 6 rows, which mesh.data x mesh.fsdp = 4 does not divide; make "
        "config.optimiser.micro_batch a multiple of 4."
    )


@cache
def described(name):
    """(axes, shapes) of a network; and of its adapters and caches, by what they are."""
    config = preset(name)
    lora = LoraSettings(rank=16, alpha=16.0, targets=("q", "k", "v", "o", "gate", "up", "down"))
    others = {
        "the adapters": (adapter_axes(config, lora), abstract_adapters(config, lora)),
        "the cache": (cache_axes(config), jax.eval_shape(lambda: empty_cache(config, 64, 16))),
    }
    return logical_axes(config), abstract_params(config), others


@pytest.mark.parametrize("sizes", [(1, 32, 1), (1, 8, 1), (2, 2, 2)])
@pytest.mark.parametrize("name", ["qwen2_5_7b", "qwen3_5_9b"])
def test_released_networks_their_caches_and_adapters_have_a_place_on_meshes_of_any_kind(
    name, sizes
):
    m = mesh(*sizes)
    axes, network, others = described(name)
    held = shardings(m, axes, network, "the model")
    for what, (axes, tree) in others.items():
        shardings(m, axes, tree, what)
    here = sum(
        np.prod(s.shard_shape(x.shape))
        for s, x in zip(jax.tree.leaves(held), jax.tree.leaves(network), strict=True)
    )
    ways = sizes[1] * sizes[2]  # over data there are copies
    assert count_params(network) / ways <= here < 1.05 * count_params(network) / ways


def constraints(traced) -> list[P]:
    """The specs that a traced program asks for."""
    eqns = traced.jaxpr.eqns
    return [e.params["sharding"].spec for e in eqns if e.primitive.name == "sharding_constraint"]


def traced(x, *axes) -> list[P]:
    return constraints(jax.make_jaxpr(lambda x: constrain(x, *axes))(x))


def test_constrain_without_a_mesh_is_nothing():
    x = jnp.ones((4, 2))
    assert constrain(x, "batch", None) is x
    assert traced(x, "batch", None) == []


def test_constrain_reads_the_mesh_in_use_and_use_gives_it_back():
    x = jnp.ones((4, 2, 6))
    with use(one_device()):
        assert traced(x, "batch", "time", None) == [P(("data", "fsdp"), None, None)]
        with use(None):
            assert traced(x, "batch", "time", None) == []
        assert traced(x, "batch", "time", "vocab") == [P(("data", "fsdp"), None, "tensor")]
    assert traced(x, "batch", "time", None) == []


def test_constrain_leaves_to_the_compiler_what_its_axes_do_not_divide():
    with jax.sharding.use_abstract_mesh(mesh(2, 2, 2)):
        assert traced(jnp.ones((6, 8)), "batch", "vocab") == [P(P.UNCONSTRAINED, "tensor")]


def test_constrain_wants_a_name_for_every_axis():
    with use(one_device()), pytest.raises(ValueError, match="for an array of 2"):
        traced(jnp.ones((4, 2)), "batch")


def test_one_function_is_traced_anew_for_another_mesh():
    seen = []

    def f(x):
        seen.append(jax.sharding.get_abstract_mesh().shape)
        return constrain(x, "batch")

    for m in (mesh(2, 1, 1), mesh(4, 1, 1), mesh(2, 1, 1)):
        with jax.sharding.use_abstract_mesh(m):
            jax.eval_shape(jax.jit(f), shape(8))
    assert [dict(s)["data"] for s in seen] == [2, 4]


def test_what_is_put_comes_back_and_shares_no_memory():
    raw = np.zeros(4096 + 64, np.uint8)
    start = -raw.ctypes.data % 64  # aligned as a CPU device would read it in place
    host = raw[start : start + 4096].view(np.float32)
    host[:] = 1.0
    placed = put({"w": host}, shardings(one_device(), {"w": P("embed")}, {"w": host}, "x"))
    host[:] = 2.0
    back = gather(placed["w"])
    assert back.dtype == np.float32
    assert (back == 1.0).all()
    placed["w"].delete()
    assert (back == 1.0).all()


def test_the_mesh_of_a_tree_is_that_of_its_placed_arrays():
    m = one_device()
    placed = put([np.ones(2)], shardings(m, [P()], [np.ones(2)], "x"))
    assert mesh_of([np.ones(2), *placed]) == m
    assert mesh_of([np.ones(2), jnp.ones(2)]) is None
