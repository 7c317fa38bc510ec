"""Every policy of mini's first run against every other: a cross-play matrix, and a table beside it.

Command: python -m ibrl_jax.evaluate --config=configs/dond/crossplay.py --to=runs/crossplay
Needs: the run of configs/dond/mini.py. With `--config.run.snapshots_every=50` in its training,
checkpoints too: add frozen:runs/mini/seed0:agent0@50 and so on to the policies.
Gives: crossplay.svg, .png, .csv and .json, with evaluation.json and outcomes.csv.
"""

from ml_collections import ConfigDict

from configs.dond import mini

RUN = "runs/mini/seed0"


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "crossplay"
    config.evaluation.crossplay = True
    config.evaluation.policies = (
        f"frozen:{RUN}:start",
        f"frozen:{RUN}:agent0",
        f"frozen:{RUN}:agent1",
        "fair",
    )
    config.evaluation.counterparts = ("fair", "mirror")
    return config
