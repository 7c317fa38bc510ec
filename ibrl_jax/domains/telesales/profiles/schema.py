"""Profiles: who the customer is, and what the agent's side was told about them.

A training profile has 28 attributes in six groups (Table 5), an evaluation profile 40 in eight
(Table 6). Around them stand what is no attribute: the agent's side (who calls, what is registered
about the lead and the car), the scores at the start, and how the profile came about. The agent sees
`lead_record(profile)` and nothing else of a profile.

Amounts are in yuan, distances in kilometres, ages in years, scores in [0, 1].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles import terms as t

MAX_AGENT_TURNS = 15
"""Table 7: the turn limit of every dialogue."""

Text = Annotated[str, Field(min_length=1)]
Score = Annotated[float, Field(ge=0, le=1)]
Phone = Annotated[str, Field(pattern=r"^1\d{10}$")]
Objections = Annotated[tuple[t.Category, ...], Field(min_length=1, max_length=4)]


class Frozen(BaseModel):
    """Nothing of a profile changes, and nothing is in it that its schema does not name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Money(Frozen):
    """A range of prices, yuan."""

    low: int = Field(ge=0)
    high: int = Field(gt=0)

    @model_validator(mode="after")
    def _ordered(self) -> Money:
        if self.low > self.high:
            raise ValueError(f"the range runs from {self.low} down to {self.high}")
        return self

    def __contains__(self, amount: object) -> bool:
        return isinstance(amount, int) and self.low <= amount <= self.high


class State(Frozen):
    """What the customer makes of the call; the three move independently."""

    willingness: Score
    trust: Score
    patience: Score


# ------------------------------------------------------------------------ the agent's side


class Service(Frozen):
    """Who calls."""

    name: Text
    gender: t.Gender
    phone: Phone


class Vehicle(Frozen):
    """What is registered about the car; None where it has to be checked."""

    registered: int | None  # year of the first registration
    price: int | None  # yuan, as listed
    fees: int | None  # yuan, service and transfer together
    mileage: int | None  # km
    condition: t.VehicleCondition | None
    warranty_months: int | None  # left; 0 has expired
    owners: int | None  # before this sale
    battery_percent: int | None  # health; None also where the car has no battery to speak of
    down_payment_percent: int | None
    availability: t.Availability | None


class LeadRecord(Frozen):
    """All that the agent knows of customer and car (Appendix D; Tables 10 and 15)."""

    target_car: Text
    car_city: Text  # where the car stands and is registered
    budget_range: Money
    purchase_timeline: t.Timeline
    phone_number: Phone
    vehicle: Vehicle
    service: Service
    language: Language

    @property
    def phone_tail(self) -> str:
        """The last four digits of the customer's number."""
        return self.phone_number[-4:]


FIELD_OF: Mapping[t.Category, str | None] = {
    t.Category.PRICE: "price",
    t.Category.FEES: "fees",
    t.Category.CONDITION: "condition",
    t.Category.MILEAGE: "mileage",
    t.Category.WARRANTY: "warranty_months",
    t.Category.OWNERSHIP: "owners",
    t.Category.BATTERY: "battery_percent",
    t.Category.FINANCE: "down_payment_percent",
    t.Category.AVAILABILITY: "availability",
    t.Category.REMOTE: None,  # answered by LeadRecord.car_city
    t.Category.PRIVACY: None,  # answered by a promise, not by a fact
}
"""The field of `Vehicle` that answers a question of a category."""


def fact(record: LeadRecord, category: t.Category) -> int | str | None:
    """The registered value that answers a category; None where the agent has to check."""
    if category is t.Category.REMOTE:
        return record.car_city
    field = FIELD_OF[category]
    return None if field is None else getattr(record.vehicle, field)


# ------------------------------------------------------------------------ training (Table 5)


class Identity(Frozen):
    name: Text
    age: int = Field(ge=18, le=80)
    occupation: Text
    city: Text
    family_situation: Text
    background: Text


class ContactChannels(Frozen):
    phone_number: Phone
    wechat_id: Text
    wechat_privacy: t.WechatPrivacy
    primary_account: t.PrimaryAccount


class PurchaseIntent(Frozen):
    target_model: Text
    budget: int = Field(gt=0)  # yuan: what the customer would really pay
    usage_scenario: Text
    stated_demands: tuple[Text, ...]
    intent_depth: t.IntentDepth
    intent_description: Text


class Persona(Frozen):
    personality_traits: t.Personality
    concerns: Objections
    speaking_style: Text
    attitude_description: Text


class CallContext(Frozen):
    call_time: t.CallTime
    environment: t.Environment
    signal_quality: t.Signal


class WillingnessControl(Frozen):
    """adjusted = initial + time modifier + environment modifier, within [0, 1]."""

    initial_willingness: Score
    adjusted_willingness: Score
    time_modifier: float
    env_modifier: float
    difficulty: t.Difficulty


class TrainingAttributes(Frozen):
    identity: Identity
    contact_channels: ContactChannels
    purchase_intent: PurchaseIntent
    persona: Persona
    call_context: CallContext
    willingness_control: WillingnessControl


class RegisteredLead(Frozen):
    """What the lead of a training profile says beside the car."""

    budget_range: Money
    purchase_timeline: t.Timeline


class TrainingAgentInfo(Frozen):
    service: Service
    car_city: Text
    lead: RegisteredLead
    vehicle: Vehicle


# ------------------------------------------------------------------------ evaluation (Table 6)


class BasicProfile(Frozen):
    name: Text
    gender: t.Gender
    age_range: t.AgeRange
    occupation: Text
    current_situation: Text
    family_status: Text
    purchase_experience: t.Experience
    previous_car_type: t.CarType | None


class LocationContext(Frozen):
    city: Text
    city_tier: t.CityTier
    remote_type: t.Remote


class CarNeeds(Frozen):
    car_city: Text
    car_city_memory_state: t.Memory
    target_car: Text
    target_car_type: t.CarType
    comparison_cars: tuple[Text, ...]
    budget_range: Money
    use_scenarios: tuple[Text, ...]
    core_needs: tuple[Text, ...]
    purchase_timeline: t.Timeline


class IntentState(Frozen):
    intent_depth: t.IntentDepth
    privacy_sensitivity: t.PrivacySensitivity
    personality: t.Personality


class LeadContext(Frozen):
    lead_status: t.LeadStatus
    lead_memory_state: t.Memory
    lead_recency: t.Recency


class Concerns(Frozen):
    """The i-th detail and intensity are those of the i-th objection."""

    objections: Objections
    objection_details: tuple[Text, ...]  # what the customer fears
    objection_intensities: tuple[Score, ...]
    category_details: dict[t.Category, Text]  # what the customer asks, by category
    confusion_points: tuple[Text, ...]
    confusion_intensities: tuple[Score, ...]


class ContactInfo(Frozen):
    phone_number: Phone
    phone_can_add_wechat: bool
    alternate_wechat_contact: Phone | None


class SpeechProfile(Frozen):
    speaking_style: Text
    disfluency_pattern: t.Disfluency
    signal_quality: t.Signal
    comprehension_level: t.Comprehension
    guidance_need: t.Guidance


class EvaluationAttributes(Frozen):
    basic_profile: BasicProfile
    location_context: LocationContext
    car_needs: CarNeeds
    intent_state: IntentState
    lead_context: LeadContext
    concerns: Concerns
    contact_info: ContactInfo
    speech_profile: SpeechProfile


class CaseControl(Frozen):
    """For the experimenter alone: neither side of the dialogue sees it."""

    max_agent_turns: int = Field(ge=1)  # the limit of the calls is the config's, which must agree
    difficulty: t.Difficulty
    difficulty_score: float = Field(ge=0, le=100)
    hard_factors: tuple[t.HardFactor, ...]


class AgentInfo(Frozen):
    service: Service
    vehicle: Vehicle


# ------------------------------------------------------------------------ whole profiles


class GenerationMeta(Frozen):
    """Seed and version give the same profiles, byte for byte."""

    seed: int
    version: str
    index: int
    composition: Literal["sampled", "paper_exact"]


class Story(Frozen):
    """The simulator's persona (Table 8)."""

    story: Text
    scene_fewshots: dict[t.Scene, tuple[Text, ...]]


class TrainingProfile(Frozen):
    kind: Literal["training"]
    id: Text
    language: Language
    user_profile: TrainingAttributes
    agent_info: TrainingAgentInfo
    initial_state: State
    meta: GenerationMeta


class EvaluationProfile(Frozen):
    kind: Literal["evaluation"]
    id: Text
    language: Language
    case_control: CaseControl
    user_profile: EvaluationAttributes
    agent_info: AgentInfo
    initial_state: State
    meta: GenerationMeta
    story: Story | None  # None until it is compiled


Profile = TrainingProfile | EvaluationProfile


def lead_record(profile: Profile) -> LeadRecord:
    """What the agent's side knows; hidden concerns, personality and scores are not in it."""
    user, agent = profile.user_profile, profile.agent_info
    if isinstance(user, TrainingAttributes) and isinstance(agent, TrainingAgentInfo):
        return LeadRecord(
            target_car=user.purchase_intent.target_model,
            car_city=agent.car_city,
            budget_range=agent.lead.budget_range,
            purchase_timeline=agent.lead.purchase_timeline,
            phone_number=user.contact_channels.phone_number,
            vehicle=agent.vehicle,
            service=agent.service,
            language=profile.language,
        )
    assert isinstance(user, EvaluationAttributes)
    return LeadRecord(
        target_car=user.car_needs.target_car,
        car_city=user.car_needs.car_city,
        budget_range=user.car_needs.budget_range,
        purchase_timeline=user.car_needs.purchase_timeline,
        phone_number=user.contact_info.phone_number,
        vehicle=agent.vehicle,
        service=agent.service,
        language=profile.language,
    )
