"""The first baseline: the agent alone learns, against a frozen copy of its own start.

Command: make train CONFIG=configs/telesales/unilateral-frozen.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-unilateral-frozen"
    config.roles.customer.train = False
    config.roles.customer.counterpart = ("frozen:start",)
    return config
