"""IB-RL on Vehicle TeleSales, small: an agent and a customer of 230 thousand parameters, two cores.

Everything is a rule-based stand-in but the two policies: they start from calls between scripted
sellers and rule-based customers, and rules judge them. English, short prompts, calls of at most six
agent turns, scores in steps of .05.

Command: make train CONFIG=configs/telesales/mini.py     (with evaluation, report: make telesales)
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config


def get_config() -> ConfigDict:
    config = default_config("telesales")
    config.name = "telesales-mini"
    config.iterations = 30
    config.telesales.language = "en"
    config.telesales.prompt_length = "short"
    config.telesales.val_profiles = 100
    config.telesales.test_profiles = 100
    config.telesales.stories = "none"
    config.telesales.max_agent_turns = 6
    config.telesales.score_step = 0.05  # 21 scores and 8 changes: sums that can be learned
    config.sft.families = ("reader", "rule_v1", "rule_mix")
    config.sft.dialogues = 2500
    config.sft.steps = 4000
    config.sft.batch = 4
    config.sft.learning_rate = 4e-3
    config.sft.number_weight = 5.0  # scores must add up, facts and phone numbers must be right
    config.sft.curriculum = 0.88
    config.sft.cut = 384
    config.sft.recitals = 0.4
    config.rollout.draws = 8
    config.rollout.max_new_tokens = 64
    config.rollout.max_view_tokens = 640
    config.engine.rows = (16,)  # half an iteration, so that both engines have one
    config.engine.new_tokens = (64, 192)
    config.engine.lengths = (384, 640)
    config.optimiser.lengths = (512,)
    config.optimiser.micro_batch = 8
    config.roles.customer.update_every = 2  # the paper's half frequency
    for role in config.roles.values():
        role.learning_rate = 5e-4
        role.kl = 0.05
        role.temperature = 0.7  # one token drawn astray spoils a record
    config.evaluation.scenarios = 40
    config.evaluation.temperature = 0.3  # a small network's tails are noise; by rule_dev
    return config
