"""`make report RUN=...`: writes a run's report.html."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax.entry import Options, refuse, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("run",))
    refuse(options.overrides, ["config.*"], "changes nothing in a report of what was run")

    from ibrl_jax.reporting.html import write_report
    from ibrl_jax.trainer.run import RunFolder

    folder = RunFolder.existing(options.need("run", "runs/mini/seed0"))
    report = write_report(folder.path)
    sentence = f"the report is {report}"
    folder.summary({"report": report.name, "sentence": sentence})
    console.print(sentence, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
