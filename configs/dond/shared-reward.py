"""Ablation of Table 3: both roles are paid the mean of the two rewards.

Command: make train CONFIG=configs/dond/shared-reward.py
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "shared-reward"
    config.isolation.reward = "shared"
    return config
