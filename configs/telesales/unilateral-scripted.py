"""The agent alone learns, against the rule-based customers of development.

Command: make train CONFIG=configs/telesales/unilateral-scripted.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-unilateral-scripted"
    config.roles.customer.train = False
    config.roles.customer.counterpart = ("scripted:rule_v1",)
    return config
