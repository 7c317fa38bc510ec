"""`make sft CONFIG=...`: trains only the start of a config's policies."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, run
from ibrl_jax.errors import UserError


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config",))
    config = configs.load(options.need("config", "configs/dond/mini.py"), options.overrides)
    if config.policy.start != "sft":
        raise UserError(
            f"config.policy.start is {config.policy.start!r}; make sft trains one where it is 'sft'"
        )

    from ibrl_jax.dialogue.build import build_domain, build_speech
    from ibrl_jax.parallel.hosts import HostSettings, start
    from ibrl_jax.trainer.policies import about_policy
    from ibrl_jax.trainer.run import write_json
    from ibrl_jax.trainer.start import start_policy

    with start(HostSettings(**dict(config.hosts)), os.environ) as hosts:
        domain, speech = build_domain(config), build_speech(config)
        console.quiet = not hosts.is_first
        _, folder = start_policy(config, domain, speech, notes(console), hosts)
    if not hosts.is_first:
        return
    assert folder is not None
    about = about_policy(folder)
    sentence = (
        f"the start is {folder}: loss {about['loss']:.3f} after {about['steps']} steps; "
        f"--config.policy.start={folder} takes it from there"
    )
    found = {key: about[key] for key in ("seed", "steps", "loss", "seconds")}
    write_json(folder / "summary.json", {**found, "sentence": sentence})
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
