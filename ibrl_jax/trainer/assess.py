"""Measures a run's frozen policies and their start against counterparts, into `evaluation.json`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_cast, build_domain, build_speech
from ibrl_jax.domains.base import Role
from ibrl_jax.evaluation.bench import Bench
from ibrl_jax.evaluation.cells import Contestant, Local
from ibrl_jax.evaluation.columns import HELD_OUT, columns_of
from ibrl_jax.evaluation.keys import Keys
from ibrl_jax.evaluation.leakage import check
from ibrl_jax.evaluation.matches import Games, local, playable
from ibrl_jax.evaluation.store import Store
from ibrl_jax.evaluation.table import table_of
from ibrl_jax.names import bare, kind_of, read_entry
from ibrl_jax.trainer.frozen import Frozen, find_frozen, met_by_training
from ibrl_jax.trainer.placing import local_places
from ibrl_jax.trainer.policies import START, about_policy, load_policy
from ibrl_jax.trainer.run import RunFolder, write_json
from ibrl_jax.trainer.session import check_names
from ibrl_jax.trainer.start import Note
from ibrl_jax.trainer.weights import base_of, load_weights


def assess(folder: RunFolder, config: ConfigDict, note: Note) -> dict[str, Any]:
    """Evaluates the policies of a finished run as `config.evaluation` says.

    Writes and returns the table. Dialogues are kept as they come, and a second start plays only
    what is missing.

    Raises:
        UserError: the run has no policies yet, or a counterpart cannot be used.
    """
    domain = build_domain(config)
    speech = build_speech(config)
    learners = [role for role in domain.roles if config.roles[role].train]
    folder.need_policies((START, *learners))
    cast = build_cast(config, domain, speech, at_once(config), folder.path / "endpoints")
    check_names(config, cast)
    start = {"random": "random start", "pretrained": "pretrained start"}.get(
        config.policy.start, "SFT start"
    )
    at = local_places(config, speech, domain.roles)  # after a run of several processes: of one
    first = load_weights(config, speech, at[domain.roles[0]], folder.policy(START))
    for role in domain.roles:
        cast.hold(role, None if first.frozen is None else at[role].base(first.frozen))
    base = base_of(config)
    contestants = [
        Contestant(
            label=start,
            role=None,
            params=first.trained,
            version=0,
            partners=(start,),
        )
    ]
    for role in learners:
        contestants.append(
            Contestant(
                label=role,
                role=role,
                params=load_policy(folder.policy(role), first.trained, speech, base),
                version=int(about_policy(folder.policy(role))["updates"]),
                partners=_partners(config, role, learners, start),
            )
        )
    frozen = _frozen(config, folder, domain.roles)
    own = {name: _own(folder, name, domain.roles) for name in (START, *learners)}
    locals_ = {c.label: local(c) for c in contestants} | {
        name: Local(
            id=bare(name),
            role=policy.role,
            version=policy.updates,
            params=partial(load_policy, policy.folder, first.trained, speech, base),
        )
        for name, policy in frozen.items()
    }
    prints = {c.label: own[c.role or START].fingerprint for c in contestants}
    keys = Keys(config, cast, prints | {n: policy.fingerprint for n, policy in frozen.items()})
    store = Store(folder.path / "evaluation", note)
    bench = Bench(cast, locals_, config.evaluation.temperature, note)
    met = met_by_training(config, list(own.values()), frozen, domain.roles)
    columns = playable(cast, columns_of(config, met))
    held_out = {c.name: c.counterparts for c in columns if c.kind == HELD_OUT}
    leakage = check({str(folder.path): folder.config()}, config, held_out)
    for sentence in leakage.stops:
        note(sentence)
    columns = leakage.demoted(columns)
    with store.alone():
        cells = Games(config, bench, note, store, keys.of).cells(contestants, columns)
        table = table_of(config, cast, contestants, columns, cells)
        table["leakage"] = leakage.as_json()
    write_json(folder.path / "evaluation.json", table)
    folder.summary({"evaluation": _headline(table)})
    return table


def _own(folder: RunFolder, name: str, roles: Sequence[Role]) -> Frozen:
    return find_frozen(f"frozen:{folder.path}:{name}", roles)


def _frozen(config: ConfigDict, folder: RunFolder, roles: Sequence[Role]) -> dict[str, Frozen]:
    """The counterparts that are policies, by the names that the config gives them.

    Raises:
        UserError: one of them is not there.
    """
    names = [n for text in config.evaluation.counterparts for n in read_entry(text).names]
    names += [name for settings in config.roles.values() for name in settings.counterpart]
    return {
        name: _own(folder, START, roles) if name == f"frozen:{START}" else find_frozen(name, roles)
        for name in names
        if kind_of(name) == "frozen"
    }


def assess_sentence(table: dict[str, Any]) -> str:
    """What came out of an evaluation, in a line."""
    column = table["columns"][0]["name"]
    told = [m for m in table["measures"] if m["compared"] and m["shown"]]
    parts = []
    for row in table["rows"]:
        cell = row["cells"].get(column)
        if cell is not None and cell[told[0]["key"]] is not None:
            found = [_told(cell, m) for m in told]
            found[0] += " without resampling)" if told[0]["first_try"] else ""
            parts.append(f"{row['policy']} " + ", ".join(found))
    remark = f" ({table['remark']})" if table["remark"] else ""
    return f"against {column}: " + "; ".join(parts) + remark


def _told(cell: dict[str, Any], measure: dict[str, Any]) -> str:
    """A measure of a cell, with its value at first try."""
    form = {"percent": ".1%", "signed": "+.3f"}.get(measure["form"], ".3f")
    text = f"{cell[measure['key']]:{form}} {measure['title'].lower()}"
    if measure["first_try"]:
        text += f" ({cell['first_try_' + measure['key']]:{form}}"
        text += "" if measure["form"] == "percent" else ")"
    return text


def _partners(
    config: ConfigDict, role: Role, learners: Sequence[Role], start: str
) -> tuple[str, ...]:
    """Who a role trained with: the other learner's final policy, or its training counterparts."""
    others = tuple(other for other in learners if other != role)
    if others:
        return others
    return tuple(
        start if name == "frozen:start" else name
        for settings in config.roles.values()
        if not settings.train
        for name in settings.counterpart
    )


def _headline(table: dict[str, Any]) -> dict[str, dict[str, dict[str, float | None]]]:
    """What is compared, by policy and column."""
    keys = [m["key"] for m in table["measures"] if m["compared"]]
    return {
        row["policy"]: {
            column: {key: cell[key] for key in (*keys, "coverage")}
            for column, cell in row["cells"].items()
        }
        for row in table["rows"]
    }
