"""IB-RL on Deal-or-No-Deal, small: two 164 thousand-parameter Qwen3 policies on two CPU cores.

Command: make train CONFIG=configs/dond/mini.py      (with evaluation and report: make quickstart)
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.name = "mini"
    config.iterations = 150
    config.dond.horizon_turns = 8
    config.dond.select_rule = "last_try"  # no ultimatum by selection
    config.dond.penalty_malformed = 0.2
    config.dond.prompt = "short"
    config.sft.steps = 400
    config.sft.learning_rate = 4e-3
    config.rollout.max_new_tokens = 24  # 16 draws of 4 rollouts are the defaults, as in the paper
    config.rollout.max_view_tokens = 208
    config.engine.rows = (8, 32)
    config.engine.new_tokens = (24, 48)
    config.engine.lengths = (128, 208)
    config.optimiser.lengths = (136, 208)
    for offset, role in enumerate(config.roles.values()):  # the game is symmetric: in turns
        role.update_every = 2
        role.update_offset = offset
        role.kl = 0.1  # at the paper's .02 one role soon lives off the other (docs/measurements.md)
    return config
