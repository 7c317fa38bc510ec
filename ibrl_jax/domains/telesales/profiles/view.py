"""One view of the customer, whichever kind the profile is: what rules need to play or score one.

Where a training profile has no such attribute, the value follows from those that it has; the
comments say how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.pools import find_situation, load_pool, remote_type
from ibrl_jax.domains.telesales.profiles.schema import (
    EvaluationAttributes,
    Profile,
    State,
    TrainingAgentInfo,
    TrainingAttributes,
)
from ibrl_jax.domains.telesales.profiles.terms import (
    Category,
    Environment,
    IntentDepth,
    Memory,
    Personality,
    PrimaryAccount,
    PrivacySensitivity,
    Remote,
    Signal,
    WechatPrivacy,
)

TRAINING_INTENSITY = 0.6
"""How strong each concern of a training profile is, for which Table 5 has no attribute."""


@dataclass(frozen=True, kw_only=True)
class Channels:
    """By which calls of the agent's tools the customer can be reached.

    `numbers` are those that `add_business_contact` works with, `invitation` says whether an
    invitation by SMS to the registered number does.
    """

    registered: str
    numbers: tuple[str, ...]
    invitation: bool

    @property
    def reachable(self) -> bool:
        """The registered number itself can be added: Table 7's contact-reachable."""
        return self.registered in self.numbers


@dataclass(frozen=True, kw_only=True)
class CustomerView:
    """The customer's side; `intensities[i]` is that of `concerns[i]`, all scores in [0, 1]."""

    id: str
    language: Language
    name: str
    city: str
    target_car: str
    budget: int  # yuan, the most that the customer would pay
    intent: IntentDepth
    personality: Personality
    privacy: PrivacySensitivity
    remote: Remote
    memory: Memory
    signal: Signal
    busy: bool
    concerns: tuple[Category, ...]
    intensities: tuple[float, ...]
    questions: Mapping[Category, str]
    channels: Channels
    initial: State


def view(profile: Profile) -> CustomerView:
    """The customer of a profile."""
    user = profile.user_profile
    if isinstance(user, TrainingAttributes):
        return _training(profile, user)
    return _evaluation(profile, user)


def channels(profile: Profile) -> Channels:
    """By which tool calls the customer can be reached."""
    return view(profile).channels


def _training(profile: Profile, user: TrainingAttributes) -> CustomerView:
    agent, contact = profile.agent_info, user.contact_channels
    assert isinstance(agent, TrainingAgentInfo)
    intent, hidden = user.purchase_intent, contact.wechat_privacy is WechatPrivacy.HIDDEN
    here = contact.primary_account is PrimaryAccount.THIS_PHONE
    asked = load_pool("training").objections
    return CustomerView(
        id=profile.id,
        language=profile.language,
        name=user.identity.name,
        city=user.identity.city,
        target_car=intent.target_model,
        budget=intent.budget,
        intent=intent.intent_depth,
        personality=user.persona.personality_traits,
        # an account that cannot be found by number stands for high sensitivity
        privacy=PrivacySensitivity.HIGH if hidden else PrivacySensitivity.MEDIUM,
        remote=remote_type(user.identity.city, agent.car_city),
        memory={IntentDepth.ACCIDENTAL: Memory.NONE, IntentDepth.BROWSING: Memory.VAGUE}.get(
            intent.intent_depth, Memory.CLEAR
        ),
        signal=user.call_context.signal_quality,
        busy=user.call_context.environment in (Environment.DRIVING, Environment.MEETING),
        concerns=user.persona.concerns,
        intensities=(TRAINING_INTENSITY,) * len(user.persona.concerns),
        questions={c: asked[c].questions[0][profile.language] for c in user.persona.concerns},
        channels=Channels(
            registered=contact.phone_number,
            # a number finds the account only if it is searchable and bound to this phone
            numbers=(contact.phone_number,) if here and not hidden else (),
            invitation=True,  # a link in an SMS opens in whichever account is in use
        ),
        initial=profile.initial_state,
    )


def _evaluation(profile: Profile, user: EvaluationAttributes) -> CustomerView:
    needs, contact, concerns = user.car_needs, user.contact_info, user.concerns
    situation = find_situation(user.basic_profile.current_situation)
    alternate = contact.alternate_wechat_contact
    usable = contact.phone_number if contact.phone_can_add_wechat else alternate
    return CustomerView(
        id=profile.id,
        language=profile.language,
        name=user.basic_profile.name,
        city=user.location_context.city,
        target_car=needs.target_car,
        budget=needs.budget_range.high,
        intent=user.intent_state.intent_depth,
        personality=user.intent_state.personality,
        privacy=user.intent_state.privacy_sensitivity,
        remote=user.location_context.remote_type,
        memory=user.lead_context.lead_memory_state,
        signal=user.speech_profile.signal_quality,
        busy=situation is not None and situation.busy,
        concerns=concerns.objections,
        intensities=concerns.objection_intensities,
        questions=concerns.category_details,
        channels=Channels(
            registered=contact.phone_number,
            numbers=() if usable is None else (usable,),
            invitation=contact.phone_can_add_wechat,  # it goes to the registered number
        ),
        initial=profile.initial_state,
    )
