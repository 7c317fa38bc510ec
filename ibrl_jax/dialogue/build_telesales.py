"""From a config to Vehicle TeleSales and its judges; imported where a config names the domain."""

from __future__ import annotations

from collections.abc import Mapping

from ml_collections import ConfigDict

from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.domains.telesales.domain import TeleSales, TelesalesSettings
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.rewards.llm import EndpointJudge
from ibrl_jax.rewards.telesales_rules import CustomerRuleJudge, SalesRuleJudge, TurnWeights
from ibrl_jax.rewards.types import Judge


def telesales(config: ConfigDict) -> TeleSales:
    """The domain.

    Raises:
        UserError: its profiles or prompts are missing or damaged.
    """
    values = dict(config.telesales)
    values["prompts_dir"] = values["prompts_dir"] or None
    return TeleSales(TelesalesSettings(**values, conversations=config.evaluation.seeds))


def telesales_judges(
    config: ConfigDict, domain: Domain, endpoints: Mapping[str, Endpoint] | None
) -> dict[Role, Judge]:
    """Each role's judge: the endpoint that the config names for it, or rules."""
    assert isinstance(domain, TeleSales)
    rewards = config.rewards
    weights = TurnWeights(turn=rewards.turn, episode=rewards.episode, gamma=rewards.gamma)
    judges: dict[Role, Judge] = {
        "sales": SalesRuleJudge(weights=weights),
        "customer": CustomerRuleJudge(weights=weights),
    }
    for role, settings in config.roles.items():
        if settings.judge and endpoints is not None:
            judges[role] = EndpointJudge(
                role=role,
                prompts=domain.prompts,
                endpoint=endpoints[settings.judge],
                weights=weights,
            )
    return judges
