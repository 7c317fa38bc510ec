"""The paper's pool of three (Table 4): the agent alone learns, against three models over endpoints.

One is drawn a scenario; metrics.jsonl keeps the returns against each.

Command: make train CONFIG=configs/telesales/unilateral-pool.py
Expected: not measured.
"""

import importlib

from ml_collections import ConfigDict

from ibrl_jax.config import endpoint

smaller = importlib.import_module("configs.telesales.qwen3_5-4b")  # no name for an import statement
larger = importlib.import_module("configs.telesales.qwen3_5-9b")

LOCAL_UNTHINKING = '{"chat_template_kwargs": {"enable_thinking": false}}'
"""As a server of one's own (vLLM, SGLang) takes it."""


def get_config() -> ConfigDict:
    config = larger.get_config()
    config.name = "telesales-unilateral-pool"
    config.roles.customer.train = False
    config.roles.customer.judge = ""
    for name, base_url, model, unthinking in (
        ("deepseek", "https://api.deepseek.com/v1", "deepseek-chat", ""),
        ("glm", "https://open.bigmodel.cn/api/paas/v4", "glm-4.6", smaller.UNTHINKING),
        ("qwen", "http://127.0.0.1:8000/v1", "qwen3.5-122b", LOCAL_UNTHINKING),
    ):
        config.endpoints[name] = endpoint(
            base_url=base_url,
            model=model,
            extra_body=unthinking,
            key_env="" if name == "qwen" else f"{name.upper()}_API_KEY",
            cache_dir=f".cache/telesales/{name}",
        )
    config.roles.customer.counterpart = ("api:deepseek:record", "api:glm:record", "api:qwen:record")
    return config
