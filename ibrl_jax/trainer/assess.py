"""Measures a run's frozen policies and their start against counterparts, into `evaluation.json`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_cast, build_domain, build_speech
from ibrl_jax.dialogue.record import record
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.evaluation.matches import Contestant, evaluate
from ibrl_jax.trainer.placing import local_places
from ibrl_jax.trainer.policies import START, about_policy, load_policy
from ibrl_jax.trainer.run import RunFolder, write_json, write_lines
from ibrl_jax.trainer.session import check_names, frozen_counterparts
from ibrl_jax.trainer.start import Note
from ibrl_jax.trainer.weights import base_of, load_weights


def assess(folder: RunFolder, config: ConfigDict, note: Note) -> dict[str, Any]:
    """Evaluates the policies of a finished run as `config.evaluation` says.

    Writes and returns the table.

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
    note("compiling")
    cast.warm()
    played_cells: dict[Path, list[dict[str, Any]]] = {}

    def keep(policy: str, column: str, played: Sequence[Trajectory]) -> None:
        file = (
            folder.path
            / "evaluation"
            / f"{policy}-{column}.jsonl".replace("/", "_").replace(" ", "-")
        )
        rows = [record(t, speech.tokenizer, {}, policy=policy, column=column) for t in played]
        played_cells[file] = rows

    frozen = frozen_counterparts(config, first, speech)
    table = evaluate(config, cast, contestants, note, keep, partners=frozen)
    for file, rows in played_cells.items():  # an evaluation that fails leaves the last one whole
        write_lines(file, rows)
    write_json(folder.path / "evaluation.json", table)
    folder.summary({"evaluation": _headline(table)})
    return table


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
