"""A mesh holds every device once, and each process has a block of it."""

from __future__ import annotations

import numpy as np
import pytest
from jax.sharding import AxisType

from ibrl_jax.errors import UserError
from ibrl_jax.parallel.mesh import AXES, MeshSettings, build_mesh, local_mesh, split


def sizes(data, fsdp, tensor) -> MeshSettings:
    return MeshSettings(data=data, fsdp=fsdp, tensor=tensor)


def ids(mesh) -> list:
    return np.vectorize(lambda d: d.id)(mesh.devices).tolist()


def test_a_mesh_holds_every_device_once_with_tensor_fastest_and_explicit_axis_types(no_devices):
    mesh = build_mesh(sizes(2, 2, 2), no_devices([0] * 8))
    assert mesh.axis_names == AXES
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert ids(mesh) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


@pytest.mark.parametrize(
    "asked, got",
    [((-1, 2, 2), (2, 2, 2)), ((1, -1, 1), (1, 8, 1)), ((2, 4, -1), (2, 4, 1))],
)
def test_minus_one_is_what_the_others_leave(no_devices, asked, got):
    assert build_mesh(sizes(*asked), no_devices([0] * 8)).devices.shape == got


def test_devices_of_a_process_stay_together_however_they_are_listed(no_devices):
    mesh = build_mesh(sizes(2, 1, 2), no_devices([0, 1, 0, 1]))
    assert ids(mesh) == [[[0, 2]], [[1, 3]]]


@pytest.mark.parametrize("asked", [(2, 2, 4), (1, 1, 1), (3, 1, 1)])
def test_a_mesh_that_does_not_multiply_to_the_devices_is_refused(no_devices, asked):
    with pytest.raises(UserError, match="there are 8; choose sizes whose product is 8, or -1"):
        build_mesh(sizes(*asked), no_devices([0] * 8))


def test_minus_one_that_comes_out_at_no_whole_number_is_refused(no_devices):
    with pytest.raises(UserError, match="mesh is -1 x 3 x 1 .*and 3 does not divide the 8 devices"):
        build_mesh(sizes(-1, 3, 1), no_devices([0] * 8))


@pytest.mark.parametrize("size", [0, -2])
def test_a_size_below_one_is_refused_by_name(size):
    with pytest.raises(UserError, match=f"mesh.fsdp is {size}; it must be at least 1, or -1"):
        sizes(1, size, 1)


def test_minus_one_twice_is_refused():
    with pytest.raises(UserError, match="mesh is -1 x -1 x 2 .*may stand for one of them alone"):
        sizes(-1, -1, 2)


@pytest.mark.parametrize(
    "asked, block",
    [
        ((8, 1, 1), [[[0]], [[1]], [[2]], [[3]]]),
        ((1, 8, 1), [[[0], [1], [2], [3]]]),
        ((2, 2, 2), [[[0, 1], [2, 3]]]),
        ((1, 2, 4), [[[0, 1, 2, 3]]]),
        ((1, 1, 8), [[[0, 1, 2, 3]]]),
    ],
)
def test_the_local_mesh_is_this_process_s_block(no_devices, asked, block):
    local = local_mesh(build_mesh(sizes(*asked), no_devices([0] * 4 + [1] * 4)))
    assert ids(local) == block
    assert local.axis_names == AXES
    assert local.axis_types == (AxisType.Auto,) * 3


def test_one_process_s_local_mesh_is_the_mesh(no_devices):
    mesh = build_mesh(sizes(2, 2, 2), no_devices([0] * 8))
    assert local_mesh(mesh) == mesh


def test_devices_that_are_no_block_of_the_mesh_are_refused(no_devices):
    mesh = build_mesh(sizes(3, 2, 1), no_devices([0] * 3 + [1] * 3))
    with pytest.raises(
        UserError, match="the 3 devices of process 0 are no block of the mesh 3 x 2"
    ):
        local_mesh(mesh)


def test_a_process_without_a_device_in_the_mesh_is_refused(no_devices):
    mesh = build_mesh(sizes(2, 1, 1), no_devices([1, 1]))
    with pytest.raises(UserError, match="process 0 holds no device of the mesh"):
        local_mesh(mesh)


def test_split_cuts_one_process_s_devices_into_contiguous_shares(no_devices):
    shares = split(no_devices([0] * 8), 2)
    assert [[d.id for d in share] for share in shares] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_split_gives_every_process_devices_of_every_share(no_devices):
    shares = split(no_devices([0] * 4 + [1] * 4), 2)
    assert [[d.id for d in share] for share in shares] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    for share in shares:
        assert local_mesh(build_mesh(sizes(-1, 1, 2), share)).devices.size == 2


def test_devices_that_cannot_be_shared_equally_are_refused(no_devices):
    with pytest.raises(UserError, match="the 3 devices of process 1 cannot be shared by 2 roles"):
        split(no_devices([0, 0, 1, 1, 1]), 2)
