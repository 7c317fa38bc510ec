"""The pools that profiles are drawn from: one for training, one for evaluation, nothing in common.

Each pool is a TOML file of (Chinese, English, ...) entries, so that one draw gives one profile in
either language.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.terms import (
    CarType,
    Category,
    CityTier,
    Gender,
    IntentDepth,
    Personality,
    Remote,
)

FOLDER = Path(__file__).parent / "pools"

PoolName = Literal["training", "evaluation"]
Household = Literal["alone", "couple", "children", "elders"]


@dataclass(frozen=True, kw_only=True)
class Wording:
    """One text in both languages."""

    zh: str
    en: str

    def __getitem__(self, language: Language) -> str:
        return self.zh if language == "zh" else self.en


@dataclass(frozen=True, kw_only=True)
class PersonName(Wording):
    gender: Gender


@dataclass(frozen=True, kw_only=True)
class City(Wording):
    province: Wording
    tier: CityTier


@dataclass(frozen=True, kw_only=True)
class Car(Wording):
    """`low` and `high`: the usual price used, yuan."""

    type: CarType
    low: int
    high: int


@dataclass(frozen=True, kw_only=True)
class Occupation(Wording):
    """Ages between which somebody has it, years."""

    youngest: int
    oldest: int


@dataclass(frozen=True, kw_only=True)
class Situation(Wording):
    busy: bool


@dataclass(frozen=True, kw_only=True)
class Family(Wording):
    household: Household


@dataclass(frozen=True, kw_only=True)
class Scenario(Wording):
    """A use of the car; `household` is who has to be there for it, None for anyone."""

    household: Household | None


@dataclass(frozen=True, kw_only=True)
class Objection:
    """What is feared, and what is asked."""

    details: tuple[Wording, ...]
    questions: tuple[Wording, ...]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What profiles are drawn from; a tuple is empty where a kind of profile has no such field."""

    surnames: tuple[Wording, ...]
    given_names: tuple[PersonName, ...]
    service_names: tuple[PersonName, ...]
    cities: tuple[City, ...]
    cars: tuple[Car, ...]
    occupations: tuple[Occupation, ...]
    families: tuple[Family, ...]
    scenarios: tuple[Scenario, ...]
    speaking_styles: tuple[Wording, ...]
    objections: Mapping[Category, Objection]
    # training
    backgrounds: tuple[Wording, ...]
    demands: tuple[Wording, ...]
    intents: Mapping[IntentDepth, tuple[Wording, ...]]
    attitudes: Mapping[Personality, tuple[Wording, ...]]
    # evaluation
    situations: tuple[Situation, ...]
    core_needs: tuple[Wording, ...]
    confusions: tuple[Wording, ...]

    def city(self, name: str) -> City | None:
        """A city by its name in either language."""
        return next((city for city in self.cities if name in (city.zh, city.en)), None)

    def texts(self) -> Iterator[Wording]:
        """Every wording of the pool."""
        for field in fields(self):
            yield from _wordings(getattr(self, field.name))


@cache
def load_pool(name: PoolName) -> Pool:
    """The pool of a kind of profile."""
    with (FOLDER / f"{name}.toml").open("rb") as file:
        data = tomllib.load(file)

    def plain(key: str) -> tuple[Wording, ...]:
        return _plain(data.get(key, ()))

    return Pool(
        surnames=plain("surnames"),
        given_names=_people(data["given_names"]),
        service_names=_people(data["service_names"]),
        cities=tuple(
            City(zh=zh, en=en, province=Wording(zh=in_zh, en=in_en), tier=CityTier(tier))
            for zh, en, in_zh, in_en, tier in data["cities"]
        ),
        cars=tuple(
            Car(zh=zh, en=en, type=CarType(kind), low=1000 * low, high=1000 * high)
            for zh, en, kind, low, high in data["cars"]
        ),
        occupations=tuple(
            Occupation(zh=zh, en=en, youngest=youngest, oldest=oldest)
            for zh, en, youngest, oldest in data["occupations"]
        ),
        families=tuple(
            Family(zh=zh, en=en, household=household) for zh, en, household in data["families"]
        ),
        scenarios=tuple(
            Scenario(zh=zh, en=en, household=household or None)
            for zh, en, household in data["scenarios"]
        ),
        speaking_styles=plain("speaking_styles"),
        objections={
            Category(category): Objection(
                details=_plain(entry["details"]), questions=_plain(entry["questions"])
            )
            for category, entry in data["objections"].items()
        },
        backgrounds=plain("backgrounds"),
        demands=plain("demands"),
        intents={IntentDepth(k): _plain(v) for k, v in data.get("intents", {}).items()},
        attitudes={Personality(k): _plain(v) for k, v in data.get("attitudes", {}).items()},
        situations=tuple(
            Situation(zh=zh, en=en, busy=busy) for zh, en, busy in data.get("situations", ())
        ),
        core_needs=plain("core_needs"),
        confusions=plain("confusions"),
    )


def find_city(name: str) -> City | None:
    """A city of either pool by its name in either language."""
    return load_pool("training").city(name) or load_pool("evaluation").city(name)


def find_situation(text: str) -> Situation | None:
    """A situation of the evaluation pool by its wording in either language."""
    pool = load_pool("evaluation").situations
    return next((entry for entry in pool if text in (entry.zh, entry.en)), None)


def remote_type(city: str, car_city: str) -> Remote:
    """How far apart two cities are by their names; unknown ones are in provinces of their own."""
    if city == car_city:
        return Remote.SAME_CITY
    home, away = find_city(city), find_city(car_city)
    if home is None or away is None or home.province != away.province:
        return Remote.CROSS_PROVINCE
    return Remote.SAME_CITY if home == away else Remote.SAME_PROVINCE


def _plain(entries: Sequence[Sequence[str]]) -> tuple[Wording, ...]:
    return tuple(Wording(zh=zh, en=en) for zh, en in entries)


def _people(entries: Sequence[Sequence[str]]) -> tuple[PersonName, ...]:
    return tuple(PersonName(zh=zh, en=en, gender=Gender(gender)) for zh, en, gender in entries)


def _wordings(value: Any) -> Iterator[Wording]:
    if isinstance(value, Wording):
        yield value
    elif isinstance(value, Objection):
        yield from _wordings(value.details + value.questions)
    elif isinstance(value, Mapping):
        yield from _wordings(tuple(value.values()))
    elif isinstance(value, tuple):
        for item in value:
            yield from _wordings(item)
