"""An evaluation of any policies, of one run or of many, that resumes where it stopped.

```
<folder>/
  evaluation.json           the table, and all that it takes to repeat it
  outcomes.csv              a row a dialogue (see `evaluation.outcomes`)
  dialogues/                every dialogue, a file a policy and column
  crossplay.csv .json .svg .png   each policy against each, where that is asked for
```
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.dialogue.build import (
    at_once,
    build_cast,
    build_domain,
    build_endpoints,
    build_speech,
)
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import crossplay
from ibrl_jax.evaluation.bench import Bench
from ibrl_jax.evaluation.cells import Contestant, Local
from ibrl_jax.evaluation.columns import HELD_OUT, Column, columns_of
from ibrl_jax.evaluation.keys import Keys, versions
from ibrl_jax.evaluation.leakage import Leakage, check
from ibrl_jax.evaluation.matches import Games, playable
from ibrl_jax.evaluation.outcomes import outcome_rows, value_names, write_outcomes
from ibrl_jax.evaluation.seats import can_hold
from ibrl_jax.evaluation.store import Store
from ibrl_jax.evaluation.table import table_of
from ibrl_jax.names import bare, kind_of, read_entry
from ibrl_jax.reporting.crossplay import draw
from ibrl_jax.trainer.assess import assess_sentence
from ibrl_jax.trainer.frozen import (
    Frozen,
    find_frozen,
    met_by_training,
    run_config,
    trained_with,
)
from ibrl_jax.trainer.placing import Place, local_places
from ibrl_jax.trainer.policies import about_policy, load_policy
from ibrl_jax.trainer.run import write_json, write_text
from ibrl_jax.trainer.start import Note
from ibrl_jax.trainer.weights import base_of, read_base


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Who an evaluation is of: its rows, its columns, and every frozen policy in it, by name."""

    rows: list[Contestant]
    columns: list[Column]
    frozen: Mapping[str, Frozen]


def contest(config: ConfigDict, to: Path, note: Note) -> dict[str, Any]:
    """Evaluates `config.evaluation.policies`; writes and returns the table.

    Raises:
        UserError: a policy or counterpart is not there or cannot be used, policies differ in
            network, tokenizer or chat format, or another process is at work in the folder.
    """
    domain = build_domain(config)
    entries = entries_of(config, domain)
    store = Store(to / "dialogues", note)
    with store.alone():
        cast, locals_ = _cast(config, domain, entries, to)
        keys = Keys(config, cast, {n: f.fingerprint for n, f in entries.frozen.items()})
        bench = Bench(cast, locals_, config.evaluation.temperature, note)
        games = Games(config, bench, note, store, keys.of)
        columns = playable(cast, entries.columns)
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
        table = table_of(config, cast, entries.rows, columns, cells)
        planned = len(outcomes)
        scored = sum(not row.aborted for row in outcomes)
        table |= {
            "policies": [_about(row, entries, keys) for row in entries.rows],
            "counterparts": {name: keys.identity(name) for name in keys.met},
            "coverage": {"planned": planned, "scored": scored},
            "leakage": leakage.as_json(),
            "scenarios": keys.scenarios,
            "versions": versions(),
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "config": configs.to_dict(config),
        }
        write_outcomes(to / "outcomes.csv", outcomes, value_names(domain))
        if crossed:
            matrix = crossplay.matrix_of(config, domain, entries.rows, crossed)
            write_json(to / "crossplay.json", matrix)
            write_text(to / "crossplay.csv", crossplay.as_csv(matrix))
            draw(matrix, to)
        write_json(to / "evaluation.json", table)
    return table


def _leakage(config: ConfigDict, entries: Entries, columns: Sequence[Column]) -> Leakage:
    """What the columns that are called held-out share with the training of the rows' policies."""
    policies = [entries.frozen[row.name] for row in entries.rows if row.name in entries.frozen]
    runs = {policy.run for policy in policies if policy.run}
    held_out = {c.name: c.counterparts for c in columns if c.kind == HELD_OUT}
    return check({run: run_config(run) for run in sorted(runs)}, config, held_out)


def contest_sentence(table: dict[str, Any], to: Path) -> str:
    """What came out, in a line."""
    coverage, rows = table["coverage"], len(table["rows"])
    dialogues = f"{coverage['scored']} of {coverage['planned']} dialogues with a result"
    told = f": {assess_sentence(table)}" if table["columns"] else ""
    return f"{to}: {rows} {'policy' if rows == 1 else 'policies'}, {dialogues}{told}"


def entries_of(config: ConfigDict, domain: Domain) -> Entries:
    """Everybody that the config names, found.

    Raises:
        UserError: a name is nobody's, or two policies have one label.
    """
    texts = config.evaluation.policies
    if not texts:
        raise UserError(
            "config.evaluation.policies names no policy; it is a list of label=name, such as "
            "agent=frozen:runs/mini/seed0:agent0"
        )
    frozen: dict[str, Frozen] = {}

    def find(name: str) -> Frozen | None:
        if kind_of(name) == "frozen" and name not in frozen:
            frozen[name] = find_frozen(name, domain.roles)
        return frozen.get(name)

    rows = []
    for text in texts:
        entry = read_entry(text)
        (name,) = entry.names
        policy = find(name)
        _check_seat(config, domain, name)
        partners = trained_with(policy) if policy and config.evaluation.in_system else ()
        rows.append(
            Contestant(
                label=entry.label or (policy.short if policy else bare(name)),
                role=policy.role if policy else None,
                params=None,
                version=policy.updates if policy else 0,
                partners=partners,
                name=name,
            )
        )
    labels = [row.label for row in rows]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise UserError(
            f"config.evaluation.policies has two policies called {twice[0]!r}; give them labels "
            "of their own, label=name"
        )
    named = config.evaluation.reference
    if named and named not in labels:
        raise UserError(
            f"config.evaluation.reference is {named!r}, which is no label of "
            f"config.evaluation.policies ({', '.join(labels)})"
        )
    for row in rows:
        for name in row.partners:
            _check_partner(config, row, name)
            find(name)
    for text in config.evaluation.counterparts:
        for name in read_entry(text).names:
            find(name)
            _check_seat(config, domain, name)
    policies = [frozen[row.name] for row in rows if row.name in frozen]
    columns = columns_of(config, met_by_training(config, policies, frozen, domain.roles))
    return Entries(rows=rows, columns=columns, frozen=frozen)


def _cast(
    config: ConfigDict, domain: Domain, entries: Entries, to: Path
) -> tuple[Cast, dict[str, Local]]:
    """Everybody that can sit; engines only where a policy of this machine is among them.

    Raises:
        UserError: policies are of another network, tokenizer or chat format than the config's.
    """
    ledgers = to / "endpoints"
    if not entries.frozen:
        plain = configs.default_config(config.domain)  # nobody speaks by it
        return (
            Cast(
                domain=domain,
                speech=build_speech(plain),
                engines={},
                endpoints=build_endpoints(config, ledgers),
                max_new=config.rollout.max_new_tokens,
            ),
            {},
        )
    speech = build_speech(config)
    cast = build_cast(config, domain, speech, at_once(config), ledgers)
    if config.lora.rank:  # adapters say themselves what they lie on; all must lie on the same
        config = config.copy_and_resolve_references()
        first = next(iter(entries.frozen.values())).folder
        if "lora" in about_policy(first):
            with config.unlocked():
                config.policy.start = str(first)
    base = base_of(config)
    at = local_places(config, speech, domain.roles)
    for role in domain.roles:
        below = read_base(config, speech, at[role])
        cast.hold(role, None if below is None else at[role].base(below))
    place: Place = at[domain.roles[0]]

    def read(folder: Path) -> Any:
        return load_policy(folder, place.like, speech, base)

    for policy in entries.frozen.values():  # what does not fit is said before anything is played
        read(policy.folder)
    return cast, {
        name: Local(
            id=bare(name),
            role=policy.role,
            version=policy.updates,
            params=partial(read, policy.folder),
        )
        for name, policy in entries.frozen.items()
    }


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


def _check_seat(config: ConfigDict, domain: Domain, name: str) -> None:
    """Raises UserError for a scripted family or a form that no seat knows."""
    kind, which = kind_of(name), bare(name)
    if kind == "frozen" or any(can_hold(domain, name, role, None) for role in domain.roles):
        return
    if kind == "scripted":
        known = sorted({f for families in domain.families.values() for f in families})
        raise UserError(
            f"there is no scripted family {which!r} in {config.domain}; there are "
            f"{', '.join(known)}"
        )
    form = which.partition(":")[2]
    for role in domain.roles:
        domain.adapter(form, role)  # raises, with what there is


def _check_partner(config: ConfigDict, row: Contestant, name: str) -> None:
    endpoint = bare(name).partition(":")[0]
    if kind_of(name) == "api" and endpoint not in config.endpoints:
        raise UserError(
            f"{row.label} trained with {name}, and config.endpoints has no {endpoint!r}; name it "
            "there, or set config.evaluation.in_system=False"
        )


def _about(row: Contestant, entries: Entries, keys: Keys) -> dict[str, Any]:
    """A row's policy, for `evaluation.json`."""
    about: dict[str, Any] = {"label": row.label, **keys.identity(row.name)}
    policy = entries.frozen.get(row.name)
    if policy is not None:
        values = asdict(policy)
        about |= {k: values[k] for k in ("run", "role", "iteration", "updates")}
        about["folder"] = str(policy.folder)
    return {**about, "in_system": list(row.partners)}
