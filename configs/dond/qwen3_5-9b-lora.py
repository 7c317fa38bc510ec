"""Two Qwen3.5-9B on one GPU of 141 GB: adapters a role over one base of 18 GB.

As qwen3_5-9b but for what trains; steps are ten times larger, since adapters move little.

Command: make train CONFIG=configs/dond/qwen3_5-9b-lora.py
         (the weights: ARGS="--config.policy.folder=path/of/Qwen3.5-9B")
Expected: not measured.
"""

import importlib

from ml_collections import ConfigDict

whole = importlib.import_module("configs.dond.qwen3_5-9b")  # no name for an import statement


def get_config() -> ConfigDict:
    config = whole.get_config()
    config.name = "qwen3_5-9b-lora"
    config.lora.rank = 32
    config.lora.alpha = 64.0
    config.mesh.fsdp = config.mesh.tensor = 1
    config.engine.rows = (32,)  # half of the dialogues a call: less memory beside the caches
    config.optimiser.micro_batch = 2
    config.roles.agent0.learning_rate = 1e-5
    config.roles.agent1.learning_rate = 1e-6
    return config
