"""Profiles and lead records in words: what fills the placeholders of the prompts."""

from __future__ import annotations

from collections.abc import Mapping

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.schema import (
    EvaluationAttributes,
    LeadRecord,
    Money,
    Service,
    TrainingAttributes,
    Vehicle,
    fact,
)
from ibrl_jax.domains.telesales.profiles.terms import (
    Availability,
    Category,
    PrimaryAccount,
    PrivacySensitivity,
    VehicleCondition,
    WechatPrivacy,
)

_FIELDS: Mapping[str, Mapping[Language, str]] = {
    "registered": {"zh": "首次上牌{}年", "en": "first registered in {}"},
    "price": {"zh": "报价{}", "en": "listed at {}"},
    "fees": {"zh": "服务费和过户费共{}", "en": "fees and transfer {} together"},
    "mileage": {"zh": "表显里程{}公里", "en": "mileage {} km"},
    "condition": {"zh": "车况：{}", "en": "condition: {}"},
    "warranty_months": {"zh": "质保剩余{}个月", "en": "{} months of warranty left"},
    "owners": {"zh": "过户{}次", "en": "previous owners: {}"},
    "battery_percent": {"zh": "电池健康度{}%", "en": "battery health {}%"},
    "down_payment_percent": {"zh": "首付比例{}%", "en": "down payment {}%"},
    "availability": {"zh": "状态：{}", "en": "availability: {}"},
}
"""How a registered field of the vehicle reads; one that is empty reads as having to be checked."""

# A battery is not in it: whether the car has one worth a line, a record does not say.
_NAMES: Mapping[str, Mapping[Language, str]] = {
    "registered": {"zh": "上牌年份", "en": "year of registration"},
    "price": {"zh": "报价", "en": "price"},
    "fees": {"zh": "费用", "en": "fees"},
    "mileage": {"zh": "里程", "en": "mileage"},
    "condition": {"zh": "车况", "en": "condition"},
    "warranty_months": {"zh": "质保", "en": "warranty"},
    "owners": {"zh": "过户次数", "en": "previous owners"},
    "down_payment_percent": {"zh": "首付", "en": "down payment"},
    "availability": {"zh": "是否在售", "en": "availability"},
}

_CLAUSES: Mapping[Category, Mapping[Language, tuple[str, str, str]]] = {
    Category.PRICE: {"zh": ("报价", "是", ""), "en": ("the price", " comes to ", "")},
    Category.FEES: {"zh": ("费用", "共", ""), "en": ("the fees", " total ", "")},
    Category.CONDITION: {"zh": ("车况", "为", ""), "en": ("the condition", " reads ", "")},
    Category.MILEAGE: {"zh": ("里程", "表显", ""), "en": ("the mileage", " shows ", "")},
    Category.WARRANTY: {
        "zh": ("质保", "剩余", "个月"),
        "en": ("the warranty", " runs ", " months"),
    },
    Category.OWNERSHIP: {
        "zh": ("车主记录", "过户", "次"),
        "en": ("the ownership", " changed hands ", " times"),
    },
    Category.BATTERY: {"zh": ("电池", "还有", "%"), "en": ("the battery", " keeps ", "%")},
    Category.FINANCE: {"zh": ("贷款", "首付", "%"), "en": ("the down payment", " starts at ", "%")},
    Category.AVAILABILITY: {"zh": ("这台", "目前", ""), "en": ("the status", " is ", "")},
    Category.REMOTE: {"zh": ("车", "停在", ""), "en": ("the car", " stands in ", "")},
}
"""A clause's topic, what stands between it and the value, and what after."""


def join(parts: tuple[str, ...] | list[str], language: Language) -> str:
    """Several things in a row; a dash where there are none."""
    return ("、" if language == "zh" else ", ").join(parts) or "—"


def money(amount: int, language: Language) -> str:
    """Yuan: `8.98万元`, `RMB 89,800`; sums under 10,000 in whole yuan."""
    if language == "en":
        return f"RMB {amount:,}"
    return f"{amount / 10_000:.10g}万元" if amount >= 10_000 else f"{amount}元"


def span(budget: Money, language: Language) -> str:
    """A range of prices."""
    if language == "en":
        return f"RMB {budget.low:,} to {budget.high:,}"
    return f"{budget.low / 10_000:.10g}到{budget.high / 10_000:.10g}万元"


def vehicle_text(vehicle: Vehicle, language: Language) -> str:
    """What is registered about the car, and which fields have to be checked."""
    known, missing = [], []
    for field, wording in _FIELDS.items():
        value = getattr(vehicle, field)
        if value is None and field in _NAMES:
            missing.append(_NAMES[field][language])
        elif value is None:
            continue
        elif field in ("price", "fees"):
            known.append(wording[language].format(money(value, language)))
        elif field in ("condition", "availability"):
            known.append(wording[language].format(value.word(language)))
        else:
            number = f"{value:,}" if field == "mileage" and language == "en" else value
            known.append(wording[language].format(number))
    if missing:
        tail = {"zh": "未登记、需核实：", "en": "not registered, to be checked: "}[language]
        known.append(tail + join(missing, language))
    return ("；" if language == "zh" else "; ").join(known)


def spoken(category: Category, value: int | str, language: Language) -> str:
    """A registered value as one says it."""
    if isinstance(value, (VehicleCondition, Availability)):
        return value.word(language)
    if category in (Category.PRICE, Category.FEES) and isinstance(value, int):
        if language == "en":
            return f"{value:,} yuan"
        return f"{value / 10_000:.10g}万元" if value >= 10_000 else f"{value}元"
    if category is Category.MILEAGE and isinstance(value, int):
        return f"{value:,} km" if language == "en" else f"{value / 10_000:.10g}万公里"
    return str(value)


def clause(lead: LeadRecord, category: Category) -> str:
    """What the record has on a category, as one says it: its topic, then its value if it has one.

    No two clauses have the same word before their value, so whoever has said that word finds the
    value behind it.
    """
    language = lead.language
    topic, between, after = _CLAUSES[category][language]
    value = fact(lead, category)
    if value is None:
        return topic + {"zh": "没有登记", "en": " was not registered"}[language]
    if category is Category.WARRANTY and value == 0:
        return topic + {"zh": "已过期", "en": " has expired"}[language]
    if value == 1:  # one time, one month
        after = after.removesuffix("s")
    return topic + between + spoken(category, value, language) + after


def facts_text(lead: LeadRecord) -> str:
    """What a customer can ask about, clause by clause."""
    found = [clause(lead, category) for category in Category if category is not Category.PRIVACY]
    return ("；" if lead.language == "zh" else "; ").join(found)


def service_text(service: Service, language: Language) -> str:
    """Who calls."""
    return join([service.name, service.gender.word(language), service.phone], language)


def lead_fields(lead: LeadRecord) -> dict[str, str]:
    """The placeholders of Tables 10 and 15."""
    language = lead.language
    budget, timeline = span(lead.budget_range, language), lead.purchase_timeline.word(language)
    vehicle = vehicle_text(lead.vehicle, language)
    return {
        "service_name": lead.service.name,
        "service_gender": lead.service.gender.word(language),
        "service_phone": lead.service.phone,
        "vehicle_series": lead.target_car,
        "registration_city": lead.car_city,
        "purchase_budget": budget,
        "purchase_time": timeline,
        "vehicle_information": vehicle,
        "facts": facts_text(lead),
        "customer_phone": lead.phone_number,
        "SALE_PROFILE": service_text(lead.service, language),
        "target_car": lead.target_car,
        "car_city": lead.car_city,
        "budget_range": budget,
        "purchase_timeline": timeline,
        "car_info": vehicle,
        "phone_number": lead.phone_number,
        "phone_tail": lead.phone_tail,
    }


def lead_text(lead: LeadRecord) -> str:
    """All that the agent knows, on a line a field: for auditors and judges."""
    names = {
        "zh": ("意向车辆", "车辆所在地", "预算", "预计购车时间", "车辆信息", "客户电话", "客服"),
        "en": ("car", "car's city", "budget", "time of purchase", "vehicle", "phone", "agent"),
    }[lead.language]
    keys = (
        *("target_car", "car_city", "budget_range", "purchase_timeline", "car_info"),
        *("phone_number", "SALE_PROFILE"),
    )
    fields = lead_fields(lead)
    return "\n".join(f"{name}: {fields[key]}" for name, key in zip(names, keys, strict=True))


def customer_fields(
    user: TrainingAttributes | EvaluationAttributes, language: Language
) -> dict[str, str]:
    """The profile's placeholders of Table 16, from a profile of either kind.

    What the agent must not see stands here; what is for the experimenter alone does not.
    """
    if isinstance(user, TrainingAttributes):
        return _training_fields(user, language)
    return _evaluation_fields(user, language)


def in_brief(user: TrainingAttributes | EvaluationAttributes, language: Language) -> str:
    """What a customer of either kind goes by, in the same words: for the short prompts.

    A policy too small to read the words of other profiles than it learned from meets none here.
    """
    if isinstance(user, TrainingAttributes):
        personality, concerns = user.persona.personality_traits, user.persona.concerns
        contact = user.contact_channels
        private = contact.wechat_privacy is WechatPrivacy.HIDDEN
        found = contact.primary_account is PrimaryAccount.THIS_PHONE and not private
    else:
        personality, concerns = user.intent_state.personality, user.concerns.objections
        private = user.intent_state.privacy_sensitivity is PrivacySensitivity.HIGH
        found = user.contact_info.phone_can_add_wechat
    told = [personality.word(language), join([c.word(language) for c in concerns], language)]
    if language == "en":
        told += ["found by this number" if found else "not found by this number"]
        told += ["wants privacy"] if private else []
        return "; ".join(told)
    told += ["这个号码加得到" if found else "这个号码加不到"]
    told += ["看重隐私"] if private else []
    return "；".join(told)


def _training_fields(user: TrainingAttributes, language: Language) -> dict[str, str]:
    who, contact, intent = user.identity, user.contact_channels, user.purchase_intent
    persona, call = user.persona, user.call_context
    return {
        "name": who.name,
        "age": str(who.age),
        "occupation": who.occupation,
        "city": who.city,
        "family_situation": who.family_situation,
        "background": who.background,
        "phone_number": contact.phone_number,
        "wechat_id": contact.wechat_id,
        "wechat_privacy": contact.wechat_privacy.word(language),
        "primary_wechat": contact.primary_account.word(language),
        "vehicle": intent.target_model,
        "budget": money(intent.budget, language),
        "usage_scenario": intent.usage_scenario,
        "primary_needs": join(intent.stated_demands, language),
        "intent_level": intent.intent_depth.word(language),
        "intent_description": intent.intent_description,
        "personality": join(
            [persona.personality_traits.word(language), persona.attitude_description], language
        ),
        "concerns": join([c.word(language) for c in persona.concerns], language),
        "speaking_style": persona.speaking_style,
        "call_environment": join(
            [call.call_time.word(language), call.environment.word(language)], language
        ),
        "signal_quality": call.signal_quality.word(language),
    }


def _evaluation_fields(user: EvaluationAttributes, language: Language) -> dict[str, str]:
    who, needs, intent = user.basic_profile, user.car_needs, user.intent_state
    lead, contact, speech = user.lead_context, user.contact_info, user.speech_profile
    other, sensitivity = contact.alternate_wechat_contact, intent.privacy_sensitivity
    if contact.phone_can_add_wechat:
        reachable = {"zh": "当前号码可加微信", "en": "the current number can be added"}
    else:
        reachable = {
            "zh": f"当前号码加不了微信，可加{other}",
            "en": f"the current number cannot be added, {other} can",
        }
    brackets = "（{}）" if language == "zh" else " ({})"
    concerns = [
        category.word(language) + brackets.format(detail)
        for category, detail in zip(
            user.concerns.objections, user.concerns.objection_details, strict=True
        )
    ]
    before = [] if who.previous_car_type is None else [who.previous_car_type.word(language)]
    return {
        "name": who.name,
        "age": who.age_range.word(language),
        "occupation": who.occupation,
        "city": user.location_context.city,
        "family_situation": who.family_status,
        "background": join([who.purchase_experience.word(language), *before], language),
        "phone_number": contact.phone_number,
        "wechat_id": other or contact.phone_number,
        "wechat_privacy": {"zh": "隐私敏感度", "en": "privacy sensitivity "}[language]
        + sensitivity.word(language),
        "primary_wechat": reachable[language],
        "vehicle": needs.target_car,
        "budget": span(needs.budget_range, language),
        "usage_scenario": join(needs.use_scenarios, language),
        "primary_needs": join(needs.core_needs, language),
        "intent_level": intent.intent_depth.word(language),
        "intent_description": join(
            [
                lead.lead_status.word(language),
                lead.lead_recency.word(language),
                lead.lead_memory_state.word(language),
                needs.purchase_timeline.word(language),
            ],
            language,
        ),
        "personality": intent.personality.word(language),
        "concerns": join(concerns, language),
        "speaking_style": join(
            [speech.speaking_style, speech.disfluency_pattern.word(language)], language
        ),
        "call_environment": who.current_situation,
        "signal_quality": speech.signal_quality.word(language),
    }
