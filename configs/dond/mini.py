"""IB-RL on Deal-or-No-Deal, small: two 150 thousand-parameter Qwen3 policies on two CPU cores.

Command: make train CONFIG=configs/dond/mini.py      (with evaluation and report: make quickstart)
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.name = "mini"
    config.iterations = 120
    config.dond.horizon_turns = 8
    config.dond.select_rule = "last_try"  # no ultimatum by selection
    config.dond.penalty_malformed = 0.2
    config.dond.prompt = "short"
    config.rollout.draws = 16
    config.rollout.group = 8
    config.rollout.max_new_tokens = 32
    config.rollout.max_view_tokens = 288
    config.engine.rows = (16, 128)
    config.engine.new_tokens = (48, 96)
    config.roles.agent1.update_every = 2
    return config
