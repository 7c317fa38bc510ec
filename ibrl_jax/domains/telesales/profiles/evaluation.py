"""One evaluation profile from its draws: fields from the pools, made to agree with each other.

What agrees with what: age with family and occupation; family with the car's uses; intent with
timeline, lead and memory; cities with the remote type; budget with price; concerns with car and
distance; experience with the previous car; channels with reachability. `consistency.problems` says
the same as a check.
"""

from __future__ import annotations

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles import agent_side
from ibrl_jax.domains.telesales.profiles import terms as t
from ibrl_jax.domains.telesales.profiles.composition import Cell
from ibrl_jax.domains.telesales.profiles.draws import Draws
from ibrl_jax.domains.telesales.profiles.pools import Car, City, Household, Pool, load_pool
from ibrl_jax.domains.telesales.profiles.schema import (
    MAX_AGENT_TURNS,
    AgentInfo,
    BasicProfile,
    CarNeeds,
    CaseControl,
    Concerns,
    ContactInfo,
    EvaluationAttributes,
    EvaluationProfile,
    GenerationMeta,
    IntentState,
    LeadContext,
    LocationContext,
    Money,
    SpeechProfile,
)
from ibrl_jax.domains.telesales.profiles.scoring import (
    difficulty_score,
    hard_factors,
    initial_scores,
    level,
)
from ibrl_jax.domains.telesales.profiles.view import view

_AGES = {
    t.AgeRange.UNDER_25: 0.12,
    t.AgeRange.FROM_25: 0.26,
    t.AgeRange.FROM_31: 0.27,
    t.AgeRange.FROM_36: 0.23,
    t.AgeRange.FROM_46: 0.12,
}
_HOUSEHOLDS: dict[t.AgeRange, tuple[Household, ...]] = {
    t.AgeRange.UNDER_25: ("alone", "couple"),
    t.AgeRange.FROM_46: ("couple", "elders"),
}
_TIMELINES = {
    t.IntentDepth.URGENT: {t.Timeline.WEEK: 0.5, t.Timeline.MONTH: 0.5},
    t.IntentDepth.INTERESTED: {t.Timeline.MONTH: 0.4, t.Timeline.QUARTER: 0.6},
    t.IntentDepth.BROWSING: {
        t.Timeline.QUARTER: 0.2,
        t.Timeline.HALF_YEAR: 0.5,
        t.Timeline.NONE: 0.3,
    },
    t.IntentDepth.ACCIDENTAL: {t.Timeline.NONE: 1.0},
}
_MEMORIES = {
    t.IntentDepth.URGENT: {t.Memory.CLEAR: 1.0},
    t.IntentDepth.INTERESTED: {t.Memory.CLEAR: 0.6, t.Memory.VAGUE: 0.4},
    t.IntentDepth.BROWSING: {t.Memory.CLEAR: 0.25, t.Memory.VAGUE: 0.5, t.Memory.NONE: 0.25},
    t.IntentDepth.ACCIDENTAL: {t.Memory.VAGUE: 0.35, t.Memory.NONE: 0.65},
}
_LEADS = (
    t.LeadStatus.PRICE_ENQUIRY,
    t.LeadStatus.TRADE_IN,
    t.LeadStatus.VIEWING,
    t.LeadStatus.FAVOURITE,
)
_RECENCIES = {
    t.Memory.CLEAR: (t.Recency.TODAY, t.Recency.THIS_WEEK, t.Recency.TWO_WEEKS),
    t.Memory.VAGUE: (t.Recency.THIS_WEEK, t.Recency.TWO_WEEKS, t.Recency.MONTH),
    t.Memory.NONE: (t.Recency.TWO_WEEKS, t.Recency.MONTH, t.Recency.LONGER),
}
_PRIVACY = {  # low, medium, high
    t.IntentDepth.URGENT: (0.4, 0.45, 0.15),
    t.IntentDepth.INTERESTED: (0.35, 0.45, 0.2),
    t.IntentDepth.BROWSING: (0.3, 0.45, 0.25),
    t.IntentDepth.ACCIDENTAL: (0.2, 0.45, 0.35),
}
_INTENSITY_SHIFT = {
    t.Personality.SKEPTICAL: 0.08,
    t.Personality.IMPATIENT: 0.05,
    t.Personality.FRIENDLY: -0.1,
}


def draw_profile(
    draws: Draws, cell: Cell, meta: GenerationMeta, language: Language
) -> EvaluationProfile:
    """The profile, scored; its story is not compiled yet."""
    pool = load_pool("evaluation")
    home, away = _cities(draws, pool, cell.remote)
    car = draws.pick(pool.cars)
    price = agent_side.draw_price(draws, car)
    lead = _lead(draws, cell)
    basic, household = _basic(draws, pool, lead, language)
    privacy = draws.weighted(dict(zip(t.PrivacySensitivity, _PRIVACY[cell.intent], strict=True)))
    situation = draws.pick(pool.situations)
    user = EvaluationAttributes(
        basic_profile=basic.model_copy(update={"current_situation": situation[language]}),
        location_context=LocationContext(
            city=home[language], city_tier=home.tier, remote_type=cell.remote
        ),
        car_needs=_needs(draws, pool, cell, lead, car, price, away, household, language),
        intent_state=IntentState(
            intent_depth=cell.intent, privacy_sensitivity=privacy, personality=cell.personality
        ),
        lead_context=lead,
        concerns=_concerns(draws, pool, cell, car, privacy, language),
        contact_info=_contact(draws, cell.reachable),
        speech_profile=_speech(draws, pool, language),
    )
    state = initial_scores(
        intent=cell.intent,
        personality=cell.personality,
        memory=lead.lead_memory_state,
        privacy=privacy,
        busy=situation.busy,
        noise=(draws.normal(), draws.normal(), draws.normal()),
    )
    exact = "exact-" if meta.composition == "paper_exact" else ""
    profile = EvaluationProfile(
        kind="evaluation",
        id=f"evaluation-{exact}{meta.seed}-{meta.index:04d}",
        language=language,
        case_control=CaseControl(
            max_agent_turns=MAX_AGENT_TURNS,
            difficulty=t.Difficulty.EASY,  # until the profile is there to be scored
            difficulty_score=0,
            hard_factors=(),
        ),
        user_profile=user,
        agent_info=AgentInfo(
            service=agent_side.draw_service(draws, pool, language),
            vehicle=agent_side.draw_vehicle(draws, car, price),
        ),
        initial_state=state,
        meta=meta,
        story=None,
    )
    customer = view(profile)
    score = difficulty_score(customer)
    control = CaseControl(
        max_agent_turns=MAX_AGENT_TURNS,
        difficulty=level(score),
        difficulty_score=score,
        hard_factors=hard_factors(customer),
    )
    return profile.model_copy(update={"case_control": control})


def _cities(draws: Draws, pool: Pool, remote: t.Remote) -> tuple[City, City]:
    """Where the customer lives and where the car stands."""
    home = draws.pick(pool.cities)
    if remote is t.Remote.SAME_CITY:
        return home, home
    same = remote is t.Remote.SAME_PROVINCE

    def fitting(city: City) -> list[City]:
        return [c for c in pool.cities if c != city and (c.province == city.province) is same]

    if not fitting(home):  # the only city of its province
        home = draws.pick([city for city in pool.cities if fitting(city)])
    return home, draws.pick(fitting(home))


def _lead(draws: Draws, cell: Cell) -> LeadContext:
    memory = draws.weighted(_MEMORIES[cell.intent])
    accidental = cell.intent is t.IntentDepth.ACCIDENTAL
    return LeadContext(
        lead_status=t.LeadStatus.MISTAKEN if accidental else draws.pick(_LEADS),
        lead_memory_state=memory,
        lead_recency=draws.pick(_RECENCIES[memory]),
    )


def _basic(
    draws: Draws, pool: Pool, lead: LeadContext, language: Language
) -> tuple[BasicProfile, Household]:
    """Its current situation is filled in by the caller."""
    given = draws.pick(pool.given_names)
    surname = draws.pick(pool.surnames)
    ages = draws.weighted(_AGES)
    youngest, oldest = map(int, ages.split("-"))
    job = draws.pick([o for o in pool.occupations if o.youngest <= youngest and oldest <= o.oldest])
    allowed = _HOUSEHOLDS.get(ages, ("alone", "couple", "children", "elders"))
    family = draws.pick([f for f in pool.families if f.household in allowed])
    experience = draws.weighted(
        {t.Experience.FIRST: 0.45, t.Experience.ADDITIONAL: 0.2, t.Experience.REPLACEMENT: 0.35}
    )
    if lead.lead_status is t.LeadStatus.TRADE_IN:  # there is a car to trade in
        experience = t.Experience.REPLACEMENT
    previous = draws.pick(tuple(t.CarType))
    basic = BasicProfile(
        name=surname.zh + given.zh if language == "zh" else f"{surname.en} {given.en}",
        gender=given.gender,
        age_range=ages,
        occupation=job[language],
        current_situation="-",
        family_status=family[language],
        purchase_experience=experience,
        previous_car_type=None if experience is t.Experience.FIRST else previous,
    )
    return basic, family.household


def _needs(
    draws: Draws,
    pool: Pool,
    cell: Cell,
    lead: LeadContext,
    car: Car,
    price: int,
    away: City,
    household: Household,
    language: Language,
) -> CarNeeds:
    near = sorted(
        (other for other in pool.cars if other != car),
        key=lambda other: abs(other.low + other.high - 2 * price),
    )
    compared = draws.sample(near[:5], draws.integer(1, 2))
    uses = [s for s in pool.scenarios if s.household in (None, household)]
    remembered = {
        t.Memory.CLEAR: tuple(t.Memory),
        t.Memory.VAGUE: (t.Memory.VAGUE, t.Memory.NONE),
        t.Memory.NONE: (t.Memory.NONE,),
    }
    budget: Money = agent_side.draw_range(draws, price)
    return CarNeeds(
        car_city=away[language],
        car_city_memory_state=draws.pick(remembered[lead.lead_memory_state]),
        target_car=car[language],
        target_car_type=car.type,
        comparison_cars=tuple(other[language] for other in compared),
        budget_range=budget,
        use_scenarios=tuple(s[language] for s in draws.sample(uses, draws.integer(1, 2))),
        core_needs=tuple(
            need[language] for need in draws.sample(pool.core_needs, draws.integer(2, 3))
        ),
        purchase_timeline=draws.weighted(_TIMELINES[cell.intent]),
    )


def _concerns(
    draws: Draws,
    pool: Pool,
    cell: Cell,
    car: Car,
    privacy: t.PrivacySensitivity,
    language: Language,
) -> Concerns:
    eligible = [
        category
        for category in t.Category
        if (category is not t.Category.BATTERY or car.type in t.WITH_BATTERY)
        and (category is not t.Category.REMOTE or cell.remote is not t.Remote.SAME_CITY)
        and (category is not t.Category.PRIVACY or privacy is not t.PrivacySensitivity.LOW)
    ]
    count = draws.weighted({2: 0.3, 3: 0.45, 4: 0.25})
    chosen = draws.sample(eligible, count)
    shift = _INTENSITY_SHIFT.get(cell.personality, 0.0)
    base = draws.uniform(0.37, 0.77) + shift
    intensities = (base + draws.uniform(-0.1, 0.1) for _ in chosen)
    confusions = draws.sample(pool.confusions, draws.integer(0, 2))
    asked = {c: draws.pick(pool.objections[c].questions)[language] for c in chosen}
    feared = tuple(draws.pick(pool.objections[c].details)[language] for c in chosen)
    return Concerns(
        objections=chosen,
        objection_details=feared,
        objection_intensities=tuple(round(min(max(x, 0.1), 1.0), 2) for x in intensities),
        category_details=asked,
        confusion_points=tuple(point[language] for point in confusions),
        confusion_intensities=tuple(round(draws.uniform(0.2, 0.9), 2) for _ in confusions),
    )


def _contact(draws: Draws, reachable: bool) -> ContactInfo:
    phone, other = agent_side.draw_phone(draws), agent_side.draw_phone(draws)
    return ContactInfo(
        phone_number=phone,
        phone_can_add_wechat=reachable,
        alternate_wechat_contact=None if reachable else other,
    )


def _speech(draws: Draws, pool: Pool, language: Language) -> SpeechProfile:
    return SpeechProfile(
        speaking_style=draws.pick(pool.speaking_styles)[language],
        disfluency_pattern=draws.weighted(
            {t.Disfluency.FLUENT: 0.4, t.Disfluency.FILLERS: 0.4, t.Disfluency.BROKEN: 0.2}
        ),
        signal_quality=draws.weighted(
            {t.Signal.CLEAR: 0.5, t.Signal.MEDIOCRE: 0.35, t.Signal.POOR: 0.15}
        ),
        comprehension_level=draws.pick(tuple(t.Comprehension)),
        guidance_need=draws.pick(tuple(t.Guidance)),
    )
