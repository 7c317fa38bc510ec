"""Both roles learn without stabilisation (the paper's Figure 3).

No past policies hold seats, and both roles update at every iteration.

Command: make train CONFIG=configs/telesales/bilateral-plain.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-bilateral-plain"
    config.stabilise.pool = False
    config.stabilise.stagger = False
    return config
