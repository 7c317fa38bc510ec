"""Frozen policies of this machine, ready to be seated: their engines and what lies under them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.dialogue.build import at_once, build_cast, build_endpoints, build_speech
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.domains.base import Domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.cells import Local
from ibrl_jax.evaluation.columns import evaluation_scenarios
from ibrl_jax.models.params import Params
from ibrl_jax.names import bare
from ibrl_jax.trainer.frozen import Frozen, check_unchanged
from ibrl_jax.trainer.placing import local_places
from ibrl_jax.trainer.policies import about_policy, check_policy, load_policy
from ibrl_jax.trainer.weights import base_of, read_base


@dataclass(frozen=True, kw_only=True)
class Seating:
    """Who can sit: everybody of the cast, and local policies by name.

    `base` lies under the adapters of all of them; None: they have none.
    """

    cast: Cast
    locals: Mapping[str, Local]
    base: Params | None


def seating(
    config: ConfigDict, domain: Domain, frozen: Mapping[str, Frozen], ledgers: Path
) -> Seating:
    """Engines that hold the policies' base; nothing is compiled, and no policy is loaded yet.

    Without a local policy there are no engines, and the config's network need not be there.

    Args:
        ledgers: the folder in which each endpoint goes on with its ledger.

    Raises:
        UserError: the network, its base or an endpoint cannot be used, a view is too short, or a
            policy is of another network, tokenizer or chat format.
    """
    if not frozen:
        cast = Cast(
            domain=domain,
            speech=build_speech(configs.default_config(config.domain)),  # nobody speaks by it
            engines={},
            endpoints=build_endpoints(config, ledgers),
            max_new=config.rollout.max_new_tokens,
        )
        return Seating(cast=cast, locals={}, base=None)
    speech = build_speech(config)
    cast = build_cast(config, domain, speech, at_once(config), ledgers)
    check_room(config, cast)
    on = _on_their_base(config, next(iter(frozen.values())).folder)
    at = local_places(config, speech, domain.roles)  # also after a run of several processes: of one
    place = at[domain.roles[0]]
    base, below = base_of(on), read_base(on, speech, place)
    for role in domain.roles:
        cast.hold(role, None if below is None else at[role].base(below))
    for policy in frozen.values():
        check_policy(policy.folder, place.like, speech, base)
    locals_ = {
        name: Local(
            id=bare(name),
            role=policy.role,
            version=policy.updates,
            fingerprint=policy.fingerprint,
            params=partial(_load, policy, place.like, speech, base),
        )
        for name, policy in frozen.items()
    }
    return Seating(cast=cast, locals=locals_, base=below)


def _load(policy: Frozen, like: Params, speech: Speech, base: Mapping[str, Any] | None) -> Params:
    """A policy's values, which are read late: when it first takes a seat.

    Raises:
        UserError: they are gone, or others than those that it was found with.
    """
    check_unchanged([policy])
    params = load_policy(policy.folder, like, speech, base)
    check_unchanged([policy])  # nor were they replaced meanwhile
    return params


def check_room(config: ConfigDict, cast: Cast) -> None:
    """Raises UserError if a role's prompt leaves no room in its view for a first turn."""
    room, speech = config.rollout.max_view_tokens, cast.speech
    scenario = evaluation_scenarios(config, cast.domain)[0]
    for role in cast.domain.roles:
        before, after = speech.chat.system()
        prompt = speech.tokenizer.encode(cast.domain.prompt(scenario, role))
        opening = len(before) + len(prompt) + len(after) + len(speech.chat.header())
        if opening + config.rollout.max_new_tokens > room:
            raise UserError(
                f"config.rollout.max_view_tokens is {room}, and {role}'s prompt takes {opening} "
                f"before a first turn of up to {config.rollout.max_new_tokens}; give it more"
            )


def _on_their_base(config: ConfigDict, policy: Path) -> ConfigDict:
    """The config with the base that a policy's adapters say themselves that they lie on."""
    if not config.lora.rank or "lora" not in about_policy(policy):
        return config
    config = config.copy_and_resolve_references()
    with config.unlocked():
        config.policy.start = str(policy)
    return config
