"""Who can be seated in an evaluation, by name, with only as many parameters held as are at play."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ibrl_jax.dialogue.agents import Speaker
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Match
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Role
from ibrl_jax.evaluation.cells import Local, Planned

HELD = 4
"""Policies whose parameters an engine holds at once, unless one block of dialogues needs more."""


class Bench:
    """Seats local policies by name, with the rest left to the cast.

    All local policies are of one network and share its compiled programs; parameters are read when
    they are first needed, and those that were not needed for longest make room.

    Args:
        temperature: of local policies' sampling, by the seat that they hold.
        note: told of what takes long.
    """

    def __init__(
        self,
        cast: Cast,
        locals: Mapping[str, Local],
        temperature: Mapping[Role, float],
        note: Callable[[str], None],
    ) -> None:
        self.cast, self._note = cast, note
        self._locals, self._temperature = locals, temperature
        self._held: dict[Role, dict[str, str]] = {role: {} for role in cast.domain.roles}
        self._warmed = False

    def role_of(self, name: str) -> Role | None:
        """The role that a local policy was trained to hold; None for anybody else."""
        return self._locals[name].role if name in self._locals else None

    def matches(self, planned: Sequence[Planned]) -> list[Match]:
        """The dialogues with their speakers, whose parameters are held from now on.

        Raises:
            UserError: a name is nobody's.
        """
        names: dict[Role, list[str]] = {
            role: list(dict.fromkeys(p.holders[role] for p in planned)) for role in self._held
        }
        speakers = {
            (role, name): self._speaker(role, name, len(all_names))
            for role, all_names in names.items()
            for name in all_names
        }
        return [
            Match(
                stage=p.stage,
                draw=p.draw,
                rollout=p.rollout,
                scenario=p.scenario,
                first=p.first,
                matchup=frozenset(),
                speakers={role: speakers[role, name] for role, name in p.holders.items()},
            )
            for p in planned
        ]

    def _speaker(self, role: Role, name: str, needed: int) -> Speaker:
        local = self._locals.get(name)
        if local is None:
            return self.cast.named(name, role)
        if not self._warmed:
            self._note("compiling")
            self.cast.warm()
            self._warmed = True
        ref = PolicyRef(id=local.id, seat="frozen", version=local.version)
        return self.cast.local(role, self._hold(role, name, needed), ref, self._temperature[role])

    def _hold(self, role: Role, name: str, needed: int) -> str:
        """The name under which the role's engine holds a policy's parameters."""
        held = self._held[role]
        key = held.pop(name, None)
        if key is None:
            if len(held) < max(HELD, needed):
                key = f"policy{len(held)}"
            else:
                key = held.pop(next(iter(held)))
            self.cast.load(role, key, self._locals[name].params())
        held[name] = key  # the last one used is last
        return key
