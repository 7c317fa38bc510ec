"""A small iteration of IB-RL with everything in it, for `make audit`.

Command: make audit                (half a minute on two cores; every comparison must come out "ok")
"""

from ml_collections import ConfigDict

from configs.dond import smoke


def get_config() -> ConfigDict:
    config = smoke.get_config()
    config.name = "audit"
    config.rollout.draws = 4
    config.engine.rows = (16,)
    config.roles.agent1.update_every = 1
    config.rollout.retries = 12  # so weak a start says little that is legal
    return config
