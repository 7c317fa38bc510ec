"""`make evaluate RUN=...`: measures a finished run's policies against counterparts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run",))

    from ibrl_jax.trainer.assess import assess, assess_sentence
    from ibrl_jax.trainer.run import RunFolder

    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    config = configs.override(folder.config(), options.overrides)
    table = assess(folder, config, notes(console))
    sentence = f"{assess_sentence(table)}; make report RUN={folder.path} shows it"
    folder.summary({"sentence": sentence})
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
