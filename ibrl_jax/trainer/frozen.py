"""Policies by the names that evaluations give them: where they lie, who they trained with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import met_by
from ibrl_jax.fields import listed
from ibrl_jax.names import bare, kind_of
from ibrl_jax.trainer.policies import START, about_policy, is_policy
from ibrl_jax.trainer.run import RunFolder, read_json
from ibrl_jax.trainer.weights import fingerprint


@dataclass(frozen=True, kw_only=True)
class Frozen:
    """A policy that lies in a folder.

    `run` is the run folder that it belongs to, as it was named; None for a policy folder of its
    own. `role` is the one that it trained as; None for a start. `iteration` is that of a snapshot.
    `updates` is how many it has had; `fingerprint` is of its weights.
    """

    name: str
    folder: Path
    run: str | None
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


def find_frozen(name: str, roles: Sequence[Role]) -> Frozen:
    """The policy that `frozen:...` names.

    Raises:
        UserError: there is no such policy, or its folder is damaged.
    """
    where = bare(name)
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
        role=role,
        iteration=iteration,
        updates=int(about_policy(folder).get("updates", 0)),
        fingerprint=fingerprint(folder),
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
    roles = _config(policy.run)["roles"]
    others = [r for r, settings in roles.items() if settings["train"] and r != policy.role]
    if others and policy.iteration is not None:
        folder = RunFolder(Path(policy.run))
        there = [r for r in others if is_policy(folder.policy(snapshot(r, policy.iteration)))]
        return tuple(f"frozen:{policy.run}:{r}@{policy.iteration}" for r in there)
    if others:
        return tuple(f"frozen:{policy.run}:{r}" for r in others)
    return tuple(
        _of_run(policy.run, name)
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
    for run in sorted(runs):
        of_run = met_by(ConfigDict(listed(_config(run))))
        names |= {_of_run(run, name) for name in of_run}
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


def _config(run: str) -> Mapping[str, Any]:
    """The settings of a run, unchecked: it may be of a version with fewer of them."""
    return read_json(RunFolder.existing(run).path / "config.json")


def run_config(run: str) -> ConfigDict:
    """The settings of a run, unchecked: it may be of a version with fewer of them."""
    return ConfigDict(listed(_config(run)))


def _of_run(run: str, name: str) -> str:
    return f"frozen:{run}:{START}" if name == f"frozen:{START}" else name


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
