"""IB-RL on Deal-or-No-Deal with a small hybrid network: Qwen3.5's layers, from scratch, on a CPU.

Everything but the network is as in mini.

Command: make train CONFIG=configs/dond/hybrid-tiny.py
Expected: not measured.
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "hybrid-tiny"
    config.policy.preset = "qwen3_5_tiny"
    return config
