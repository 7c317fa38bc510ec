"""An update on eight devices is the update of one, and nothing is held twice that is cut up."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # nothing compiled yet: minutes

CASES = [
    (network, mesh)
    for network in ("dense", "hybrid", "lora")
    for mesh in ("(8, 1, 1)", "(1, 8, 1)", "(2, 2, 2)")
]


@pytest.fixture(scope="module")
def eight(on_eight):
    return on_eight("eight_devices.py")


@pytest.mark.parametrize("network, mesh", CASES)
def test_the_gradient_and_the_loss_are_those_of_one_device(eight, network, mesh):
    found = eight["meshes"][network][mesh]
    assert found["gradient"] < 2e-5  # of its largest element
    assert found["norm"] < 2e-5  # of itself
    assert found["loss"] < 2e-5


@pytest.mark.parametrize("network, mesh", CASES)
def test_two_updates_end_where_one_device_ends(eight, network, mesh):
    found = eight["meshes"][network][mesh]
    assert found["moved"] > 1e-3
    assert found["params"] < 1e-5


@pytest.mark.parametrize(
    "network, mesh, least, most",
    [
        ("dense", "(8, 1, 1)", 1, 1),
        ("dense", "(1, 8, 1)", 1 / 8, 0.15),
        ("dense", "(2, 2, 2)", 1 / 4, 0.3),
        ("hybrid", "(1, 8, 1)", 1 / 8, 0.15),
        ("hybrid", "(2, 2, 2)", 1 / 4, 0.3),
    ],
)
def test_a_device_holds_its_share_of_parameters_and_moments(eight, network, mesh, least, most):
    assert least <= eight["meshes"][network][mesh]["share"] <= most


def test_one_learner_serves_a_mesh_of_each_half_of_the_devices(eight):
    assert eight["halves"] < 2e-5
