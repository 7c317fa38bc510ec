"""The paper's Deal-or-No-Deal with two Qwen3.5-4B, all parameters of both, on 8 GPUs of 80 GB.

No supervised start: there are no dialogues of this game to learn from, so both roles begin at the
released weights and learn protocol and negotiation by reinforcement alone. Views of 4,096 tokens,
64 dialogues an iteration and KL .02 are the paper's. So are 1e-6 and, at half the frequency, 1e-7,
which it names for its other domain.

Command: make train CONFIG=configs/dond/qwen3_5-4b.py
         (the weights: ARGS="--config.policy.folder=path/of/Qwen3.5-4B")
Expected: not measured.
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.name = "qwen3_5-4b"
    config.iterations = 200
    config.policy.preset = "qwen3_5_4b"  # what the folder holds, to plan without one
    config.policy.folder = "models/Qwen3.5-4B"
    config.policy.start = "pretrained"
    config.policy.dtype = "bfloat16"
    config.mesh.fsdp = 8
    config.engine.rows = (64,)
    config.engine.new_tokens = (64, 512)
    config.engine.lengths = (1024, 2048, 4096)
    config.optimiser.lengths = (1024, 2048)
    config.optimiser.micro_batch = 8  # a row a device
    config.roles.agent0.learning_rate = 1e-6
    config.roles.agent1.learning_rate = 1e-7
    config.roles.agent1.update_every = 2
    return config
