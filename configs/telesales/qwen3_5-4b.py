"""The paper's Vehicle TeleSales with two Qwen3.5-4B, all parameters of both, on 8 GPUs of 80 GB.

Chinese, 3,000 training profiles, calls of 15 agent turns; judges, simulator and auditor are
endpoints. The start is supervised on transcripts of your own (docs/telesales.md has their form, and
what the endpoints cost). The paper names entropy .1, KL .02, 1e-6 for the agent and, at half the
frequency, 1e-7 for the customer, 64 calls an iteration in groups of 4. Lengths and the start's own
settings are ours. Look the models' names up at your provider, with how each is told not to think
(`extra_body`): thoughts would take the tokens of a turn. Set `max_cost` with both prices before a
long run.

Command: make train CONFIG=configs/telesales/qwen3_5-4b.py
         (the weights: ARGS="--config.policy.folder=path/of/Qwen3.5-4B")
Expected: not measured.
"""

from ml_collections import ConfigDict

from ibrl_jax.config import default_config, endpoint

UNTHINKING = '{"thinking": {"type": "disabled"}}'


def get_config() -> ConfigDict:
    config = default_config("telesales")
    config.name = "telesales-qwen3_5-4b"
    config.iterations = 90
    config.policy.preset = "qwen3_5_4b"  # what the folder holds, to plan without one
    config.policy.folder = "models/Qwen3.5-4B"
    config.policy.dtype = "bfloat16"
    config.sft.transcripts = "data/calls.jsonl"
    config.sft.packed = True
    config.sft.steps = 8000
    config.sft.batch = 8  # a row a device, as in updates: four of whole calls do not fit
    config.sft.learning_rate = 1e-5
    config.sft.number_weight = 1.0
    config.sft.curriculum = 0.0
    config.telesales.composition = "paper_exact"
    config.rollout.max_view_tokens = 6144
    config.mesh.fsdp = 8
    config.engine.rows = (64,)
    config.engine.new_tokens = (128, 1024)
    config.engine.lengths = (2048, 4096, 6144)
    config.optimiser.lengths = (2048, 4096)
    config.optimiser.micro_batch = 8  # a row a device
    config.endpoints.judge = endpoint(
        base_url="https://api.deepseek.com/v1",
        model="deepseek-chat",
        key_env="DEEPSEEK_API_KEY",
        temperature=0.0,
        max_tokens=2048,  # fifteen turns' verdicts are about 600, and some models think first
        timeout_s=180.0,  # as long as it takes to write them all
        retries=2,
        cache_dir=".cache/telesales/judge",
    )
    config.endpoints.simulator = endpoint(
        base_url="https://open.bigmodel.cn/api/paas/v4",
        model="glm-4.6",
        key_env="GLM_API_KEY",
        extra_body=UNTHINKING,
        max_tokens=1024,
        timeout_s=120.0,
        cache_dir=".cache/telesales/simulator",
    )
    config.endpoints.auditor = endpoint(
        base_url="https://open.bigmodel.cn/api/paas/v4",
        model="glm-4.6",
        key_env="GLM_API_KEY",
        extra_body=UNTHINKING,
        temperature=0.0,
        max_tokens=2048,
        timeout_s=180.0,
        retries=2,
        cache_dir=".cache/telesales/auditor",
    )
    config.roles.sales.judge = "judge"
    config.roles.customer.judge = "judge"
    config.roles.sales.learning_rate = 1e-6
    config.roles.customer.learning_rate = 1e-7
    config.roles.customer.update_every = 2
    for role in config.roles.values():
        role.entropy = 0.1
    config.evaluation.counterparts = ("api:simulator:simulator",)
    config.evaluation.auditor = "auditor"
    config.evaluation.scenarios = 0  # all 500 profiles, three calls each
    return config
