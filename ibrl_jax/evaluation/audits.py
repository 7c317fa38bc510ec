"""The audits of an evaluation's calls: by rule, or by the endpoint `evaluation.auditor`.

They look at finished dialogues and change nothing but the facts of their outcomes. Rules look when
a dialogue ends. An endpoint is asked afterwards, of dialogues that are kept already, and what it
left unanswered is *open*: it is asked again at the next start. Only TeleSales has any audits; other
domains' outcomes are all there is to say.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Outcome, Scenario, Turn
from ibrl_jax.domains.telesales.after_call import (
    AUDIT,
    AUDITS_VERSION,
    RULES,
    by_auditor,
    by_rule,
)
from ibrl_jax.domains.telesales.auditor import Auditor
from ibrl_jax.domains.telesales.domain import TeleSales
from ibrl_jax.domains.telesales.prompts import Prompts
from ibrl_jax.domains.telesales.referee import EndReason
from ibrl_jax.errors import UserError

PROMPTS = ("audit", "hallucination", "label_audit", "sales")
"""The prompts that an auditor is shown; the agent's own rules are a part of the first."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A dialogue that has ended, as an auditor is shown it."""

    scenario: Scenario
    turns: Sequence[Turn]
    outcome: Outcome


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


def audit_key(config: ConfigDict) -> dict[str, Any]:
    """What shapes the audits of an evaluation, JSON-able; empty where nobody audits.

    Raises:
        UserError: the folder of prompts cannot be used.
    """
    if config.domain != "telesales":
        return {}
    named = config.evaluation.auditor
    key: dict[str, Any] = {"by": named or RULES, "version": AUDITS_VERSION}
    if named and named in config.endpoints:
        key |= {"model": config.endpoints[named].model, "prompts": _prompts(config)}
    return key


def _prompts(config: ConfigDict) -> str:
    """A hash of the prompts of audits, in the language of the calls."""
    settings = config.telesales
    folder = Path(settings.prompts_dir) if settings.prompts_dir else None
    texts = Prompts(settings.language, folder, length=settings.prompt_length).texts
    shown = json.dumps([settings.language, {name: texts[name] for name in PROMPTS}])
    return hashlib.sha256(shown.encode()).hexdigest()[:16]


def has_ended(outcome: Outcome) -> bool:
    """Whether a dialogue came to an end; in an aborted one there is nothing to look at."""
    return outcome.end_reason != EndReason.ABORTED


def is_open(outcome: Outcome) -> bool:
    """Whether an audit of the dialogue, or a part of it, is still to be made."""
    audit = outcome.facts.get(AUDIT)
    return has_ended(outcome) and (audit is None or bool(audit["unanswered"]))


class Audits:
    """Who looks at the calls of an evaluation, and at which.

    Raises:
        UserError: as `auditor_name`.
    """

    def __init__(self, config: ConfigDict, cast: Cast) -> None:
        self.by = auditor_name(config, cast)
        self._auditor: Auditor | None = None
        if self.by not in ("", RULES):
            assert isinstance(cast.domain, TeleSales)
            self._auditor = Auditor(endpoint=cast.endpoints[self.by], prompts=cast.domain.prompts)

    def at_its_end(self, t: Trajectory) -> Trajectory:
        """A dialogue with what can be said of it at once: the audit by rule, if rules audit."""
        if self.by != RULES:
            return t
        return replace(t, outcome=by_rule(t.scenario, t.turns, t.outcome))

    def awaits(self, outcome: Outcome) -> bool:
        """Whether the auditor behind an endpoint is still to be asked of a dialogue."""
        return self._auditor is not None and is_open(outcome)

    def ask(self, calls: Mapping[int, Call], keep: Callable[[int, Outcome], None]) -> None:
        """Ask the auditor of calls, all at once; its endpoint says how many are under way.

        Args:
            keep: is given each outcome with its audit, by the call's number, when it has come.

        Raises:
            UserError: the endpoint as a whole is at fault; what had come was given to `keep`.
        """
        if self._auditor is not None:
            asyncio.run(_ask(self._auditor, calls, keep))


async def _ask(
    auditor: Auditor, calls: Mapping[int, Call], keep: Callable[[int, Outcome], None]
) -> None:
    async def look(number: int, call: Call) -> None:
        keep(number, await by_auditor(auditor, call.scenario, call.turns, call.outcome))

    try:
        async with asyncio.TaskGroup() as group:
            for number, call in calls.items():
                group.create_task(look(number, call))
    except* (UserError, OSError) as stopped:  # one of many alike: a stop, or a full disk
        raise _first(stopped) from None
    finally:
        await auditor.endpoint.aclose()


def _first(group: BaseExceptionGroup[UserError | OSError]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
