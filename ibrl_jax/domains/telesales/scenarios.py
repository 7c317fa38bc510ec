"""A profile as a scenario: what is public, and what each side may know.

The agent observes the lead record. The customer observes the user's own attributes, the scores at
the start and, where one was compiled, the story; never what is registered about the car. Case
control and the way in which a profile came about are in no observation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ibrl_jax.domains.base import Scenario
from ibrl_jax.domains.telesales.labels import LANGUAGES, Language
from ibrl_jax.domains.telesales.profiles.schema import (
    AgentInfo,
    EvaluationAttributes,
    EvaluationProfile,
    LeadRecord,
    Profile,
    RegisteredLead,
    State,
    Story,
    TrainingAgentInfo,
    TrainingAttributes,
    TrainingProfile,
    lead_record,
)
from ibrl_jax.domains.telesales.profiles.view import CustomerView, view

SALES, CUSTOMER = ROLES = ("sales", "customer")

Observation = Mapping[str, Any]
"""What the customer's side of a scenario holds; JSON-able."""


def make_scenario(profile: Profile) -> Scenario:
    """The scenario of a profile; the profile is the unit of the statistics."""
    story = getattr(profile, "story", None)
    return Scenario(
        id=profile.id,
        cluster=profile.id,
        public={"language": profile.language},
        private={
            SALES: lead_record(profile).model_dump(mode="json"),
            CUSTOMER: {
                "kind": profile.kind,
                "language": profile.language,
                "user_profile": profile.user_profile.model_dump(mode="json"),
                "initial_state": profile.initial_state.model_dump(mode="json"),
                "story": None if story is None else story.model_dump(mode="json"),
            },
        },
    )


def lead_of(scenario: Scenario) -> LeadRecord:
    """All that the agent knows."""
    return LeadRecord.model_validate(scenario.private[SALES])


def language_of(scenario: Scenario) -> Language:
    """The language of the call."""
    language = scenario.public["language"]
    if language not in LANGUAGES:
        raise ValueError(f"{language!r} is no language of TeleSales; these are {LANGUAGES}")
    return language


def attributes_of(observation: Observation) -> TrainingAttributes | EvaluationAttributes:
    """The customer's own attributes, of either schema."""
    kinds = {"training": TrainingAttributes, "evaluation": EvaluationAttributes}
    return kinds[observation["kind"]].model_validate(observation["user_profile"])


def initial_of(observation: Observation) -> State:
    """The scores at the start of the call."""
    return State.model_validate(observation["initial_state"])


def story_of(observation: Observation) -> Story | None:
    """The persona that was compiled for the simulator, if one was."""
    story = observation["story"]
    return None if story is None else Story.model_validate(story)


def view_of(scenario: Scenario) -> CustomerView:
    """The customer as rules see it, from both sides of the scenario: for referees and scripts."""
    lead, observation = lead_of(scenario), scenario.private[CUSTOMER]
    user = attributes_of(observation)
    common: dict[str, Any] = {
        "id": scenario.id,
        "language": language_of(scenario),
        "user_profile": user,
        "initial_state": initial_of(observation),
    }
    # Neither case control nor the way in which the profile came about is known here, or looked at.
    if isinstance(user, TrainingAttributes):
        registered = RegisteredLead(
            budget_range=lead.budget_range, purchase_timeline=lead.purchase_timeline
        )
        agent = TrainingAgentInfo(
            service=lead.service, car_city=lead.car_city, lead=registered, vehicle=lead.vehicle
        )
        return view(TrainingProfile.model_construct(**common, agent_info=agent))
    agent = AgentInfo(service=lead.service, vehicle=lead.vehicle)
    return view(EvaluationProfile.model_construct(**common, agent_info=agent))
