"""What an evaluation shares with the training of the policies that it measures.

Before anything is called held-out: scenarios, prompts, judges, endpoints, models, scripted families
and the values of profiles that both have are listed. Some of it is meant to be shared (the rules of
the game), and is only listed. What would make a held-out claim false stops it:

    a scenario of the evaluation that training had      nothing of it is held-out
    a counterpart that training or its start has met    its column is a development one
    a counterpart that is the model of a training's     its column is a development one
      judge or counterpart, at whatever address
    a policy that came out of the same training         its column is a development one
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Domain, Scenario
from ibrl_jax.evaluation.columns import DEVELOPMENT, HELD_OUT, Column, evaluation_scenarios
from ibrl_jax.names import bare, full, kind_of, read_entry

Kind = Literal["scenarios", "prompt", "judge", "endpoint", "model", "family", "profiles"]


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Something that both have: `what` it is, `trained` by whom, and where it is `evaluated`.

    `column` is the evaluation's column that it is met in; empty where it concerns all or none.
    """

    kind: Kind
    what: str
    trained: str
    evaluated: str
    column: str = ""


@dataclass(frozen=True, kw_only=True)
class Leakage:
    """All that is shared. `development`: columns that cannot be held-out, each with the reason.

    `unknown` says what could not be compared.
    """

    overlaps: tuple[Overlap, ...]
    development: Mapping[str, str]
    unknown: tuple[str, ...]

    @property
    def trained_on(self) -> tuple[str, ...]:
        """Sentences on scenarios of the evaluation that training had."""
        return tuple(
            f"{found.what} of the evaluation were trained on by {found.trained}, so none of its "
            "columns is held-out; choose another config.evaluation.split or other files"
            for found in self.overlaps
            if found.kind == "scenarios"
        )

    @property
    def stops(self) -> tuple[str, ...]:
        """Sentences, each on why something of the evaluation is not held-out."""
        return self.trained_on + tuple(self.development.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "overlaps": [asdict(overlap) for overlap in self.overlaps],
            "development": dict(self.development),
            "unknown": list(self.unknown),
            "stops": list(self.stops),
        }

    def demoted(self, columns: Sequence[Column]) -> list[Column]:
        """The columns, those that are called held-out and are not as development ones."""
        return [
            replace(column, kind=DEVELOPMENT)
            if column.kind == HELD_OUT and (self.trained_on or column.name in self.development)
            else column
            for column in columns
        ]


def check(
    training: Mapping[str, ConfigDict],
    evaluation: ConfigDict,
    columns: Mapping[str, Sequence[str]] | None = None,
    build: Callable[[ConfigDict], Domain] = build_domain,
) -> Leakage:
    """Compares an evaluation with the runs that its policies come from.

    Args:
        training: the configs of these runs, by their folders.
        columns: names of counterparts by column; None: those of `evaluation.evaluation`.
        build: makes the domain of a config.

    Raises:
        UserError: the domain of a config cannot be built.
    """
    if columns is None:
        entries = [read_entry(text) for text in evaluation.evaluation.counterparts]
        columns = {entry.shown: entry.names for entry in entries}
    domain = build(evaluation)
    measured = _Side(domain, evaluation_scenarios(evaluation, domain))
    overlaps: list[Overlap] = []
    unknown: list[str] = []
    if evaluation.evaluation.split == "val":
        unknown.append("whether settings were chosen by these validation scenarios")
    sides: dict[str, _Side] = {}
    for run, config in training.items():
        key = json.dumps([config.domain, config[config.domain].to_dict()])
        if key not in sides:
            own = build(config)
            sides[key] = _Side(own, own.scenarios("train"))
        overlaps += _material(run, config, sides[key], measured)
        overlaps += [found for c, names in columns.items() for found in _met(run, config, c, names)]
        overlaps += _endpoints(run, config, evaluation, columns)
        if config.sft.transcripts and config.policy.start == "sft":
            unknown.append(
                f"{run} began with the transcripts {config.sft.transcripts}, whose scenarios were "
                "not compared"
            )
        if config.policy.start not in ("sft", "random", "pretrained"):
            unknown.append(
                f"{run} began with the policy {config.policy.start}; it is taken to have met "
                "config.sft.families"
            )
    return Leakage(
        overlaps=tuple(dict.fromkeys(overlaps)),
        development=_development(overlaps, columns),
        unknown=tuple(dict.fromkeys(unknown)),
    )


# ---------------------------------------------------------------- scenarios, prompts, profiles


class _Side:
    """The scenarios of one side, and what is in them."""

    def __init__(self, domain: Domain, scenarios: Sequence[Scenario]) -> None:
        self.domain, self.scenarios = domain, scenarios

    @cached_property
    def keys(self) -> dict[str, dict[str, None]]:
        """Each scenario by its cluster and by its contents, in order."""
        return {
            "clusters": dict.fromkeys(s.cluster for s in self.scenarios),
            "contents": dict.fromkeys(_content(s) for s in self.scenarios),
        }

    @cached_property
    def values(self) -> dict[str, set[str]]:
        """Texts that the private parts of scenarios hold, by their key."""
        found: dict[str, set[str]] = {}
        for scenario in self.scenarios:
            for key, text in _texts(dict(scenario.private), ""):
                found.setdefault(key, set()).add(text)
        return found


def _material(run: str, config: ConfigDict, trained: _Side, measured: _Side) -> Iterator[Overlap]:
    """Scenarios, prompts and values of profiles that a run shares with the evaluation."""
    if trained.domain.name != measured.domain.name:
        return
    where = "its scenarios"
    for what, names in measured.keys.items():
        shared = [name for name in names if name in trained.keys[what]]
        if shared:
            text = f"{len(shared)} of {len(names)} scenarios by their {what} ({shared[0]}, ...)"
            yield Overlap(kind="scenarios", what=text, trained=run, evaluated=where)
            break
    scenario = measured.scenarios[0]
    for role in measured.domain.roles:
        texts = [side.domain.prompt(scenario, role) for side in (trained, measured)]
        if texts[0] == texts[1]:
            what = f"the rules of {role}, {_hash(texts[0])} ({_prompts(config)})"
            yield Overlap(kind="prompt", what=what, trained=run, evaluated="its prompts")
    alike = {
        key: (len(trained.values[key] & values), len(values))
        for key, values in measured.values.items()
        if trained.values.get(key, set()) & values
    }
    if alike:
        text = ", ".join(f"{key} {n} of {of}" for key, (n, of) in sorted(alike.items()))
        yield Overlap(
            kind="profiles", what=f"values of profiles: {text}", trained=run, evaluated=where
        )


def _content(scenario: Scenario) -> str:
    """A scenario by what is in it, whatever it is called and whichever side sits where."""
    sides = sorted(json.dumps(side, sort_keys=True) for side in scenario.private.values())
    return _hash(json.dumps([scenario.public, sides], sort_keys=True))


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(inner, str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str) and key not in ("kind", "language"):
        yield key, value


def _prompts(config: ConfigDict) -> str:
    """Where a config's prompts are from."""
    if config.domain == "dond":
        return f"config.dond.prompt={config.dond.prompt}"
    folder = config.telesales.prompts_dir or "ours"
    return f"{folder}, {config.telesales.prompt_length}, {config.telesales.language}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


# ---------------------------------------------------------------- counterparts and endpoints


def _met(run: str, config: ConfigDict, column: str, names: Sequence[str]) -> Iterator[Overlap]:
    """The counterparts of a column that a run's start or training had, or that came out of it."""
    taught = config.policy.start not in ("random", "pretrained")
    families = {full(family) for family in config.sft.families} if taught else set()
    for name in names:
        kind: Kind = "family" if kind_of(name) == "scripted" else "model"
        where = f"column {column}"
        if name in families:
            yield Overlap(
                kind=kind,
                what=name,
                trained=f"{run}: config.sft.families",
                evaluated=where,
                column=column,
            )
        for role, settings in config.roles.items():
            if not settings.train and any(_same(name, other) for other in settings.counterpart):
                yield Overlap(
                    kind=kind,
                    what=name,
                    trained=f"{run}: config.roles.{role}.counterpart",
                    evaluated=where,
                    column=column,
                )
        if kind_of(name) == "frozen" and _within(bare(name), run):
            yield Overlap(
                kind="model", what=name, trained=f"{run} itself", evaluated=where, column=column
            )


def _same(name: str, other: str) -> bool:
    """Whether two names of counterparts name the same one; a path may be written in two ways."""
    if kind_of(name) == kind_of(other) == "frozen":
        return str(Path(bare(name))) == str(Path(bare(other)))
    return name == other


def _within(where: str, run: str) -> bool:
    """Whether `<run>:<role>` or a policy folder belongs to a run."""
    folder = where.rpartition(":")[0] or where
    path, root = Path(folder).resolve(), Path(run).resolve()
    return path == root or root in path.parents


def _endpoints(
    run: str, config: ConfigDict, evaluation: ConfigDict, columns: Mapping[str, Sequence[str]]
) -> Iterator[Overlap]:
    """Models behind endpoints that both ask, whatever they are called and wherever they are."""
    theirs = [
        (f"column {column}", column, name.split(":")[1])
        for column, names in columns.items()
        for name in names
        if kind_of(name) == "api"
    ]
    if evaluation.evaluation.auditor:
        theirs.append(("config.evaluation.auditor", "", evaluation.evaluation.auditor))
    for role, settings in config.roles.items():
        ours: list[tuple[Kind, str, str]] = []
        if settings.judge:
            ours.append(("judge", settings.judge, f"config.roles.{role}.judge"))
        for name in () if settings.train else settings.counterpart:
            if kind_of(name) == "api":
                ours.append(("endpoint", name.split(":")[1], f"config.roles.{role}.counterpart"))
        for kind, mine, key in ours:
            known = config.endpoints[mine]
            for where, column, name in theirs:
                other = evaluation.endpoints[name]
                if known.model and known.model.lower() == other.model.lower():
                    yield Overlap(
                        kind=kind,
                        what=f"{other.model} at {other.base_url}",
                        trained=f"{run}: {key}, at {known.base_url}",
                        evaluated=where,
                        column=column,
                    )


def _development(
    overlaps: Sequence[Overlap], columns: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Each column that training has met somebody of, and the sentence that says so."""
    found: dict[str, str] = {}
    for overlap in overlaps:
        if overlap.column in columns and overlap.column not in found:
            found[overlap.column] = (
                f"column {overlap.column} is not held-out: {overlap.what} is known to training "
                f"({overlap.trained}); it is a development column"
            )
    return found
