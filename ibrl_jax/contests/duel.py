"""Two who sit opposite each other, again and again: dialogues of any two named players.

Both of a pair are seated in the same dialogues as any other pair: scenario, who opens and every
random key are the same, so what two pairs differ in is the players alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_domain, build_hall
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.bench import Bench
from ibrl_jax.evaluation.cells import Local, Planned
from ibrl_jax.evaluation.columns import evaluation_scenarios
from ibrl_jax.evaluation.seats import can_hold
from ibrl_jax.models.params import Params
from ibrl_jax.names import kind_of
from ibrl_jax.rewards.types import Failed
from ibrl_jax.trainer.frozen import find_frozen
from ibrl_jax.trainer.seating import seating

_OF_TABLES = (
    *("policies", "counterparts", "reference", "in_system", "self_play", "crossplay"),
    *("temperature", "auditor"),
)
UNREAD = tuple(f"config.evaluation.{key}" for key in _OF_TABLES)
"""Options of evaluations that say nothing of a duel."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A bench that seats everybody at the temperature that their role has in training.

    `locals` are the policies of this machine, by name; `base` lies under their adapters (None: they
    have none).
    """

    config: ConfigDict
    bench: Bench
    locals: Mapping[str, Local]
    base: Params | None

    @property
    def cast(self) -> Cast:
        return self.bench.cast

    def check(self, name: str, role: Role) -> None:
        """Raises UserError unless somebody has that name and can hold that role's seat."""
        domain = self.cast.domain
        if name in self.locals:
            own = self.locals[name].role
            if own not in (None, role) and not domain.interchangeable:
                raise UserError(f"{name} is a policy of {own}, and cannot hold {role}'s seat")
            return
        self.cast.named(name, role)
        if not can_hold(domain, name, role, None):
            known = ", ".join(domain.families[role])
            raise UserError(
                f"{name} cannot hold {role}'s seat; the scripted families that can are {known}"
            )

    def play(
        self, holders: Mapping[Role, str], stage: Sequence[str], *, retries: int
    ) -> list[Trajectory]:
        """One dialogue a scenario and seed of `config.evaluation`; roles open in turn.

        Those that an endpoint's failure broke off are among them.

        Raises:
            UserError: a name is nobody's, or fewer than `rewards.min_coverage` came to an end.
        """
        config, domain = self.config, self.cast.domain
        roles = domain.roles
        for role, name in holders.items():
            self.check(name, role)
        planned = [
            Planned(
                stage=tuple(stage),
                scenario=scenario,
                seed=seed,
                seat=roles[0],
                first=roles[(index + seed) % len(roles)],
                rollout=0,
                holders=holders,
            )
            for index, scenario in enumerate(evaluation_scenarios(config, domain))
            for seed in range(config.evaluation.seeds)
        ]
        hall = build_hall(
            config,
            domain,
            retries=retries,
            concurrency=at_once(config),
            endpoints=self.cast.endpoints,
        )
        played = play(hall, self.bench.matches(planned))
        if len(played) != len(planned):
            raise RuntimeError(f"{len(played)} dialogues of {len(planned)} asked for")
        coverage = len(finished(played)) / len(played)
        if coverage < config.rewards.min_coverage:
            raise UserError(
                f"only {coverage:.0%} of the dialogues of {' and '.join(holders.values())} came to "
                "an end and could be scored, less than config.rewards.min_coverage"
            )
        return played


def finished(played: Sequence[Trajectory]) -> list[Trajectory]:
    """Those that came to an end, with a reward for every role."""
    return [t for t in played if not any(isinstance(r, Failed) for r in t.rewards.values())]


def set_table(
    config: ConfigDict, names: Iterable[str], ledgers: Path, note: Callable[[str], None]
) -> Table:
    """A table for whoever is among `names`; nothing is compiled yet.

    Raises:
        UserError: a policy is not there, or the network, its base or an endpoint cannot be used.
    """
    domain = build_domain(config)
    frozen = {name: find_frozen(name, domain.roles) for name in names if kind_of(name) == "frozen"}
    seated = seating(config, domain, frozen, ledgers)
    temperature = {role: config.roles[role].temperature for role in domain.roles}
    bench = Bench(seated.cast, seated.locals, temperature, note)
    return Table(config=config, bench=bench, locals=seated.locals, base=seated.base)
