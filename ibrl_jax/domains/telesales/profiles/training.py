"""One training profile from its draws: 28 attributes that agree with each other (Table 5)."""

from __future__ import annotations

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles import agent_side
from ibrl_jax.domains.telesales.profiles import terms as t
from ibrl_jax.domains.telesales.profiles.draws import Draws
from ibrl_jax.domains.telesales.profiles.pools import Car, Pool, load_pool
from ibrl_jax.domains.telesales.profiles.schema import (
    CallContext,
    ContactChannels,
    GenerationMeta,
    Identity,
    Persona,
    PurchaseIntent,
    RegisteredLead,
    TrainingAgentInfo,
    TrainingAttributes,
    TrainingProfile,
    WillingnessControl,
)
from ibrl_jax.domains.telesales.profiles.scoring import difficulty_score, initial_scores, level
from ibrl_jax.domains.telesales.profiles.view import view

_INTENTS = {
    t.IntentDepth.URGENT: 0.2,
    t.IntentDepth.INTERESTED: 0.3,
    t.IntentDepth.BROWSING: 0.3,
    t.IntentDepth.ACCIDENTAL: 0.2,
}
_TIMELINES = {
    t.IntentDepth.URGENT: (t.Timeline.WEEK, t.Timeline.MONTH),
    t.IntentDepth.INTERESTED: (t.Timeline.MONTH, t.Timeline.QUARTER),
    t.IntentDepth.BROWSING: (t.Timeline.QUARTER, t.Timeline.HALF_YEAR, t.Timeline.NONE),
    t.IntentDepth.ACCIDENTAL: (t.Timeline.NONE,),
}
_MEMORY = {
    t.IntentDepth.URGENT: t.Memory.CLEAR,
    t.IntentDepth.INTERESTED: t.Memory.CLEAR,
    t.IntentDepth.BROWSING: t.Memory.VAGUE,
    t.IntentDepth.ACCIDENTAL: t.Memory.NONE,
}
TIME_MODIFIER = {
    t.CallTime.MORNING: 0.0,
    t.CallTime.NOON: -0.03,
    t.CallTime.AFTERNOON: 0.01,
    t.CallTime.EVENING: -0.02,
}
"""What the time of the call does to willingness."""

ENVIRONMENT_MODIFIER = {
    t.Environment.HOME: 0.02,
    t.Environment.OFFICE: -0.01,
    t.Environment.DRIVING: -0.06,
    t.Environment.STREET: -0.03,
    t.Environment.MEETING: -0.08,
}
"""What the place of the call does to willingness."""


def adjusted(initial: float, time_modifier: float, env_modifier: float) -> float:
    """Willingness at the pick-up: the initial one with both modifiers, within [0, 1]."""
    return round(min(max(initial + time_modifier + env_modifier, 0.0), 1.0), 2)


def draw_profile(draws: Draws, meta: GenerationMeta, language: Language) -> TrainingProfile:
    """The profile, scored."""
    pool = load_pool("training")
    intent = draws.weighted(_INTENTS)
    personality = draws.pick(tuple(t.Personality))
    home, elsewhere = draws.sample(pool.cities, 2)
    away = home if draws.chance(0.6) else elsewhere
    car = draws.pick(pool.cars)
    price = agent_side.draw_price(draws, car)
    registered = agent_side.draw_range(draws, price)
    contact = _contact(draws)
    context = CallContext(
        call_time=draws.pick(tuple(t.CallTime)),
        environment=draws.weighted(
            {
                t.Environment.HOME: 0.35,
                t.Environment.OFFICE: 0.25,
                t.Environment.STREET: 0.2,
                t.Environment.DRIVING: 0.1,
                t.Environment.MEETING: 0.1,
            }
        ),
        signal_quality=draws.weighted(
            {t.Signal.CLEAR: 0.6, t.Signal.MEDIOCRE: 0.3, t.Signal.POOR: 0.1}
        ),
    )
    hidden = contact.wechat_privacy is t.WechatPrivacy.HIDDEN
    state = initial_scores(
        intent=intent,
        personality=personality,
        memory=_MEMORY[intent],
        privacy=t.PrivacySensitivity.HIGH if hidden else t.PrivacySensitivity.MEDIUM,
        busy=context.environment in (t.Environment.DRIVING, t.Environment.MEETING),
        noise=(draws.normal(), draws.normal(), draws.normal()),
    )
    modifiers = (TIME_MODIFIER[context.call_time], ENVIRONMENT_MODIFIER[context.environment])
    control = WillingnessControl(
        initial_willingness=state.willingness,
        adjusted_willingness=adjusted(state.willingness, *modifiers),
        time_modifier=modifiers[0],
        env_modifier=modifiers[1],
        difficulty=t.Difficulty.EASY,  # until the profile is there to be scored
    )
    identity, household = _identity(draws, pool, home[language], language)
    uses = [s for s in pool.scenarios if s.household in (None, household)]
    user = TrainingAttributes(
        identity=identity,
        contact_channels=contact,
        purchase_intent=PurchaseIntent(
            target_model=car[language],
            budget=draws.integer(max(registered.low, price - 10_000), registered.high, 1000),
            usage_scenario=draws.pick(uses)[language],
            stated_demands=tuple(
                demand[language] for demand in draws.sample(pool.demands, draws.integer(1, 3))
            ),
            intent_depth=intent,
            intent_description=draws.pick(pool.intents[intent])[language],
        ),
        persona=Persona(
            personality_traits=personality,
            concerns=_concerns(draws, car, remote=home != away, hidden=hidden),
            speaking_style=draws.pick(pool.speaking_styles)[language],
            attitude_description=draws.pick(pool.attitudes[personality])[language],
        ),
        call_context=context,
        willingness_control=control,
    )
    profile = TrainingProfile(
        kind="training",
        id=f"training-{meta.seed}-{meta.index:04d}",
        language=language,
        user_profile=user,
        agent_info=TrainingAgentInfo(
            service=agent_side.draw_service(draws, pool, language),
            car_city=away[language],
            lead=RegisteredLead(
                budget_range=registered, purchase_timeline=draws.pick(_TIMELINES[intent])
            ),
            vehicle=agent_side.draw_vehicle(draws, car, price),
        ),
        initial_state=state.model_copy(update={"willingness": control.adjusted_willingness}),
        meta=meta,
    )
    found = level(difficulty_score(view(profile)))
    control = control.model_copy(update={"difficulty": found})
    user = user.model_copy(update={"willingness_control": control})
    return profile.model_copy(update={"user_profile": user})


def _identity(draws: Draws, pool: Pool, city: str, language: Language) -> tuple[Identity, str]:
    """The person and who lives in the household."""
    surname, given = draws.pick(pool.surnames), draws.pick(pool.given_names)
    job = draws.pick(pool.occupations)
    age = draws.integer(max(job.youngest, 22), job.oldest)
    allowed = ("alone", "couple") if age < 26 else ("couple", "elders") if age > 48 else None
    family = draws.pick([f for f in pool.families if allowed is None or f.household in allowed])
    identity = Identity(
        name=surname.zh + given.zh if language == "zh" else f"{surname.en} {given.en}",
        age=age,
        occupation=job[language],
        city=city,
        family_situation=family[language],
        background=draws.pick(pool.backgrounds)[language],
    )
    return identity, family.household


def _contact(draws: Draws) -> ContactChannels:
    letters = "abcdefghijkmnpqrstuvwxyz23456789"
    return ContactChannels(
        phone_number=agent_side.draw_phone(draws),
        wechat_id="wx_" + "".join(draws.pick(letters) for _ in range(8)),
        wechat_privacy=draws.weighted(
            {t.WechatPrivacy.SEARCHABLE: 0.85, t.WechatPrivacy.HIDDEN: 0.15}
        ),
        primary_account=draws.weighted(
            {t.PrimaryAccount.THIS_PHONE: 0.9, t.PrimaryAccount.OTHER_PHONE: 0.1}
        ),
    )


def _concerns(draws: Draws, car: Car, *, remote: bool, hidden: bool) -> tuple[t.Category, ...]:
    eligible = [
        category
        for category in t.Category
        if (category is not t.Category.BATTERY or car.type in t.WITH_BATTERY)
        and (category is not t.Category.REMOTE or remote)
        and (category is not t.Category.PRIVACY or hidden)
    ]
    return draws.sample(eligible, draws.integer(2, 3))
