"""What stays on a device beside the live policies."""

from __future__ import annotations

import pytest

from ibrl_jax.config import load
from ibrl_jax.trainer.footprint import kept_beside

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
