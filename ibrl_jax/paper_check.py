"""`make paper-check`: the paper's own figures, computed again from its printed percentages.

    python -m ibrl_jax.paper_check [--data=FOLDER] [--to=FILE]

Prints Markdown: what follows from the printed figures by our statistics, beside what is printed,
and the figures that cannot be right. `--data` names the folder of the original Deal-or-No-Deal
files, whose test rows then say what first bests there are; without it, the enumerated scenarios do.
`--to` also writes the text there. Exit code 1: something that should come out again does not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ibrl_jax.config import default_config
from ibrl_jax.domains.dond.data import load_rows
from ibrl_jax.domains.dond.scenarios import enumerate_ordered
from ibrl_jax.domains.dond.scoring import analyse_scenario
from ibrl_jax.entry import Options, refuse, run
from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.studies.reproduced import Check, Doubt, checks, doubts


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("data", "to"))
    refuse(options.overrides, ["config.*"], "is of a config, and what is printed has none")
    config = default_config()
    found = checks(StatisticsSettings(**dict(config.statistics)))
    best, source = _first_bests(options.get("data", ""), config.dond.max_count)
    text = markdown(found, doubts(best, source))
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    if to := options.get("to", ""):
        Path(to).parent.mkdir(parents=True, exist_ok=True)
        Path(to).write_text(text + "\n", encoding="utf-8")
    if not all(check.agrees for check in found):
        sys.exit(1)


def _first_bests(data: str, max_count: int) -> tuple[list[int], str]:
    """In points, each scenario as often as it is played; and which scenarios these are."""
    if data:
        rows = load_rows(data, "test")
        best = [analyse_scenario(row.scenario).first_best for row in rows]
        return best, f"the {len(rows):,} original test rows"
    scenarios = enumerate_ordered(max_count)
    return [analyse_scenario(s).first_best for s in scenarios], "the enumerated scenarios"


def markdown(found: Sequence[Check], doubtful: Sequence[Doubt]) -> str:
    """Both tables, and what the first one rests on."""
    wrong = sum(not check.agrees for check in found)
    lines = [
        "## The paper's figures, computed again",
        "",
        "| Table | Row | What | Printed | Here | | Note |",
        "| --- | --- | --- | ---: | ---: | --- | --- |",
        *(
            f"| {c.table} | {c.row} | {c.what} | {c.printed} | {c.found} | "
            f"{'same' if c.agrees else '**differs**'} | {c.note} |"
            for c in found
        ),
        "",
        f"{len(found) - wrong} of {len(found)} printed figures come out again.",
        "",
        "- Table 1: odds of failing a conversation. Success@n says how many profiles had 0 to 3 "
        "successes; which ones is not printed. Odds ratios need no more; Holm's p-values do, and "
        "are not computed again.",
        "- Table 13: kappas from its counts; the text prints them with two decimals.",
        "",
        "## Printed figures that cannot be right",
        "",
        "| Where in Table 2 | Printed | Why not | Rests on |",
        "| --- | --- | --- | --- |",
        *(
            f"| {d.where} | {d.printed} | {d.why} | {'arithmetic' if d.sure else 'scenarios'} |"
            for d in doubtful
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run(main)
