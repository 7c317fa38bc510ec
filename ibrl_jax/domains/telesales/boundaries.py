"""The knowledge boundaries of a story (Table 8), as far as rules can see them.

A story is the user's side alone: no registered fact of the car, nobody who calls, no number but the
user's own, no place that the user does not remember, no outcome, no invented sensitive fact; and
all eight scenes, one to three short lines each. Of numbers rules see figures alone: a price that is
written out in words passes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence

from ibrl_jax.domains.telesales.profiles.schema import EvaluationProfile
from ibrl_jax.domains.telesales.profiles.terms import Availability, Memory, Scene

LONGEST_LINE = {"zh": 60, "en": 160}
"""Characters of a spoken line of a scene."""

MOST_LINES = 3
_BEFORE = 120
"""Characters before a finding that may show what is meant by it."""

_NUMBER = re.compile(r"(?<![\d.])(\d[\d,]*(?:\.\d+)?)\s*(万|千|[kK](?![A-Za-z])|%|％)?")
_UNIT = {"万": 10_000, "千": 1_000, "k": 1_000, "K": 1_000}
_PHONE = re.compile(r"(?<!\d)\d{11}(?!\d)")

_OUTCOMES = re.compile(
    r"(?:最终|最后|结果|一定|肯定|必然)(?:会|将|还是)*"
    r"(?:同意|接受|答应|拒绝|购买|买下|下单|加上|添加|挂断|挂掉)"
    r"|\b(?:finally|ultimately|eventually|in the end,?|definitely|certainly|surely)"
    r"(?: \w+){0,2} (?:agree|accept|refuse|declin|buy|bought|purchas|add|hang|hung)\w*",
    re.IGNORECASE,
)
_SENSITIVE = re.compile(
    r"月薪|年薪|月收入|年收入|家庭住址|门牌|征信|身份证|出过车祸|欠债"
    r"|\b(?:salary|income|home address|credit (?:score|record|problems?|history)|identity card"
    r"|in debt)\b",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"(?:是否|能否|会不会|如果|若|除非|只有|可能|也许|取决于)[^。！？；\n]{0,40}$"
    r"|(?:不|未必|没|非)[^，。！？；\n]{0,6}$"
    r"|\b(?:whether|if|unless|only|may|might|depends?|depending)\b[^.!?;\n]{0,80}$"
    r"|(?:\b(?:not|never|no|nor|nothing)\b|n't\b)[^.,!?;\n]{0,40}$",
    re.IGNORECASE,
)
"""What stands before an outcome that is left open: a condition in its sentence, a negation in its
clause."""

_WITHHELD = re.compile(
    r"(?:不|拒绝)[^，。！？；\n]{0,6}(?:透露|提供|告诉|说|给|报|留)[^，。！？；\n]{0,8}$"
    r"|(?:\b(?:not|never|without|refus\w*|reluctant|unwilling)\b|n't\b)[^.,!?;\n]{0,30}"
    r"\b(?:giv|shar|disclos|reveal|tell|provid|talk)\w*[^.,!?;\n]{0,20}$",
    re.IGNORECASE,
)
"""What stands before a sensitive matter that the user keeps to themselves: a limit, no fact."""

_CAR = r"\b(?:car|vehicle|listing|it)\b[^.,!?;\n]{0,20}"
_IS = r"(?:\b(?:is|was|has been|had been)\b|(?<=it)'s\b)(?: \w+){0,2} "
_STATUS = rf"(?:{_CAR}{_IS}|\b(?:status|availability): )"
_CAR_ZH = (
    r"(?:(?:车|[这那][台辆])(?:子|目前|现在|当前|已经|早就|早|已|还|仍|依然|都|是)*"
    r"|状态[：是为]*已?)"
)

_AVAILABLE: Mapping[Availability, re.Pattern[str]] = {
    Availability.ON_SALE: re.compile(
        rf"{_STATUS}(?:on|for) sale\b|{_CAR_ZH}在[售卖](?!的)", re.IGNORECASE
    ),
    Availability.RESERVED: re.compile(
        rf"{_STATUS}reserved\b|{_CAR_ZH}(?:被(?:别人|人)?(?:预订|预定|订)|(?<=已)预[订定]|订走|订出)",
        re.IGNORECASE,
    ),
    Availability.SOLD: re.compile(
        rf"{_STATUS}sold\b|{_CAR_ZH}(?:被(?:别人|人)?)?(?:售出|卖掉|卖出|卖了)", re.IGNORECASE
    ),
}
"""How a story may say what is registered of whether the car can still be had."""

_EXPIRED = re.compile(
    r"(?:质保|保修)期?(?:已经|早就|早|已|都|也|就)*(?:过了|过期|到期|失效|结束)"
    r"|(?:已经|早就|早|已)[过脱]保|车[过脱]保了"
    r"|\bwarranty\b[^.,!?;\n]{0,20}\b(?:has|had|is|was)(?: \w+){0,2} (?:expired|run out|lapsed)"
    rf"|\bwarranty (?:expired|ran out|lapsed)|{_CAR}{_IS}?out of warranty",
    re.IGNORECASE,
)

_NOT_KNOWN = re.compile(
    r"(?:担心|怕|顾虑|怀疑|想知道|问|不确定|不清楚|确认|核实|假如|万一|一旦|当(?!前)|等|希望|最多|至多"
    r"|超过|客服|旧车|老车|之前的车|上一[台辆])[^。！？；\n]{0,40}$"
    r"|\b(?:worr\w+|fear\w*|afraid|concern\w*|suspect\w*|doubt\w*|wonder\w*|ask\w*|unsure"
    r"|check\w*|confirm\w*|once|when|until|after|should|could|would|hop\w+|want\w*|prefer\w*"
    r"|at most|more than|agent|caller|(?:old|previous|last|present|own) (?:car|one|suv|mpv))\b"
    r"[^.!?;\n]{0,80}$",
    re.IGNORECASE,
)
"""What stands before what is feared, asked, wished for, said by the agent or of another car."""

_QUESTION = re.compile(r"[^。！？；.!?;\n]*(?:[？?]|[吗吧没]\s*$)", re.MULTILINE)
"""The rest of a sentence that is a question."""


def check_boundaries(
    story: str, scenes: Mapping[Scene, Sequence[str]], profile: EvaluationProfile
) -> tuple[str, ...]:
    """What a story crosses, a short sentence each; empty where it may be used."""
    text = "\n".join([story, *(line for lines in scenes.values() for line in lines)])
    return (
        *_agent_facts(text, profile),
        *_numbers_and_places(text, profile),
        *_inventions(text, profile),
        *_scenes(scenes, profile),
    )


def _agent_facts(text: str, profile: EvaluationProfile) -> Iterator[str]:
    """Who calls and what is registered about the car."""
    service, vehicle = profile.agent_info.service, profile.agent_info.vehicle
    budget = profile.user_profile.car_needs.budget_range
    name = re.escape(service.name)
    pattern = name if profile.language == "zh" else rf"\b{name}\b"
    # a customer may share the caller's name, a whole pool of which is short
    if re.search(pattern, text.replace(profile.user_profile.basic_profile.name, "")):
        yield f"it names the agent, {service.name}"
    amounts, percents = set(), set()
    for number, unit in _NUMBER.findall(text):
        value = float(number.replace(",", "")) * _UNIT.get(unit, 1)
        if math.isfinite(value):  # a model that repeats itself may write any number of figures
            (percents if unit in ("%", "％") else amounts).add(round(value))
    amounts -= {budget.low, budget.high}
    for field in ("price", "fees", "mileage", "registered"):
        value = getattr(vehicle, field)
        if value in amounts:
            yield f"it knows the car's {field}, {value}"
    for field in ("battery_percent", "down_payment_percent"):
        if getattr(vehicle, field) in percents:
            yield f"it knows the car's {field}, {getattr(vehicle, field)}"
    months = vehicle.warranty_months
    if months and re.search(rf"(?<!\d){months}\s*(?:个月|months?\b)", text):
        yield f"it knows the car's warranty, {months} months"
    if months == 0 and _told(_EXPIRED, text):
        yield "it knows the car's warranty, which has expired"
    if vehicle.owners is not None and _told(_owned(vehicle.owners), text):
        yield f"it knows the car's owners, {vehicle.owners}"
    if vehicle.availability is not None and _told(_AVAILABLE[vehicle.availability], text):
        yield f"it knows the car's availability, {vehicle.availability.value}"
    if vehicle.condition and vehicle.condition.word(profile.language) in text:
        yield f"it knows the car's condition, {vehicle.condition.value}"


def _owned(times: int) -> re.Pattern[str]:
    """How often the car changed hands, in figures."""
    return re.compile(
        rf"过户(?:过|了|次数|记录|是|为|有|：|:)*\s*{times}\s*[次手]"
        rf"|(?<!\d){times}\s*(?:次过户|手车|[任位个名](?:前)?车主)|过了?\s*{times}\s*手"
        rf"|(?<![\d.]){times} (?:(?:previous|prior|former|past|earlier) )?owners?\b"
        rf"|\bowners?: {times}\b|\b(?:transferred|changed hands) {times} times?\b",
        re.IGNORECASE,
    )


def _told(fact: re.Pattern[str], text: str) -> bool:
    """Whether a fact is stated: neither denied, left open, feared, asked or wished for."""
    for found in fact.finditer(text):
        so_far = text[max(0, found.start() - _BEFORE) : found.end()]
        if not (
            _OPEN.search(so_far) or _NOT_KNOWN.search(so_far) or _QUESTION.match(text, found.end())
        ):
            return True
    return False


def _numbers_and_places(text: str, profile: EvaluationProfile) -> Iterator[str]:
    user = profile.user_profile
    own = (user.contact_info.phone_number, user.contact_info.alternate_wechat_contact)
    for number in sorted(set(_PHONE.findall(text)) - set(own)):
        yield f"it has a phone number that is not the user's, {number}"
    away = user.car_needs.car_city
    forgotten = user.car_needs.car_city_memory_state is not Memory.CLEAR
    if forgotten and away != user.location_context.city and away in text:
        yield f"it knows where the car is, {away}, which the user does not remember"


def _inventions(text: str, profile: EvaluationProfile) -> Iterator[str]:
    if found := next(_outside(_OUTCOMES, _OPEN, text), None):
        yield f"it fixes an outcome: {found!r}"
    given = profile.user_profile.model_dump_json()
    for word in sorted(set(_outside(_SENSITIVE, _WITHHELD, text))):
        if word not in given:
            yield f"it invents a sensitive fact: {word!r}"


def _outside(wanted: re.Pattern[str], context: re.Pattern[str], text: str) -> Iterator[str]:
    """What is found of a pattern but where the words right before it are of a context."""
    for found in wanted.finditer(text):
        if not context.search(text[max(0, found.start() - _BEFORE) : found.start()]):
            yield found[0]


def _scenes(scenes: Mapping[Scene, Sequence[str]], profile: EvaluationProfile) -> Iterator[str]:
    longest = LONGEST_LINE[profile.language]
    for scene in Scene:
        lines = scenes.get(scene, ())
        if not 1 <= len(lines) <= MOST_LINES:
            yield f"the scene {scene.value!r} has {len(lines)} lines instead of 1 to {MOST_LINES}"
        for line in lines:
            if not 0 < len(line.strip()) <= longest:
                yield f"the scene {scene.value!r} has a line of {len(line)} characters"
