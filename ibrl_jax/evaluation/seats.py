"""Who can sit where."""

from __future__ import annotations

from collections.abc import Callable

from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import CROSS_PLAY, Column


def seats_of(
    domain: Domain,
    name: str,
    role: Role | None,
    column: Column,
    role_of: Callable[[str], Role | None],
) -> tuple[Role, ...]:
    """Where a policy sits in a column.

    Where seats are not interchangeable a policy has its own, and one that has none (a start, a
    model behind an endpoint) the first that it can hold and that the column's counterparts leave
    it. In cross-play the policy sits in the first seat, its counterpart in the others.

    Args:
        name: who the policy is.
        role: what it was trained to hold; None: nothing, or anything.
        role_of: the same of frozen counterparts, by their names.
    """
    roles = domain.roles
    if domain.interchangeable:
        return roles[:1] if column.kind == CROSS_PLAY else roles
    free = tuple(
        seat
        for seat in (roles[:1] if column.kind == CROSS_PLAY else roles)
        if role in (None, seat)
        and can_hold(domain, name, seat, None)
        and all(
            can_hold(domain, other, r, role_of(other))
            for other in column.counterparts
            for r in roles
            if r != seat
        )
    )
    return free[:1]


def can_hold(domain: Domain, name: str, role: Role, own: Role | None) -> bool:
    """Whether who has a name can hold a role's seat; a policy was trained to, in `own` if any."""
    kind, _, which = name.partition(":")
    if kind == "scripted":
        return which in domain.families[role]
    if kind == "frozen":
        return own in (None, role)
    form = which.partition(":")[2] if kind == "api" else ""
    try:
        return not form or bool(domain.adapter(form, role))
    except UserError:
        return False
