"""An evaluation of policies, of one run or of any, that resumes where it stopped.

```
<folder>/
  evaluation.json           the table, and all that it takes to repeat it
  outcomes.csv              a row a dialogue (see `evaluation.outcomes`)
  dialogues/                every dialogue, a file a policy and column; a run's: evaluation/
  crossplay.csv .json .svg .png   each policy against each, where that is asked for
```
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.contests.entries import Entries, entries_of
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import crossplay
from ibrl_jax.evaluation.audits import has_ended, is_open
from ibrl_jax.evaluation.cells import Cell, Contestant
from ibrl_jax.evaluation.columns import HELD_OUT, Column
from ibrl_jax.evaluation.keys import Keys, versions
from ibrl_jax.evaluation.leakage import Leakage, check
from ibrl_jax.evaluation.matches import Games, playable
from ibrl_jax.evaluation.outcomes import outcome_rows, value_names, write_outcomes
from ibrl_jax.evaluation.store import Store, is_broken_off
from ibrl_jax.evaluation.table import table_of
from ibrl_jax.evaluation.told import crossplay_table, headline, short_table
from ibrl_jax.names import CROSSPLAY
from ibrl_jax.reporting.unfinished import unfinished
from ibrl_jax.trainer.frozen import check_unchanged, run_config
from ibrl_jax.trainer.run import RunFolder, read_json, write_json, write_text
from ibrl_jax.trainer.seating import seating
from ibrl_jax.trainer.written import START

Note = Callable[[str], None]

_STARTS = {"random": "random start", "pretrained": "pretrained start"}
"""What a run's start is called in its table; any other is an SFT start."""


def contest(config: ConfigDict, to: Path, note: Note) -> dict[str, Any]:
    """Evaluates `config.evaluation.policies`; writes and returns the table.

    Raises:
        UserError: the folder is a run's, a policy or counterpart is not there, cannot be used or
            changes meanwhile, policies differ in network, tokenizer or chat format, or another
            process is at work in the folder.
    """
    if (to / "config.json").exists():
        raise UserError(
            f"{to} is the folder of a run, whose own evaluation would be replaced; name another by "
            f"--to, or evaluate the run's policies by make evaluate RUN={to}"
        )
    domain = build_domain(config)
    return _held(config, domain, entries_of(config, domain), to, to / "dialogues", note)


def contest_of_run(run: RunFolder, config: ConfigDict, note: Note) -> dict[str, Any]:
    """The contest of a finished run's policies, in its folder; they are compared with their start.

    Raises:
        UserError: the run has no policies yet, or as `contest`.
    """
    domain = build_domain(config)
    learners = [role for role in domain.roles if config.roles[role].train]
    run.need_policies((START, *learners))
    start = _STARTS.get(config.policy.start, "SFT start")
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.evaluation.policies = (
            f"{start}=frozen:{START}",
            *(f"{role}=frozen:{role}" for role in learners),
        )
    entries = entries_of(config, domain, own=str(run.path))
    table = _held(config, domain, entries, run.path, run.path / "evaluation", note)
    run.summary({"evaluation": headline(table)})
    return table


def contest_sentence(table: Mapping[str, Any], to: Path) -> str:
    """How much was evaluated, in a line, and where it lies."""
    coverage, rows = table["coverage"], len(table["rows"])
    dialogues = f"{coverage['scored']} of {coverage['planned']} dialogues with a result"
    text = f"{to}: {rows} {'policy' if rows == 1 else 'policies'}, {dialogues}"
    files = ["evaluation.json", "outcomes.csv"]
    files += ["crossplay.svg"] if (to / "crossplay.svg").is_file() else []
    text += f"; {', '.join(files)} and dialogues/ lie there"
    return text + to_be_done(table)


def table_lines(table: Mapping[str, Any], to: Path) -> list[str]:
    """The table as plain text, and the matrix of cross-play where the evaluation has one.

    Below stands what a domain remarks on its figures.
    """
    matrix = to / "crossplay.json"
    crossed = ["", *crossplay_table(read_json(matrix))] if matrix.is_file() else []
    remark = [f"({table['remark']})"] if table["remark"] else []
    return [*short_table(table), *crossed, *remark]


def to_be_done(table: Mapping[str, Any]) -> str:
    """What another start of the evaluation would go on with, as the end of a line; or nothing."""
    found = unfinished(table)
    return f"; {', '.join(found)}: the same command goes on with these" if found else ""


def _held(
    config: ConfigDict, domain: Domain, entries: Entries, to: Path, dialogues: Path, note: Note
) -> dict[str, Any]:
    """Plays what is missing of a contest, and writes all that it leaves into `to`."""
    store = Store(dialogues, note)
    with store.alone():
        seated = seating(config, domain, entries.frozen, to / "endpoints")
        games = Games(config, seated.cast, seated.locals, store, note)
        columns = playable(seated.cast, entries.columns)
        leakage = _leakage(config, entries, columns)
        for sentence in leakage.stops:
            note(sentence)
        columns = leakage.demoted(columns)
        cells = games.cells(entries.rows, columns)
        crossed = _crossplay(config, entries, games, note)
        note(f"{games.anew} dialogues were played; statistics of all")
        outcomes = [
            row
            for label, found in cells.items()
            for c in columns
            if c.name in found
            for row in outcome_rows(domain, label, c, found[c.name])
        ]
        scored = sum(not row.aborted for row in outcomes)
        table = table_of(config, seated.cast, entries.rows, columns, cells) | {
            "policies": [_about(row, entries, games.keys) for row in entries.rows],
            "counterparts": {name: games.keys.identity(name) for name in games.keys.met},
            "coverage": {"planned": len(outcomes), "scored": scored},
            "unfinished": left_to_do(
                [cell for row in cells.values() for cell in row.values()] + [*crossed.values()],
                audited=bool(games.auditor),
            ),
            "leakage": leakage.as_json(),
            "scenarios": games.keys.scenarios,
            "versions": versions(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "config": configs.to_dict(config),
        }
        check_unchanged(entries.frozen.values())
        write_outcomes(to / "outcomes.csv", outcomes, value_names(domain))
        if crossed:
            from ibrl_jax.reporting.crossplay import draw  # late: it takes a second

            matrix = crossplay.matrix_of(config, domain, entries.rows, crossed)
            write_json(to / "crossplay.json", matrix)
            write_text(to / "crossplay.csv", crossplay.as_csv(matrix))
            draw(matrix, to)
        else:
            for name in CROSSPLAY:  # of an earlier evaluation
                (to / name).unlink(missing_ok=True)
        write_json(to / "evaluation.json", table)
    return table


def left_to_do(cells: Sequence[Cell], *, audited: bool) -> dict[str, int]:
    """What of the dialogues is still to be done; see `reporting.unfinished`."""
    played = [p for cell in cells for p in cell.played]
    counts = {
        "dialogues": len(played),
        "broken_off": sum(is_broken_off(p.failed) for p in played),
    }
    if audited:
        counts["calls"] = sum(has_ended(p.outcome) for p in played)
        counts["unaudited"] = sum(is_open(p.outcome) for p in played)
    return counts


def _leakage(config: ConfigDict, entries: Entries, columns: Sequence[Column]) -> Leakage:
    """What the columns that are called held-out share with the training of the rows' policies."""
    policies = [entries.frozen[row.name] for row in entries.rows if row.name in entries.frozen]
    runs = {policy.run for policy in policies if policy.run}
    held_out = {c.name: c.counterparts for c in columns if c.kind == HELD_OUT}
    return check({run: run_config(run) for run in sorted(runs)}, config, held_out)


def _crossplay(config: ConfigDict, entries: Entries, games: Games, note: Note) -> crossplay.Crossed:
    """Each policy in the first seat against each in the others, where they can hold them."""
    if not config.evaluation.crossplay:
        return {}
    note(f"cross-play of {len(entries.rows)} policies")
    found = {}
    for first in entries.rows:
        for second in entries.rows:
            cell = games.cell(first, crossplay.column_of(second), folder="crossplay")
            if cell is not None:
                found[first.label, second.label] = cell
    return found


def _about(row: Contestant, entries: Entries, keys: Keys) -> dict[str, Any]:
    """A row's policy, for `evaluation.json`."""
    about: dict[str, Any] = {"label": row.label, **keys.identity(row.name)}
    policy = entries.frozen.get(row.name)
    if policy is not None:
        values = asdict(policy)
        about |= {k: values[k] for k in ("run", "role", "iteration", "updates")}
        about["folder"] = str(policy.folder)
    return {**about, "in_system": list(row.partners)}
