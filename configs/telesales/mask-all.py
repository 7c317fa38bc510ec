"""Beyond the paper: each role is trained on its counterpart's turns too.

Command: make train CONFIG=configs/telesales/mask-all.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-mask-all"
    config.isolation.mask = "all"
    return config
