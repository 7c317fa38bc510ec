"""Everything in seconds, for tests.

A start that learned next to nothing, two iterations, a handful of calls.

Command: make train CONFIG=configs/telesales/smoke.py
"""

from ml_collections import ConfigDict

from configs.telesales import mini


def get_config() -> ConfigDict:
    config = mini.get_config()
    config.name = "telesales-smoke"
    config.iterations = 2
    config.policy.preset = "qwen3_micro"
    config.telesales.train_profiles = 20
    config.telesales.val_profiles = 4
    config.telesales.test_profiles = 4
    config.telesales.max_agent_turns = 2
    config.sft.dialogues = 20
    config.sft.steps = 3
    config.sft.batch = 4
    config.sft.cut = 0
    config.sft.recitals = 0.0
    config.rollout.draws = 2
    config.rollout.max_new_tokens = 32
    config.engine.rows = (8,)
    config.engine.new_tokens = (192,)
    config.engine.lengths = ()
    config.optimiser.lengths = ()
    config.run.checkpoint_every = 1
    config.run.text_every = 1
    config.pool.every = 1
    config.roles.sales.update_every = 1
    config.evaluation.scenarios = 2
    config.evaluation.seeds = 2
    config.statistics.resamples = 100
    config.statistics.permutations = 100
    return config
