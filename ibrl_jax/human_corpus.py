"""`make human-corpus DATA=folder`: figures of the original human dialogues of Deal-or-No-Deal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from ibrl_jax.domains.dond.data import format_human_corpus, human_corpus
from ibrl_jax.entry import Options, refuse, run


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("data",))
    refuse(options.overrides, ["config.*"], "is of a config, and figures of people have none")
    folder = options.need("data", "path/to/the/original/files")
    table = human_corpus(folder)
    dialogues = sum(row.dialogues for row in table)
    agreed = sum(row.agreed for row in table)
    console.print(format_human_corpus(table), highlight=False, markup=False, soft_wrap=True)
    console.print(
        f"{folder} holds {dialogues:,} human dialogues from both sides; {agreed:,} end in a deal",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    run(main)
