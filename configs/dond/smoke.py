"""Everything in seconds, for tests.

A start that learned next to nothing, three iterations, a handful of dialogues.

Command: make train CONFIG=configs/dond/smoke.py
"""

from ml_collections import ConfigDict

from configs.dond import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "smoke"
    config.iterations = 3
    config.policy.preset = "qwen3_micro"
    config.sft.dialogues = 40
    config.sft.steps = 3
    config.sft.batch = 4
    config.rollout.draws = 2
    config.rollout.group = 4
    config.engine.rows = (8,)
    config.optimiser.micro_batch = 8
    config.run.checkpoint_every = 1
    config.run.text_every = 1
    config.pool.every = 1
    config.roles.agent0.update_every = 1
    config.roles.agent0.update_offset = 0
    config.roles.agent1.update_offset = 0  # at half the other's frequency
    config.evaluation.counterparts = ("fair",)
    config.evaluation.scenarios = 4
    return config
