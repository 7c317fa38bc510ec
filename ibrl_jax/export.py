"""`make export RUN=... ROLE=... TO=...`: a run's policy as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "role", "to"))

    from pathlib import Path

    from ibrl_jax.trainer.export import export
    from ibrl_jax.trainer.run import RunFolder

    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    role = options.need("role", "agent0")
    to = Path(options.need("to", "exported/agent0"))
    config = configs.override(folder.config(), options.overrides)
    sentence = export(folder, config, role, to)
    folder.summary({"sentence": sentence})
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
