"""`make train` and `make quickstart`: runs a config; --quickstart evaluates and reports it too."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, run


def main(argv: Sequence[str], console: Console) -> None:
    began = time.perf_counter()
    options = Options(argv, ("config", "quickstart"))
    config = configs.load(options.need("config", "configs/dond/mini.py"), options.overrides)

    from ibrl_jax.parallel.hosts import HostSettings, start
    from ibrl_jax.trainer.session import train, train_sentence

    with start(HostSettings(**dict(config.hosts)), os.environ) as hosts:
        console.quiet = not hosts.is_first
        folder = train(config, console, hosts, began)
    if not hosts.is_first:
        return
    sentence = train_sentence(folder)
    folder.summary({"sentence": sentence})
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)
    if options.flag("quickstart"):
        from ibrl_jax.contests.contest import contest_of_run
        from ibrl_jax.evaluation.told import told
        from ibrl_jax.reporting.html import write_report

        table = contest_of_run(folder, config, notes(console))
        report = write_report(folder.path)
        sentence = f"{told(table)}; see {report}"
        folder.summary({"report": report.name, "sentence": sentence})
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main, interrupted="interrupted; the same command goes on from the last checkpoint")
