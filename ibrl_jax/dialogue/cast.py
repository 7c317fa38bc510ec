"""Who can be seated: a stage's engines, the parameters they hold, and a speaker for every name.

Each role has an engine of its own, so that both roles' policies sample at the same time; an engine
holds several sets of parameters of one shape (live, past, frozen), by name, and all share its
compiled programs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from ibrl_jax.dialogue.agents import ApiSpeaker, LocalSpeaker, ScriptedSpeaker, Speaker
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine

_LOOKED_AT = 32
"""Scenarios whose prompts are compared."""


def opening(domain: Domain, speech: Speech, role: Role) -> list[int]:
    """What a role's views begin with in every scenario: the rules, up to its private input.

    Found as the longest common beginning, in tokens, of the prompts of scenarios from all over the
    training split; a prompt that begins otherwise after all is merely read as a whole.
    """
    scenarios = domain.scenarios("train")
    before, _ = speech.chat.system()
    prompts = [
        [*before, *speech.tokenizer.encode(domain.prompt(scenario, role))]
        for scenario in scenarios[:: max(1, len(scenarios) // _LOOKED_AT)]
    ]
    if len(prompts) < 2:
        return []
    alike = takewhile(lambda ids: len(set(ids)) == 1, zip(*prompts, strict=False))
    return [ids[0] for ids in alike]


@dataclass(frozen=True, kw_only=True)
class Cast:
    """Everything that can hold a seat. `max_new` is the longest turn, tokens."""

    domain: Domain
    speech: Speech
    engines: Mapping[Role, Engine]
    endpoints: Mapping[str, Endpoint]
    max_new: int

    def hold(self, role: Role, base: Params | None) -> None:
        """Set the base under the adapters of a role's policies (None: they have no adapters).

        It is shared, not copied.
        """
        if base is not None:
            self.engines[role].programs.hold(base)

    def load(self, role: Role, params: str, values: Params) -> None:
        """Hold what trains of a policy under a name in a role's engine, in place of what had it."""
        self.engines[role].load(params, values)

    def local(self, role: Role, params: str, ref: PolicyRef, temperature: float) -> Speaker:
        """A policy whose parameters were loaded under a name."""
        return LocalSpeaker(
            engine=self.engines[role],
            speech=self.speech,
            params=params,
            ref=ref,
            temperature=temperature,
            max_new=self.max_new,
        )

    def named(self, name: str, role: Role) -> Speaker:
        """`scripted:<family>`, `api:<endpoint>` or `api:<endpoint>:<form>`, to hold a role's seat.

        Raises:
            UserError: there is no such endpoint or form, or the name has another form.
        """
        kind, _, which = name.partition(":")
        if kind == "scripted":
            return ScriptedSpeaker(domain=self.domain, family=which)
        if kind == "api":
            endpoint, _, form = which.partition(":")
            if endpoint not in self.endpoints:
                known = ", ".join(self.endpoints) or "none"
                raise UserError(
                    f"counterpart {name}: config.endpoints has no {endpoint!r} (it has {known})"
                )
            adapter = self.domain.adapter(form, role) if form else None
            return ApiSpeaker(endpoint=self.endpoints[endpoint], adapter=adapter)
        raise UserError(
            f"{name!r} is no counterpart; it is frozen:start, frozen:<run>:<role>, "
            "scripted:<family>, api:<endpoint> or api:<endpoint>:<form>"
        )

    def warm(self) -> None:
        """Compile all programs now."""
        for programs in self._programs():
            programs.warmup()

    @property
    def compilations(self) -> int:
        """Programs compiled so far, those that are being compiled included."""
        return sum(programs.compilations for programs in self._programs())

    def _programs(self) -> set[Programs]:
        return {engine.programs for engine in self.engines.values()}
