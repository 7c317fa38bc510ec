"""Vehicle TeleSales as a `Domain`: profiles as scenarios, prompts, referee, rule-based players."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ibrl_jax.domains.base import (
    Adapter,
    Measure,
    Outcome,
    Role,
    Scenario,
    ScriptedPlayer,
    Turn,
)
from ibrl_jax.domains.telesales import person
from ibrl_jax.domains.telesales.adapters import ADAPTERS, call_state
from ibrl_jax.domains.telesales.customers import FAMILIES, customer
from ibrl_jax.domains.telesales.labels import LANGUAGES, Language
from ibrl_jax.domains.telesales.metrics import STAND_IN, Result, measured, summarise
from ibrl_jax.domains.telesales.profiles.composition import Composition
from ibrl_jax.domains.telesales.profiles.files import read_profiles
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles, training_profiles
from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile, Profile
from ibrl_jax.domains.telesales.prompts import Length, Prompts
from ibrl_jax.domains.telesales.record import on_grid
from ibrl_jax.domains.telesales.referee import EndReason, TelesalesReferee
from ibrl_jax.domains.telesales.refusals import REFUSALS
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, ROLES, SALES, lead_of, make_scenario
from ibrl_jax.domains.telesales.sellers import SELLERS, seller
from ibrl_jax.domains.telesales.story import compile_offline, with_story
from ibrl_jax.errors import UserError

SPLITS = ("train", "val", "test")
Stories = Literal["offline", "none"]

CONFIRMED, VERBAL_ONLY = 1.0, 0.4
"""What the agent's outcome is worth: a confirmed add, a yes that came to nothing."""


@dataclass(frozen=True, kw_only=True)
class TelesalesSettings:
    """What a TeleSales run can set.

    language         of profiles, prompts and rules: `zh` or `en`
    prompts_dir      folder with prompt files of one's own; None: ours
    prompt_length    of ours in training: `full`, or `short` for tiny policies
    seed             of the profiles; a seed and a version give the same ones, byte for byte
    train_profiles   training profiles to learn from (the paper has 3,000)
    val_profiles     further training profiles, held out
    test_profiles    evaluation profiles (the paper has 500)
    test_file        a file of evaluation profiles, all of which are used; empty: they are made
    composition      of these: `sampled`, or `paper_exact`, which meets Table 7's counts
    stories          `offline`: an evaluation profile without a story gets one out of templates;
                     `none`
    max_agent_turns  turns of the agent until the call ends (the paper has 15)
    score_step       what scores are multiples of, at the start of a call and in the records of
                     rule-based customers; a tiny policy learns a coarse table of sums
    conversations    conversations an evaluation has with each profile (the paper has 3)
    """

    language: Language
    prompts_dir: str | None
    prompt_length: Length
    seed: int
    train_profiles: int
    val_profiles: int
    test_profiles: int
    composition: Composition
    stories: Stories
    max_agent_turns: int
    score_step: float
    conversations: int
    test_file: str


class TeleSales:
    """The domain, built once a run; profiles are made when a split is first asked for.

    Raises UserError for settings, prompts or a file of profiles that cannot be used.
    """

    def __init__(self, settings: TelesalesSettings) -> None:
        _check(settings)
        self.name: str = "telesales"
        self.roles: tuple[Role, ...] = ROLES
        self.settings = settings
        folder = None if settings.prompts_dir is None else Path(settings.prompts_dir)
        self.prompts = Prompts(settings.language, folder, length=settings.prompt_length)
        if settings.test_file:  # a file that cannot be used is told before anything is learned
            _ = self.evaluation_set

    @property
    def families(self) -> Mapping[Role, Sequence[str]]:
        """Sellers for one seat, customers for the other."""
        return {SALES: tuple(SELLERS), CUSTOMER: tuple(FAMILIES)}

    @property
    def interchangeable(self) -> bool:
        """A seller is no customer."""
        return False

    @property
    def measured(self) -> Sequence[Measure]:
        """What tables hold."""
        return measured(self.settings.conversations)

    @property
    def deed(self) -> tuple[str, str]:
        """What a success is called."""
        return "succeeds", "succeed"

    @property
    def remark(self) -> str:
        """What numbers of rule-based customers and judges are."""
        return STAND_IN

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """`train` and `val` are made of training profiles, `test` of evaluation profiles."""
        first = self.settings.train_profiles
        if split == "train":
            return self._training[:first]
        if split == "val":
            return self._training[first:]
        if split == "test":
            return self._evaluation
        raise UserError(f"There is no split {split!r}; the splits are {', '.join(SPLITS)}.")

    def prompt(self, scenario: Scenario, role: Role) -> str:
        """The system prompt of training: a role's rules, then its own observation."""
        if role == SALES:
            return self.prompts.sales(lead_of(scenario))
        observation = scenario.private[CUSTOMER]
        return self.prompts.customer(
            observation, call_state(observation, (), self.settings.language)
        )

    def beside(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        """The customer: where its own records have left the state, anew each turn as in Table 16.

        The agent is told nothing but what was said.
        """
        if role == SALES:
            return ""
        state = call_state(scenario.private[CUSTOMER], turns, self.settings.language)
        return f"\n{self.prompts.customer_turn(state)}"

    def brief(self, scenario: Scenario, role: Role) -> str:
        """The call in words, from a role's seat, and lines that are legal in it."""
        return person.brief(scenario, role, self.settings.max_agent_turns)

    def adapter(self, name: str, role: Role) -> Adapter:
        """A form of its own for a role: `record`, `simulator`, `seller`; UserError for others."""
        of_role = [n for n, (speaker, _) in ADAPTERS.items() if speaker == role]
        if name not in of_role:
            raise UserError(f"{role} has no form {name!r}; it has {', '.join(of_role)}.")
        return ADAPTERS[name][1](self.prompts)

    def referee(self, scenario: Scenario, first: Role) -> TelesalesReferee:
        """A fresh referee; whoever `first` is, the customer has picked up and the agent speaks."""
        if first not in ROLES:
            raise ValueError(f"{first!r} is no seat of TeleSales; the seats are {ROLES}")
        return TelesalesReferee(scenario, max_agent_turns=self.settings.max_agent_turns)

    def scripted(
        self, family: str, scenario: Scenario, role: Role, rng: np.random.Generator
    ) -> ScriptedPlayer:
        """A rule-based customer or seller; raises UserError for a family that the role lacks."""
        families = self.families[role]
        if family not in families:
            raise UserError(
                f"There is no scripted family {family!r} for {role} in TeleSales; the families are "
                f"{', '.join(families)}."
            )
        if role == SALES:
            return seller(family, scenario, rng)
        return customer(family, scenario, rng, score_step=self.settings.score_step)

    def exact(self, turn: Turn) -> bool:
        """All: an agent's are facts and phone numbers, a customer's are scores that must add up."""
        return True

    def told(self, outcome: Outcome) -> str:
        """How it ended, and what it did to the customer's scores."""
        return person.told(outcome)

    def refusal(self, turn: Turn) -> str:
        """By its role's error codes."""
        return REFUSALS[turn.role][str(turn.error_code)]

    def reward(self, outcome: Outcome, role: Role) -> float:
        """What the outcome alone is worth, without a look at the turns.

        The agent: 1 for a confirmed add, .4 for a yes that came to nothing, else 0. The customer:
        1 unless it ended the call by a turn that is none, whatever became of the contact.

        Raises ValueError for an aborted call, which has no result to pay for.
        """
        if outcome.end_reason == EndReason.ABORTED:
            raise ValueError("an aborted call has no reward; it counts as failed")
        if role == CUSTOMER:
            return 0.0 if outcome.offender == CUSTOMER else 1.0
        if outcome.success:
            return CONFIRMED
        if outcome.offender == SALES or not outcome.facts["verbal_yes"]:
            return 0.0
        return VERBAL_ONLY

    def measures(self, scenario: Scenario, outcome: Outcome, role: Role) -> dict[str, float] | None:
        """Success (0 or 1) and what the call added to the scores; None if aborted."""
        del role
        result = Result.of(scenario, outcome)
        if not result.scored:
            return None
        return {
            "success": float(result.success),
            "delta_willingness": result.delta_willingness,
            "delta_patience": result.delta_patience,
        }

    def tabulate(
        self, results: Sequence[tuple[Scenario, Outcome, Role]], planned: int
    ) -> dict[str, Any]:
        """The metrics of `metrics.summarise`, under the names that tables use."""
        found = summarise(
            (Result.of(scenario, outcome) for scenario, outcome, _ in results),
            conversations=self.settings.conversations,
            asked=planned,
        )
        return {
            "n": found.scored,
            "planned": found.asked,
            "coverage": found.coverage,
            "profiles": found.profiles,
            "profiles_planned": found.profiles_planned,
            "success": found.success,
            **{f"success@{n}": share for n, share in found.success_at.items()},
            "bounds": {f"success@{n}": list(b) for n, b in found.success_at_bounds.items()},
            "verbal_yes": found.verbal_yes,
            "delta_willingness": found.delta_willingness,
            "delta_trust": found.delta_trust,
            "delta_patience": found.delta_patience,
            "hallucination": found.hallucination,
            "invention": found.invention,
            "audited": found.audited,
            "fabrication": found.fabrication,
            "leak": found.leak,
            "labelled": found.labelled,
            "label_agreement": found.label_agreement,
            "labels_checked": found.labels_checked,
            "findings_dropped": found.dropped,
            "checks_unanswered": dict(found.unanswered),
            "instructing": found.instructing_a_call,
            "instructing_turns": dict(found.instructing),
            "instructing_calls": found.instructing_calls,
            "instructing_known": found.instructing_known,
            "agent_turns": found.agent_turns,
            "tool_calls": found.calls,
            "end_reasons": dict(found.end_reasons),
            "format_failures": _failures(results),
            "flags": dict(found.flags),
        }

    @cached_property
    def _training(self) -> Sequence[Scenario]:
        count = self.settings.train_profiles + self.settings.val_profiles
        profiles = training_profiles(self.settings.seed, count, self.settings.language)
        return [self._scenario(profile) for profile in profiles]

    @cached_property
    def _evaluation(self) -> Sequence[Scenario]:
        profiles = self.evaluation_set
        if self.settings.stories == "offline":
            profiles = [
                profile
                if profile.story is not None
                else with_story(profile, compile_offline(profile, self.settings.seed))
                for profile in profiles
            ]
        return [self._scenario(profile) for profile in profiles]

    def _scenario(self, profile: Profile) -> Scenario:
        start = on_grid(profile.initial_state, self.settings.score_step)
        return make_scenario(profile.model_copy(update={"initial_state": start}))

    @cached_property
    def evaluation_set(self) -> Sequence[EvaluationProfile]:
        """The profiles of `test`, made (with this config's turn limit) or as the file has them.

        Raises UserError for a file that cannot be used.
        """
        settings = self.settings
        if not settings.test_file:
            made = evaluation_profiles(
                settings.seed, settings.test_profiles, settings.composition, settings.language
            )
            return [_limited(profile, settings.max_agent_turns) for profile in made]
        profiles = read_profiles(Path(settings.test_file), EvaluationProfile)
        for profile in profiles:
            if profile.language != settings.language:
                raise UserError(
                    f"{settings.test_file}: profile {profile.id!r} is in {profile.language!r}, and "
                    f"config.telesales.language is {settings.language!r}."
                )
            limit = profile.case_control.max_agent_turns
            if limit != settings.max_agent_turns:
                raise UserError(
                    f"{settings.test_file}: profile {profile.id!r} has case_control."
                    f"max_agent_turns = {limit}, and config.telesales.max_agent_turns is "
                    f"{settings.max_agent_turns}; set that to {limit}, or the profile to it."
                )
        return profiles


def _limited(profile: EvaluationProfile, turns: int) -> EvaluationProfile:
    control = profile.case_control.model_copy(update={"max_agent_turns": turns})
    return profile.model_copy(update={"case_control": control})


def _failures(results: Sequence[tuple[Scenario, Outcome, Role]]) -> dict[str, dict[str, int]]:
    """Malformed endings by code, one's own and the counterpart's."""
    found: dict[str, Counter[str]] = {"own": Counter(), "counterpart": Counter()}
    for _, outcome, role in results:
        if outcome.offender is not None:
            side = "own" if outcome.offender == role else "counterpart"
            found[side][outcome.facts.get("error_code") or "unknown"] += 1
    return {side: dict(sorted(codes.items())) for side, codes in found.items()}


def _check(settings: TelesalesSettings) -> None:
    for field, value, legal in (
        ("language", settings.language, LANGUAGES),
        ("composition", settings.composition, ("sampled", "paper_exact")),
        ("stories", settings.stories, ("offline", "none")),
        ("prompt_length", settings.prompt_length, ("full", "short")),
    ):
        if value not in legal:
            raise UserError(
                f"config.telesales.{field} is {value!r}; it must be one of {', '.join(legal)}."
            )
    for field in (
        *("train_profiles", "val_profiles", "test_profiles"),
        *("max_agent_turns", "conversations"),
    ):
        if getattr(settings, field) < 1:
            raise UserError(
                f"config.telesales.{field} is {getattr(settings, field)}; it must be 1 or more."
            )
