"""Both roles learn without stabilisation: no pool of past policies, no staggered updates (the paper's Figure 3).

Command: make train CONFIG=configs/dond/bilateral-plain.py
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "bilateral-plain"
    config.stabilise.pool = False
    config.stabilise.stagger = False
    return config
