"""Ablation of Table 3: both roles are paid the mean of the two rewards.

Command: make train CONFIG=configs/telesales/shared-reward.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-shared-reward"
    config.isolation.reward = "shared"
    return config
