"""Who takes part in an evaluation: its rows, its columns and every frozen policy, found by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.cells import Contestant
from ibrl_jax.evaluation.columns import Column, columns_of
from ibrl_jax.evaluation.seats import can_hold
from ibrl_jax.names import bare, kind_of, read_entry
from ibrl_jax.trainer.frozen import Frozen, find_frozen, met_by_training, trained_with


@dataclass(frozen=True, kw_only=True)
class Entries:
    """Who an evaluation is of: its rows, its columns, and every frozen policy in it, by name."""

    rows: list[Contestant]
    columns: list[Column]
    frozen: Mapping[str, Frozen]


def entries_of(config: ConfigDict, domain: Domain, own: str = "") -> Entries:
    """Everybody that the config names, found.

    Args:
        own: the run folder whose policies have names without it, `frozen:start`, `frozen:<role>`.

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
            frozen[name] = find_frozen(name, domain.roles, own)
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
                name=name,
                role=policy.role if policy else None,
                version=policy.updates if policy else 0,
                partners=partners,
            )
        )
    _check_labels(config, [row.label for row in rows])
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


def _check_labels(config: ConfigDict, labels: list[str]) -> None:
    """Raises UserError if they do not tell the policies apart, or the reference is none of them."""
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise UserError(
            f"config.evaluation.policies has two policies called {twice[0]!r}; give them labels "
            "of their own, label=name"
        )
    named = config.evaluation.reference
    if named and named not in labels:
        raise UserError(
            f"config.evaluation.reference is {named!r}, which is no label of the policies that are "
            f"evaluated ({', '.join(labels)})"
        )


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
