"""Beyond the paper: each role is trained on its counterpart's turns too.

Command: make train CONFIG=configs/dond/mask-all.py
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "mask-all"
    config.isolation.mask = "all"
    return config
