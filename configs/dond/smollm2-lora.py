"""IB-RL between two adapters on one released model: SmolLM2-135M-Instruct, on two CPU cores.

Both roles train adapters of rank 8 over one base that neither changes. A few supervised steps
first, since the model by itself does not write the protocol's tags; then 20 small iterations. It
shows that all parts work on real weights, a real tokenizer and its chat template; it is too short
to show what IB-RL does to a negotiator.

Command: make parity-real      (makes the folder, then trains by configs/dond/smollm2-lora.py and
prints what changed)
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config()
    config.name = "smollm2-lora"
    config.iterations = 20
    config.policy.folder = ".cache/parity/smollm2"
    config.lora.rank = 8
    config.lora.alpha = 16.0
    config.dond.horizon_turns = 4
    config.dond.prompt = "short"
    config.sft.dialogues = 400
    config.sft.steps = 24
    config.sft.batch = 8
    config.sft.learning_rate = 2e-3
    config.sft.curriculum = 1.0
    config.rollout.draws = 2
    config.rollout.group = 4
    config.rollout.max_new_tokens = 40
    config.rollout.max_view_tokens = 240
    config.engine.rows = (8,)
    config.engine.new_tokens = (48, 96)
    config.engine.lengths = (160, 240)
    config.optimiser.lengths = (160,)
    config.optimiser.micro_batch = 4
    config.optimiser.logp_chunk = 64
    config.pool.every = 5
    config.run.checkpoint_every = 5
    config.run.text_every = 5
    for role in config.roles.values():
        role.learning_rate = 1e-4
        role.warmup_updates = 2
    return config
