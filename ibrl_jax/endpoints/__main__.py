"""`make endpoint-check URL=... MODEL=...`: can an endpoint serve, and what does it lack?

    python -m ibrl_jax.endpoints --url=URL --model=MODEL [--key-env=NAME] [--extra-body=JSON]

`--extra-body` is what `endpoints.<name>.extra_body` is in a config. Exit code 0: as a counterpart
and as a judge; 1: it lacks something for one of them; 2: the key, the address or the model is at
fault.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.endpoints.check import endpoint_check
from ibrl_jax.endpoints.settings import Budget, EndpointSettings, read_extra_body
from ibrl_jax.entry import Options, refuse, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("url", "model", "key-env", "extra-body"))
    refuse(options.overrides, ["config.*"], "is of a config, and the check reads none")
    values = configs.endpoint()
    settings = EndpointSettings(
        name="check",
        base_url=options.need("url", "http://127.0.0.1:8000/v1"),
        model=options.need("model", "qwen3-8b"),
        key_env=options.get("key-env", "") or None,
        # The check asks at temperature 0, once, with a limit of its own, and pays no heed to these.
        **{name: values[name] for name in ("temperature", "max_tokens", "timeout_s", "retries")},
        **{name: values[name] for name in ("backoff_s", "max_wait_s", "concurrency")},
        requests_per_minute=None,
        budget=Budget(max_calls=None, max_tokens=None, max_cost=None),
        price_in=None,
        price_out=None,
        cache_dir=None,
        schema_mode=values["schema_mode"],
        extra_body=read_extra_body("check", options.get("extra-body", "")),
    )

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say("asking a dozen small questions, for a minute at most ...")
    report = endpoint_check(settings, say=say)
    if not (report.serves_counterpart and report.serves_judge):
        sys.exit(1)


if __name__ == "__main__":
    run(main)
