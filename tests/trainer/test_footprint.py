"""What stays on a device beside the live policies."""

from __future__ import annotations

import pytest

from ibrl_jax.config import load
from ibrl_jax.trainer.footprint import Footprint, kept_beside, lines

BOTH = ("agent0", "agent1")
ALONE = [
    "--config.roles.agent1.train=False",
    "--config.roles.agent1.counterpart=frozen:start,scripted:fair,frozen:runs/a:agent1",
]
HERE = "--config.pool.store=device"


@pytest.mark.parametrize(
    "options, learners, found",
    [
        ([], BOTH, {}),  # snapshots lie on the host
        ([HERE, "--config.pool.size=3"], BOTH, {"pool of past policies (fp32)": 2 * 3 * 100}),
        ([HERE, "--config.stabilise.pool=False"], BOTH, {}),
        ([HERE, *ALONE], BOTH[:1], {"sampler: frozen policies": 2 * 7}),
    ],
)
def test_what_is_kept_beside_the_live_policies(
    options: list[str], learners: tuple[str, ...], found: dict[str, int]
) -> None:
    config = load("configs/dond/smoke.py", options)
    assert kept_beside(config, learners, trained=100, served=7) == found


def test_a_supervised_start_that_takes_more_than_all_else_is_the_peak() -> None:
    found = Footprint(title="", stays={"a": 5}, programs={"b": 3, "c": 2})
    assert found.peak == 8
    found.supervised = 9
    assert found.peak == 9
    assert any("supervised start" in line for line in lines(found, 0))
