"""Measures policies against counterparts.

`make evaluate RUN=...`: those of a finished run. `--config=FILE --to=FOLDER`: those that
`config.evaluation.policies` names, of any runs; what was played before is taken up again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, refuse, run
from ibrl_jax.errors import UserError


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run", "config", "to"))
    file, where = options.get("config", ""), options.get("to", "")
    if file or where:
        if options.get("run", ""):
            raise UserError(
                "--run evaluates the policies of one run, --config with --to those that "
                "config.evaluation.policies names; give one or the other"
            )
        config = configs.load(
            options.need("config", "configs/dond/crossplay.py"), options.overrides
        )
        to = Path(options.need("to", "runs/crossplay"))

        from ibrl_jax.contests.contest import contest, contest_sentence, table_lines

        table = contest(config, to, notes(console))
        sentence = contest_sentence(table, to)
    else:
        from ibrl_jax.contests.contest import contest_of_run, table_lines, to_be_done
        from ibrl_jax.evaluation.told import told
        from ibrl_jax.trainer.run import RunFolder

        why = "is of evaluations by --config and --to; --run is of the run's own policies"
        refuse(options.overrides, ["config.evaluation.policies"], why)
        folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
        config = configs.override(folder.config(), options.overrides)
        table = contest_of_run(folder, config, notes(console))
        came, shown = told(table), f"make report RUN={folder.path} shows it"
        sentence = (f"{came}; {shown}" if came else shown) + to_be_done(table)
        folder.summary({"sentence": sentence})
        to = folder.path
    for line in (*table_lines(table, to), sentence):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main, interrupted="interrupted; the same command plays only what is missing")
