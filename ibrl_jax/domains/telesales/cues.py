"""What an utterance says, found by words and numbers alone, in Chinese and English.

Nothing here judges: `read` gives the claims an agent makes about the car and the cues of how it
speaks, `asked` the category that a customer asks about. Precision goes before recall: what is not
clearly said is not found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from ibrl_jax.domains.telesales.cue_words import CUES, TOPICS
from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.terms import Availability, Category, VehicleCondition

C = Category


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement about the car. `value`: yuan, km, months, owners, percent, a label or a city."""

    category: Category
    value: float | str
    text: str  # the clause, as it was said


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an utterance holds, whoever said it to whom."""

    words: str
    language: Language
    length: int  # characters without white space (zh), characters (en)
    claims: tuple[Claim, ...]
    topics: frozenset[Category]  # what it mentions, with a value or without
    cues: frozenset[str]  # names in `cue_words.CUES`
    trigrams: frozenset[str]


_FLAGS = re.IGNORECASE | re.MULTILINE
_TOPIC = {
    language: {c: re.compile("|".join(words), _FLAGS) for c, words in table.items()}
    for language, table in TOPICS.items()
}
_CUE = {
    language: {name: re.compile("|".join(words), _FLAGS) for name, words in table.items()}
    for language, table in CUES.items()
}

_SENTENCE = re.compile(r"[。！？；!?;\n]+|\.(?=\s|$)")
_CLAUSE = re.compile(r"[，,](?!\d)|[、]")
_DIGITS = {c: n for n, c in enumerate("零一二三四五六七八九")} | {"两": 2, "〇": 0}
_UNITS = {"十": 10, "百": 100, "千": 1000}
_HAN_NUMBER = re.compile(
    r"(?:百分之)?[零〇一二两三四五六七八九十百千]+(?:点[零一二三四五六七八九]+)?"
    r"(?:万[零一二两三四五六七八九]?[一二两三四五六七八九十百千]*)?"
    r"(?=\s*(?:万|元|块|公里|个月|年|次|任|手|成|$|[，。！？,])|(?<=.)(?=\W))"
    r"|百分之[零一二两三四五六七八九十百]+"
)
_COUNTED = tuple("元块公个年")  # what a number counts, by its first character
_ENGLISH = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_ENGLISH_NUMBER = re.compile(rf"\b({'|'.join(_ENGLISH)})\b", re.IGNORECASE)

_N = r"(?<![\d.,])(\d[\d,]{0,12}(?:\.\d{1,4})?)"  # bounded: long runs of digits are no number
_YUAN = {
    "zh": re.compile(rf"{_N}\s*(万)?\s*(\d?)(?:元|块|人民币|(?<=万)(?!\s*公里)|(?<=万\d))"),
    "en": re.compile(rf"{_N}\s*(k|thousand|万)?\s*()(?:yuan|rmb)|(?:rmb|¥)\s*{_N}", _FLAGS),
}
_KM = {
    "zh": re.compile(rf"{_N}\s*(万)?\s*公里"),
    "en": re.compile(rf"{_N}\s*(k|thousand)?\s*(?:km\b|kilomet)", _FLAGS),
}
_MONTHS = {
    "zh": re.compile(rf"{_N}\s*(个月|年)"),
    "en": re.compile(rf"{_N}\s*(months?|years?)", _FLAGS),
}
_OWNERS = {
    "zh": re.compile(r"过户[过了]?\s?(\d{1,2})\s?次|(?<!\d)(\d{1,2})\s?任前?任?车主"),
    "en": re.compile(
        r"\b(\d{1,2}) (?:previous |former )?owners?|changed hands (\d{1,2}) times?", _FLAGS
    ),
}
_PERCENT = {
    "zh": re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,2})?)\s?(%|％|成)"),
    "en": re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,2})?)\s?(%|percent|per cent)", _FLAGS),
}
_EXPIRED = {
    "zh": re.compile(r"(?:质保|保修).{0,4}(?:已|都)?(?:过期|到期|过了|没有了)|已经?过保|过保了"),
    "en": re.compile(r"warranty (?:has |is |has already )?(?:expired|run out|over)", _FLAGS),
}
_NO_OWNER = {
    "zh": re.compile(r"没有?过过户|没过过户|零过户|从没过户"),
    "en": re.compile(r"no (?:previous|former) owners?|never changed hands", _FLAGS),
}
_CONDITIONS = {
    "zh": {
        VehicleCondition.CLEAN: re.compile(
            r"(?:无|没有?|没出过|没有过)(?:任何|大|重大)?事故|无水泡"
        ),
        VehicleCondition.MINOR: re.compile(r"轻微剐蹭|轻微刮蹭|小剐蹭|小刮蹭|无结构损伤"),
        VehicleCondition.REPAIRED: re.compile(
            r"(?:有过?|出过)碰撞|碰撞维修|(?<!没)(?<!没有)出过事故"
        ),
    },
    "en": {
        VehicleCondition.CLEAN: re.compile(
            r"\bno accidents?\b|\baccident[- ]free\b|\bnever (?:been in )?an? accident\b", _FLAGS
        ),
        VehicleCondition.MINOR: re.compile(
            r"\blight scratches\b|\bminor scratches\b|\bno structural damage\b", _FLAGS
        ),
        VehicleCondition.REPAIRED: re.compile(
            r"\brepaired after a collision\b|\bwas in a collision\b|\bcollision repair\b", _FLAGS
        ),
    },
}
_AVAILABLE = {
    "zh": {
        Availability.ON_SALE: re.compile(r"(?<!不)(?<!是否)在售|(?:还|仍|正)在?卖|还没卖"),
        Availability.RESERVED: re.compile(r"被(?:人)?(?:预订|订)|已预订|订走"),
        Availability.SOLD: re.compile(r"已(?:经)?(?:售出|卖掉|卖出)|卖掉了"),
    },
    "en": {
        Availability.ON_SALE: re.compile(r"\bon sale\b|\b(?:is|still|it's) available\b", _FLAGS),
        Availability.RESERVED: re.compile(r"\b(?:is|been|it's) reserved\b", _FLAGS),
        Availability.SOLD: re.compile(r"\b(?:is|been|it's|already) sold\b", _FLAGS),
    },
}
_PLACE = {
    "zh": re.compile(
        r"(?:车|它)(?:子)?(?:就|现在|目前)*(?:停|放)?在([一-龥]{2,8}?)(?:市|这边|那边|的|$)"
    ),
    "en": re.compile(r"(?:car|it)(?:'s| is| stands)? (?:now |standing )?in ([A-Z][\w' -]*?)$"),
}
_BUDGET = re.compile(r"预算|\bbudget\b", re.IGNORECASE)
_QUESTION = re.compile(r"吗$|呢$|多少$|几$|什么$|\b(?:what|which|how|is it)\b", re.IGNORECASE)


@lru_cache(maxsize=65_536)
def read(words: str, language: Language) -> Reading:
    """What an agent's words hold; the words are without markers."""
    return Reading(
        words=words,
        language=language,
        length=len("".join(words.split())) if language == "zh" else len(words.strip()),
        claims=_claims(words, language),
        topics=frozenset(c for c, p in _TOPIC[language].items() if p.search(words)),
        cues=cues(words, language),
        trigrams=_trigrams(words),
    )


@lru_cache(maxsize=16_384)
def asked(words: str, language: Language) -> Category | None:
    """The category that a customer's words ask about: the last one mentioned; None for none."""
    found = [
        (match.end(), match.end() - match.start(), category)
        for category, pattern in _TOPIC[language].items()
        for match in pattern.finditer(words)
    ]
    return max(found)[2] if found else None


@lru_cache(maxsize=16_384)
def cues(words: str, language: Language) -> frozenset[str]:
    """The cues that words hold, of either side; `Reading.cues` are the same of an agent's."""
    return frozenset(name for name, pattern in _CUE[language].items() if pattern.search(words))


def _claims(words: str, language: Language) -> tuple[Claim, ...]:
    found: dict[tuple[Category, float | str], Claim] = {}
    for sentence in _SENTENCE.split(words):
        plain = arabic(sentence, language)
        topics = {c for c, p in _TOPIC[language].items() if p.search(plain)}
        for raw in _CLAUSE.split(plain):
            clause = raw.strip()
            if not clause or _QUESTION.search(clause):
                continue
            for category, value in _values(clause, topics, language):
                claim = Claim(category=category, value=value, text=clause)
                found.setdefault((category, value), claim)
    return tuple(found.values())


def _values(
    clause: str, topics: set[Category], language: Language
) -> list[tuple[Category, float | str]]:
    """The values in a clause; `topics` are those of its whole sentence."""
    found: list[tuple[Category, float | str]] = []
    own = {c for c, p in _TOPIC[language].items() if p.search(clause)}
    found += [(C.MILEAGE, _amount(m)) for m in _KM[language].finditer(clause)]
    if not _BUDGET.search(clause):
        money = [_amount(m) for m in _YUAN[language].finditer(_KM[language].sub("", clause))]
        # an amount is what its clause is about; a clause without a topic goes with its sentence
        about = [c for c in (C.FEES, C.PRICE) if c in own] or [
            c for c in (C.FEES, C.PRICE) if c in topics
        ]
        found += [(about[0], value) for value in money if about]
    if C.WARRANTY in topics:
        for match in _MONTHS[language].finditer(clause):
            years = match[2].lower().startswith(("年", "year"))
            found.append((C.WARRANTY, _number(match[1]) * (12 if years else 1)))
    if _EXPIRED[language].search(clause):
        found.append((C.WARRANTY, 0.0))
    found += [(C.OWNERSHIP, _number(m[1] or m[2])) for m in _OWNERS[language].finditer(clause)]
    if _NO_OWNER[language].search(clause):
        found.append((C.OWNERSHIP, 0.0))
    for match in _PERCENT[language].finditer(clause):
        percent = _number(match[1]) * (10 if match[2] == "成" else 1)
        about = [c for c in (C.BATTERY, C.FINANCE) if c in (own or topics)]
        found += [(about[0], percent)] if about else []
    for category, table in ((C.CONDITION, _CONDITIONS), (C.AVAILABILITY, _AVAILABLE)):
        labels = [label for label, p in table[language].items() if p.search(clause)]
        found += [(category, str(labels[-1]))] if labels else []
    place = _PLACE[language].search(clause)
    if place:
        found.append((C.REMOTE, place[1].strip()))
    return found


def arabic(text: str, language: Language) -> str:
    """The text with spoken numbers as figures: 十二万八 is 128000, `two owners` is `2 owners`."""
    if language == "en":
        return _ENGLISH_NUMBER.sub(lambda m: str(_ENGLISH.index(m[1].lower())), text)

    def figures(match: re.Match[str]) -> str:
        spoken = _figures(match[0])
        bare = text[match.end() : match.end() + 1] not in _COUNTED
        return f"{spoken}元" if bare and "万" in match[0] and spoken.isdigit() else spoken

    return _HAN_NUMBER.sub(figures, text)


def _figures(spoken: str) -> str:
    if spoken.startswith("百分之"):
        return f"{_han(spoken[3:]):g}%"
    whole, wan, rest = spoken.partition("万")
    if not wan:
        return f"{_han(whole):g}"
    small = _han(rest) * (1000 if len(rest) == 1 and rest in _DIGITS else 1) if rest else 0
    return f"{_han(whole) * 10_000 + small:.0f}" if rest else f"{_han(whole):g}万"


def _han(spoken: str) -> float:
    whole, _, fraction = spoken.partition("点")
    total = current = 0
    last_unit = 10
    for char in whole:
        if char in _UNITS:
            total += (current or 1) * _UNITS[char]
            last_unit, current = _UNITS[char], 0
        else:
            current = _DIGITS.get(char, 0)
    trailing = last_unit // 10 if last_unit > 10 and "零" not in whole else 1  # 三千五 is 3500
    value = total + current * trailing
    return value + sum(_DIGITS.get(c, 0) / 10 ** (i + 1) for i, c in enumerate(fraction))


def _number(figures: str) -> float:
    return float(figures.replace(",", ""))


def _amount(match: re.Match[str]) -> float:
    """Yuan or km of a match (number, ten or a thousand thousands, a digit after them)."""
    groups = match.groups()
    figures = groups[0] or groups[-1]
    unit = {"万": 10_000, "k": 1000, "thousand": 1000}.get((groups[1] or "").lower(), 1)
    extra = 1000 * float(groups[2]) if len(groups) > 2 and groups[2] else 0.0
    return round(_number(figures) * unit + extra, 2)


def _trigrams(words: str) -> frozenset[str]:
    bare = "".join(char for char in words.lower() if char.isalnum())
    return frozenset(bare[i : i + 3] for i in range(len(bare) - 2))
