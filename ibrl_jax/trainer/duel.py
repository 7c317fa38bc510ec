"""Two who sit opposite each other, again and again: dialogues of any two named players.

Both of a pair are seated in the same dialogues as any other pair: scenario, who opens and every
random key are the same, so what two pairs differ in is the players alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ml_collections import ConfigDict

from ibrl_jax.dialogue.agents import Speaker
from ibrl_jax.dialogue.build import at_once, build_cast, build_domain, build_hall, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.loop import Match, play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Role
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import evaluation_scenarios
from ibrl_jax.evaluation.seats import can_hold
from ibrl_jax.models.params import Params
from ibrl_jax.names import kind_of
from ibrl_jax.rewards.types import Failed
from ibrl_jax.trainer.frozen import Frozen, find_frozen
from ibrl_jax.trainer.placing import local_places
from ibrl_jax.trainer.policies import START, load_policy
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.weights import base_of, load_weights


@dataclass(frozen=True, kw_only=True)
class Table:
    """Engines that hold the policies of these names. `base` lies under adapters; None: all train.

    `params` is what was trained of each local policy.
    """

    config: ConfigDict
    cast: Cast
    policies: Mapping[str, Frozen]
    params: Mapping[str, Params]
    base: Params | None

    def speaker(self, name: str, role: Role) -> Speaker:
        """Whoever has a name, in a role's seat, at that role's temperature in training.

        Raises:
            UserError: nobody has that name.
        """
        domain = self.cast.domain
        if name not in self.params:
            speaker = self.cast.named(name, role)
            if not can_hold(domain, name, role, None):
                known = ", ".join(domain.families[role])
                raise UserError(
                    f"{name} cannot hold {role}'s seat; the scripted families that can are {known}"
                )
            return speaker
        policy = self.policies[name]
        if policy.role not in (None, role) and not domain.interchangeable:
            raise UserError(f"{name} is a policy of {policy.role}, and cannot hold {role}'s seat")
        ref = PolicyRef(id=name.partition(":")[2], seat="frozen", version=policy.updates)
        return self.cast.local(role, name, ref, self.config.roles[role].temperature)

    def play(
        self, holders: Mapping[Role, str], stage: Sequence[str], *, retries: int
    ) -> list[Trajectory]:
        """One dialogue a scenario and seed of `config.evaluation`; roles open in turn.

        Those that an endpoint's failure broke off are among them.

        Raises:
            UserError: a name is nobody's, or fewer than `rewards.min_coverage` came to an end.
        """
        config, roles = self.config, self.cast.domain.roles
        speakers = {role: self.speaker(name, role) for role, name in holders.items()}
        if self.params.keys() & set(holders.values()):
            self.cast.warm()
        matches = [
            Match(
                stage=tuple(stage),
                draw=f"{scenario.id}.{seed}",
                rollout=0,
                scenario=scenario,
                first=roles[(index + seed) % len(roles)],
                matchup=frozenset(),
                speakers=speakers,
            )
            for index, scenario in enumerate(evaluation_scenarios(config, self.cast.domain))
            for seed in range(config.evaluation.seeds)
        ]
        hall = build_hall(
            config,
            self.cast.domain,
            retries=retries,
            concurrency=at_once(config),
            endpoints=self.cast.endpoints,
        )
        played = play(hall, matches)
        if len(played) != len(matches):
            raise RuntimeError(f"{len(played)} dialogues of {len(matches)} asked for")
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


def set_table(run: RunFolder, config: ConfigDict, names: Iterable[str], ledgers: Path) -> Table:
    """Holds the local policies among `names` in both roles' engines; nothing is compiled yet.

    All are of the run's own network, and lie on its base where adapters train.

    Raises:
        UserError: a policy is not there, or is of another network, tokenizer or chat format.
    """
    domain, speech = build_domain(config), build_speech(config)
    policies = {
        name: find_frozen(name, domain.roles) for name in names if kind_of(name) == "frozen"
    }
    cast = build_cast(config, domain, speech, at_once(config), ledgers)
    at = local_places(config, speech, domain.roles)
    start = load_weights(config, speech, at[domain.roles[0]], run.policy(START))
    base = base_of(config)
    params: dict[str, Params] = {}
    for name, policy in policies.items():
        params[name] = load_policy(policy.folder, start.trained, speech, base)
    for role in domain.roles:
        cast.hold(role, None if start.frozen is None else at[role].base(start.frozen))
        for name, values in params.items():
            cast.load(role, name, values)
    return Table(config=config, cast=cast, policies=policies, params=params, base=start.frozen)
