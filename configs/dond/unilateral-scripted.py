"""agent0 alone learns, against one scripted negotiator.

Command: make train CONFIG=configs/dond/unilateral-scripted.py
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "unilateral-scripted"
    config.roles.agent0.update_every = 1  # nobody to take turns with
    config.roles.agent1.train = False
    config.roles.agent1.counterpart = ("scripted:conceder",)
    return config
