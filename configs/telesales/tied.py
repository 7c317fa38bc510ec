"""Beyond the paper: one set of parameters and one optimiser for both roles.

Command: make train CONFIG=configs/telesales/tied.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-tied"
    config.isolation["update"] = "tied"  # `.update` is a method of every ConfigDict
    config.stabilise.stagger = False  # one learner has nobody to take turns with
    return config
