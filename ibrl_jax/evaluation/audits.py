"""The audits of an evaluation's calls: by rule, or by the endpoint `evaluation.auditor`.

They look at finished dialogues and change nothing but the facts of their outcomes. Only TeleSales
has any; other domains' outcomes are all there is to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from ml_collections import ConfigDict

from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.telesales.after_call import RULES, by_auditor, by_rule
from ibrl_jax.domains.telesales.auditor import Auditor
from ibrl_jax.domains.telesales.domain import TeleSales
from ibrl_jax.errors import UserError

Audit = Callable[[Sequence[Trajectory]], list[Trajectory]]
"""Gives the dialogues back, in order, with what was found in their outcomes' facts."""


def auditor_name(config: ConfigDict, cast: Cast) -> str:
    """Who audits: `rules`, an endpoint's name, or nobody (empty).

    Raises:
        UserError: the domain has nothing to audit, or the endpoint is none of the config's.
    """
    named = config.evaluation.auditor
    if not isinstance(cast.domain, TeleSales):
        if named:
            raise UserError(
                f"config.evaluation.auditor is {named!r}, and {cast.domain.name} has nothing to "
                "audit; leave it empty"
            )
        return ""
    if named and named not in cast.endpoints:
        raise UserError(
            f"config.evaluation.auditor names {named}, and config.endpoints has no {named!r}"
        )
    return named or RULES


def build_audit(config: ConfigDict, cast: Cast) -> Audit | None:
    """What audits the calls of an evaluation; None where the domain has nothing to audit.

    Raises:
        UserError: as `auditor_name`.
    """
    name, domain = auditor_name(config, cast), cast.domain
    if not isinstance(domain, TeleSales):
        return None
    if name == RULES:
        return _by_rule
    auditor = Auditor(endpoint=cast.endpoints[name], prompts=domain.prompts)
    return lambda played: asyncio.run(_by_endpoint(auditor, played))


def _by_rule(played: Sequence[Trajectory]) -> list[Trajectory]:
    return [replace(t, outcome=by_rule(t.scenario, t.turns, t.outcome)) for t in played]


async def _by_endpoint(auditor: Auditor, played: Sequence[Trajectory]) -> list[Trajectory]:
    """All calls at once; how many questions are under way is the endpoint's own setting."""
    try:
        async with asyncio.TaskGroup() as group:
            looks = [
                group.create_task(by_auditor(auditor, t.scenario, t.turns, t.outcome))
                for t in played
            ]
    except* UserError as stopped:  # the endpoint as a whole: one sentence of many alike
        raise _first(stopped) from None
    finally:
        await auditor.endpoint.aclose()
    return [replace(t, outcome=look.result()) for t, look in zip(played, looks, strict=True)]


def _first(group: BaseExceptionGroup[UserError]) -> UserError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, UserError)
    return error
