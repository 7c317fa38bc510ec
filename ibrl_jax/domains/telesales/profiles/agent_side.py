"""Draws of what the agent's side holds: who calls, and what is registered about the car."""

from __future__ import annotations

from ibrl_jax.domains.telesales.labels import Language
from ibrl_jax.domains.telesales.profiles.draws import Draws
from ibrl_jax.domains.telesales.profiles.pools import Car, Pool
from ibrl_jax.domains.telesales.profiles.schema import Money, Service, Vehicle
from ibrl_jax.domains.telesales.profiles.terms import (
    WITH_BATTERY,
    Availability,
    VehicleCondition,
)

PRESENT_YEAR = 2026
"""The year that the calls take place in, by which cars have an age."""

_MISSING = 0.2
"""Probability that a fact of the car is not registered, so that the agent has to check."""

_MISSING_PRICE = 0.05


def draw_phone(draws: Draws) -> str:
    """Eleven digits that begin with 10, as nobody's mobile number does."""
    return f"10{draws.integer(0, 999_999_999):09d}"


def draw_service(draws: Draws, pool: Pool, language: Language) -> Service:
    person = draws.pick(pool.service_names)
    return Service(name=person[language], gender=person.gender, phone=draw_phone(draws))


def draw_price(draws: Draws, car: Car) -> int:
    """What the car costs: whole thousands of yuan within what its series usually costs."""
    return draws.integer(car.low, car.high, 1000)


def draw_range(draws: Draws, price: int) -> Money:
    """A range in whole ten thousands of yuan that the price lies in."""
    width = 20_000 if price < 100_000 else 30_000 if price < 160_000 else 50_000
    low = price // 10_000 * 10_000 - 10_000 * draws.integer(0, width // 10_000 - 1)
    return Money(low=max(low, 10_000), high=max(low, 10_000) + width)


def draw_vehicle(draws: Draws, car: Car, price: int) -> Vehicle:
    """The registered facts, each of which may be missing."""
    year = draws.integer(PRESENT_YEAR - 9, PRESENT_YEAR - 2)
    age = PRESENT_YEAR - year
    mileage = max(8_000, round(age * draws.uniform(8_000, 18_000) / 1000) * 1000)
    expired = draws.chance(0.15 if age <= 3 else 0.6)
    months = 0 if expired else draws.integer(6, 36 if age <= 3 else 18, 3)
    facts = {
        "fees": draws.integer(2_000, 6_000, 100),
        "mileage": mileage,
        "condition": draws.weighted(
            {
                VehicleCondition.CLEAN: 0.6,
                VehicleCondition.MINOR: 0.28,
                VehicleCondition.REPAIRED: 0.12,
            }
        ),
        "warranty_months": months,
        "owners": draws.weighted({1: 0.6, 2: 0.3, 3: 0.1}),
        "battery_percent": draws.integer(82, 97),
        "down_payment_percent": draws.pick((15, 20, 30, 40)),
        "availability": draws.weighted(
            {Availability.ON_SALE: 0.86, Availability.RESERVED: 0.12, Availability.SOLD: 0.02}
        ),
    }
    missing = {name: draws.chance(_MISSING) for name in facts}
    missing["battery_percent"] |= car.type not in WITH_BATTERY
    known = {name: None if missing[name] else value for name, value in facts.items()}
    return Vehicle.model_validate(
        {
            "registered": year,
            "price": None if draws.chance(_MISSING_PRICE) else price,
            **known,
        }
    )
