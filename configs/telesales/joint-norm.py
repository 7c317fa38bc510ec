"""Ablation of Table 3: one pool of both roles' rewards normalises the advantages of a scenario.

Command: make train CONFIG=configs/telesales/joint-norm.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-joint-norm"
    config.isolation.advantage = "joint"
    return config
