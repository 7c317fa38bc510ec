"""Two Qwen3-0.6B on one small GPU: adapters a role over one base, shorter dialogues, fewer of them.

The caches of 32 dialogues of two roles are the larger part of what it needs: 112 KiB a token.

Command: make train CONFIG=configs/dond/qwen3-0_6b-lora.py
         (the weights: ARGS="--config.policy.folder=path/of/Qwen3-0.6B")
Expected: not measured.
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.name = "qwen3-0_6b-lora"
    config.iterations = 200
    config.policy.preset = "qwen3_0_6b"  # what the folder holds, to plan without one
    config.policy.folder = "models/Qwen3-0.6B"
    config.policy.start = "pretrained"
    config.policy.dtype = "bfloat16"
    config.lora.rank = 16
    config.dond.horizon_turns = 10
    config.rollout.draws = 8
    config.rollout.max_new_tokens = 128
    config.rollout.max_view_tokens = 1536
    config.engine.rows = (32,)
    config.engine.new_tokens = (64, 512)
    config.engine.lengths = (1024, 1536)
    config.optimiser.lengths = (1024,)
    config.optimiser.micro_batch = 2
    for offset, role in enumerate(config.roles.values()):  # the game is symmetric: in turns
        role.learning_rate = 1e-5
        role.update_every = 2
        role.update_offset = offset
    return config
