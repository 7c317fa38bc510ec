"""`make profile`: where one iteration's time goes, as a table of stages and as a trace."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config", "iteration"))
    config = configs.load(options.need("config", "configs/dond/mini.py"), options.overrides)
    iteration = options.number("iteration", 3)

    from ibrl_jax.trainer.profiling import profile, profile_sentence, stage_table

    found = profile(config, iteration, notes(console))
    console.print(stage_table(found), highlight=False)
    console.print(profile_sentence(found), highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
