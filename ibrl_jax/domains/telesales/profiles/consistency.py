"""What has to agree within a profile, checked on one that is finished.

Generated profiles agree by construction; a user's own are held to the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from ibrl_jax.domains.telesales.profiles import terms as t
from ibrl_jax.domains.telesales.profiles.pools import find_city, load_pool, remote_type
from ibrl_jax.domains.telesales.profiles.schema import (
    Concerns,
    EvaluationAttributes,
    EvaluationProfile,
    Profile,
    TrainingAttributes,
    TrainingProfile,
    lead_record,
)
from ibrl_jax.domains.telesales.profiles.scoring import difficulty
from ibrl_jax.domains.telesales.profiles.training import adjusted

SOON = (t.Timeline.WEEK, t.Timeline.MONTH)


def problems(profile: Profile) -> tuple[str, ...]:
    """What does not agree, a clause each; empty where everything does."""
    if isinstance(profile, TrainingProfile):
        found = [*_common(profile), *_training(profile, profile.user_profile)]
    else:
        found = [*_common(profile), *_evaluation(profile, profile.user_profile)]
    # a profile of unknown places or of uneven lists cannot be scored
    return tuple(found) or tuple(_difficulty(profile))


def _common(profile: Profile) -> Iterator[str]:
    user, lead = profile.user_profile, lead_record(profile)
    training = isinstance(user, TrainingAttributes)
    city = user.identity.city if training else user.location_context.city
    intent = user.purchase_intent.intent_depth if training else user.intent_state.intent_depth
    for place in (city, lead.car_city):
        if find_city(place) is None:
            known = load_pool(profile.kind).cities
            examples = ", ".join(entry[profile.language] for entry in known[:3])
            yield f"the city {place!r} is unknown; the pools hold {examples} and others"
    if intent is t.IntentDepth.URGENT and lead.purchase_timeline not in SOON:
        yield "an urgent purchase is not due within a month"
    if intent is t.IntentDepth.ACCIDENTAL and lead.purchase_timeline is not t.Timeline.NONE:
        yield "an accidental lead has a time of purchase"
    price, budget = lead.vehicle.price, lead.budget_range
    if price is not None and price not in budget:
        yield f"the budget {budget.low} to {budget.high} does not hold the price {price}"


def _training(profile: TrainingProfile, user: TrainingAttributes) -> Iterator[str]:
    control, intent = user.willingness_control, user.purchase_intent
    expected = adjusted(control.initial_willingness, control.time_modifier, control.env_modifier)
    if abs(control.adjusted_willingness - expected) > 1e-6:
        yield (
            f"adjusted_willingness is {control.adjusted_willingness}, but the initial one and "
            f"its modifiers make {expected}"
        )
    if profile.initial_state.willingness != control.adjusted_willingness:
        yield "initial_state.willingness is not the adjusted willingness"
    if intent.budget not in profile.agent_info.lead.budget_range:
        yield f"the registered range does not hold the budget {intent.budget}"
    if len(set(user.persona.concerns)) != len(user.persona.concerns):
        yield "a concern stands twice"


def _evaluation(profile: EvaluationProfile, user: EvaluationAttributes) -> Iterator[str]:
    basic, place, needs = user.basic_profile, user.location_context, user.car_needs
    lead, contact, intent = user.lead_context, user.contact_info, user.intent_state.intent_depth
    if find_city(place.city) and find_city(needs.car_city):
        apart = remote_type(place.city, needs.car_city)
        if apart is not place.remote_type:
            yield (
                f"{place.city} and {needs.car_city} are {apart.word('en')}, "
                f"not {place.remote_type.word('en')}"
            )
    memory = lead.lead_memory_state
    if intent is t.IntentDepth.URGENT and memory is not t.Memory.CLEAR:
        yield "a customer with an urgent purchase does not remember the lead"
    if intent is t.IntentDepth.ACCIDENTAL and memory is t.Memory.CLEAR:
        yield "an accidental lead is remembered clearly"
    if memory is not t.Memory.CLEAR and needs.car_city_memory_state is t.Memory.CLEAR:
        yield "the car's city is remembered better than the lead"
    first = basic.purchase_experience is t.Experience.FIRST
    if first != (basic.previous_car_type is None):
        yield "previous_car_type goes with every purchase but the first"
    if contact.phone_can_add_wechat != (contact.alternate_wechat_contact is None):
        yield "an alternate contact goes with a number that cannot be added, and only with it"
    if contact.alternate_wechat_contact == contact.phone_number:
        yield "the alternate contact is the number that cannot be added"
    yield from _concerns(user.concerns)
    objections = user.concerns.objections
    if t.Category.BATTERY in objections and needs.target_car_type not in t.WITH_BATTERY:
        yield "a car without a traction battery has a concern about it"
    if t.Category.REMOTE in objections and place.remote_type is t.Remote.SAME_CITY:
        yield "a car in the same city has a concern about another city"


def _concerns(concerns: Concerns) -> Iterator[str]:
    count = len(concerns.objections)
    if len(set(concerns.objections)) != count:
        yield "an objection stands twice"
    if {len(concerns.objection_details), len(concerns.objection_intensities)} != {count}:
        yield f"{count} objections need {count} details and {count} intensities"
    if set(concerns.category_details) != set(concerns.objections):
        yield "category_details are not those of the objections"
    if len(concerns.confusion_points) != len(concerns.confusion_intensities):
        yield "each confusion point needs an intensity"


def _difficulty(profile: Profile) -> Iterator[str]:
    score, level = difficulty(profile)
    if isinstance(profile, TrainingProfile):
        stated = profile.user_profile.willingness_control.difficulty
    else:
        stated = profile.case_control.difficulty
        if abs(profile.case_control.difficulty_score - score) > 0.01:
            yield f"difficulty_score is {profile.case_control.difficulty_score}, not {score}"
    if stated is not level:
        yield f"difficulty is {stated}, but a score of {score} is {level}"
