"""Policies by the names that evaluations give them: where they lie, who they trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import met_by
from ibrl_jax.fields import listed
from ibrl_jax.names import bare, kind_of
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer.policies import about_policy, is_policy
from ibrl_jax.trainer.run import RunFolder, read_json
from ibrl_jax.trainer.weights import fingerprint
from ibrl_jax.trainer.written import START


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A policy that lies in a folder.

    `run` is the run folder that it belongs to, as it was named; None for a policy folder of its
    own. `kin` is what the names of that run's policies begin with. `role` is the one that it
    trained as; None for a start. `iteration` is that of a snapshot. `updates` is how many it has
    had; `fingerprint` is of its weights.
    """

    name: str
    folder: Path
    run: str | None
    kin: str
    role: Role | None
    iteration: int | None
    updates: int
    fingerprint: str

    @property
    def short(self) -> str:
        """A label for it: the last part of its name."""
        if self.iteration is not None:
            return f"{self.role}@{self.iteration}"
        return self.role or (START if self.run else self.folder.name)


def find_frozen(name: str, roles: Sequence[Role], own: str = "") -> Frozen:
    """The policy that `frozen:...` names.

    Args:
        own: the run folder whose policies have names without it, `frozen:start`, `frozen:<role>`.

    Raises:
        UserError: there is no such policy, or its folder is damaged.
    """
    where = bare(name)
    if own and (where == START or _part(where, roles)[0]):
        return replace(find_frozen(f"frozen:{own}:{where}", roles), name=name, kin="frozen:")
    folder, run = Path(where), None
    if is_policy(folder):
        of = folder.parent.parent
        if folder.parent.name == "policies" and (of / "config.json").is_file():
            run = str(of)
        role, iteration = _part(folder.name, roles) if run else (None, None)
        if run is None:
            role = about_policy(folder).get("role")
            role = role if role in roles else None
    else:
        run, _, which = where.rpartition(":")
        if not run or not which:
            raise UserError(
                f"{name!r} names no policy: it is frozen:<run folder>:<role>, "
                "frozen:<run folder>:<role>@<iteration>, frozen:<run folder>:start or "
                "frozen:<policy folder>, and no such folder is there"
            )
        runs = RunFolder.existing(run)
        role, iteration = _part(which, roles)
        if role is None and which != START:
            raise UserError(
                f"{name!r} names no policy of a run, which has start and {', '.join(roles)}; "
                "a snapshot is <role>@<iteration>"
            )
        folder = runs.policy(which if iteration is None else snapshot(str(role), iteration))
        if not is_policy(folder):
            raise UserError(f"{name} is not there: {_lacking(runs, iteration)}")
    return Frozen(
        name=name,
        folder=folder,
        run=run,
        kin=f"frozen:{run}:" if run else "",
        role=role,
        iteration=iteration,
        updates=int(about_policy(folder).get("updates", 0)),
        fingerprint=fingerprint(folder),
    )


def check_unchanged(policies: Iterable[Frozen]) -> None:
    """Raises UserError if weights are no longer those that a policy was found with."""
    for policy in policies:
        if fingerprint(policy.folder) != policy.fingerprint:
            raise UserError(
                f"the weights in {policy.folder} changed while they were measured (its run went "
                "on, or they were replaced); when they stay as they are, give the same command "
                "again"
            )


def snapshot(role: Role, iteration: int) -> str:
    """The name in a run's `policies/` of what a role's policy was after an iteration."""
    return f"{role}@{iteration:06d}"


def trained_with(policy: Frozen) -> tuple[str, ...]:
    """The names of who held the other seat in a policy's training, by its run's config.

    For a snapshot of a run in which several roles learn, the others' snapshots of the same
    iteration, where they are there. A start meets itself. Nobody where no run is known.

    Raises:
        UserError: the run's config is damaged.
    """
    if policy.run is None:
        return ()
    if policy.role is None:
        return (policy.name,)
    roles = run_config(policy.run).roles.to_dict()
    others = [r for r, settings in roles.items() if settings["train"] and r != policy.role]
    if others and policy.iteration is not None:
        folder = RunFolder(Path(policy.run))
        there = [r for r in others if is_policy(folder.policy(snapshot(r, policy.iteration)))]
        return tuple(f"{policy.kin}{r}@{policy.iteration}" for r in there)
    if others:
        return tuple(f"{policy.kin}{r}" for r in others)
    return tuple(
        f"{policy.kin}{START}" if name == f"frozen:{START}" else name
        for settings in roles.values()
        if not settings["train"]
        for name in settings["counterpart"]
    )


def met_by_training(
    config: ConfigDict,
    policies: Sequence[Frozen],
    frozen: Mapping[str, Frozen],
    roles: Sequence[Role],
) -> Callable[[str], bool]:
    """Tells of a name whether the training or the start of any of the policies has met it.

    A run has met its own policies too, and whatever has the same weights as one that it has met. A
    policy folder that belongs to no run is taken to have met what `config` says.

    Args:
        frozen: counterparts that may be asked for, by name.

    Raises:
        UserError: a run's config is damaged.
    """
    runs = {policy.run for policy in policies if policy.run is not None}
    names = set(met_by(config)) if any(policy.run is None for policy in policies) else set[str]()
    prints = {policy.fingerprint for policy in policies}
    for run in runs:
        names |= met_by(run_config(run)) - {f"frozen:{START}"}  # that is its own, see below
    for name in sorted(n for n in names if kind_of(n) == "frozen"):
        try:
            prints.add(find_frozen(name, roles).fingerprint)
        except UserError:  # gone since: the name alone tells
            continue
    folders = {Path(run).resolve() for run in runs}
    prints |= {fingerprint(folder / "policies" / START) for folder in folders}

    def met(name: str) -> bool:
        policy = frozen.get(name)
        if name in names or policy is None:
            return name in names
        own = policy.run is not None and Path(policy.run).resolve() in folders
        return own or policy.fingerprint in prints

    return met


def run_config(run: str) -> ConfigDict:
    """The settings of a run, which may be of another version in what says nothing of whom it met.

    Raises:
        UserError: the file is damaged, or is of a version that had other such settings.
    """
    values = read_json(RunFolder.existing(run).path / "config.json")
    if other := _other_settings(values):
        raise UserError(
            f"{run} is of another version, whose config.json {other}, so nobody can tell what its "
            "training met; evaluate it with that version, or copy its policies to a folder "
            "elsewhere and name them frozen:<folder>"
        )
    return ConfigDict(listed(values))


def _other_settings(values: Any) -> str:
    """How a run's settings differ from those that `met_by`, `leakage.check` and domains read."""
    domain = values.get("domain") if isinstance(values, Mapping) else None
    if not isinstance(domain, str) or domain not in ROLES:
        return f"names the domain {domain!r}"
    known = set(configs.default_config(domain)[domain])
    endpoints = values.get("endpoints", {})
    needed = [
        *("policy.start", "sft.families", "sft.transcripts", "evaluation.seeds", "endpoints"),
        *(f"{domain}.{key}" for key in sorted(known)),
        *(f"roles.{r}.{key}" for r in ROLES[domain] for key in ("train", "counterpart", "judge")),
        *(f"endpoints.{name}.{key}" for name in endpoints for key in ("model", "base_url")),
    ]
    for setting in needed:
        node = values
        for part in setting.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return f"lacks {setting}"
            node = node[part]
    more = sorted(set(values[domain]) - known)
    return f"has {domain}.{more[0]}, which is no more" if more else ""


def _part(which: str, roles: Sequence[Role]) -> tuple[Role | None, int | None]:
    """`<role>` or `<role>@<iteration>`; no role if it is neither."""
    role, at, iteration = which.partition("@")
    if role not in roles or (at and not iteration.isdecimal()):
        return None, None
    return role, int(iteration) if at else None


def _lacking(run: RunFolder, iteration: int | None) -> str:
    if iteration is None:
        return (
            f"{run.path} has no such policy; a run writes those of the roles that train when it "
            "ends, and the same make train command goes on from its last checkpoint"
        )
    kept = sorted(p.name for p in (run.path / "policies").glob("*@*") if is_policy(p))
    there = f"there are {', '.join(kept)}" if kept else "there is none"
    return f"{there}; a run writes snapshots where config.run.snapshots_every is not 0"
