"""A small iteration of IB-RL with everything in it, for the audit of isolation.

Command: make audit ARGS="--config=configs/telesales/audit.py"     (two minutes of one core)
"""

from ml_collections import ConfigDict

from configs.telesales import smoke


def get_config() -> ConfigDict:
    config = smoke.get_config()
    config.name = "telesales-audit"
    config.telesales.train_profiles = 60
    config.policy.start = "random"  # of no start is anything asked but words of its own
    config.rollout.draws = 4
    config.rollout.retries = 24  # a random policy hardly ever ends a turn, and calls have to go on
    config.rollout.max_view_tokens = 384
    config.engine.rows = (16,)
    for role in config.roles.values():
        role.update_every, role.update_offset = 1, 0
    return config
