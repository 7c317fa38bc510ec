"""The next iteration's dialogues are played while this one's updates run, one update behind.

Truncated importance weights correct for it; their mean and share are in the log. Not in the paper.

Command: make train CONFIG=configs/dond/stale.py
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "stale"
    config.pipeline.max_staleness = 1
    return config
