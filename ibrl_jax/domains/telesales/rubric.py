"""Table 11 by rule: which entries of the rubric an agent's utterance fires.

A detector knows the words, what the customer has asked for, what the agent has said before and, for
the stand-in customers and the sales judge, the lead record; without it (the customer's judge) any
value is believed. It is strict, so that it is hard to fool:

- B01 and B04 need the *asked* category and a value that is the lead record's; where the record has
  none, admitting it with an offer to find out (B03) is the answer;
- values of two or more categories in one turn are a list read aloud (B16) and answer nothing;
- a question that is passed over is B11, also with a true fact of another category (B08 where the
  turn pushes for the contact);
- what was said before in nearly the same words earns nothing, and each entry that pays does so a
  few times a call;
- a value that contradicts the record earns nothing here; it is the audit's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ibrl_jax.domains.telesales.cues import C, Claim, Reading, read
from ibrl_jax.domains.telesales.labels import Language, Rubric
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord, fact
from ibrl_jax.domains.telesales.profiles.terms import Category, VehicleCondition

B = Rubric


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Characters (zh: white space left out)."""

    brief: int  # up to here an utterance can be B17
    pitch: int  # from here it is B07 for somebody who is busy
    long: int  # from here it is B18 (Table 11)
    script: int  # from here it is B16


LENGTHS: Mapping[Language, Lengths] = {
    "zh": Lengths(brief=70, pitch=70, long=120, script=180),
    "en": Lengths(brief=210, pitch=210, long=360, script=540),
}

OVERLAP = 0.6
"""The share of an utterance's trigrams in the agent's own earlier turns above which it is stale."""

CAPS: Mapping[Rubric, int] = {
    B.B01: 4,
    B.B02: 1,
    B.B03: 2,
    B.B04: 3,
    B.B05: 1,
    B.B06: 2,
    B.B13: 1,
    B.B17: 4,
}
"""How often an entry that pays does so in one call."""

CLOSE = 0.02
"""Relative difference up to which a spoken number is the registered one."""

CONFLICT = 0.10
"""Relative difference above which it contradicts it."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How things stand when the agent speaks."""

    category: Category | None  # the question that waits for an answer
    topic: Category | None  # what was spoken of last
    opening: bool  # the customer does not know yet who is calling
    busy: bool  # the customer has just said that they are
    refused: bool  # the customer has refused the contact for good


@dataclass(frozen=True, kw_only=True)
class Rated:
    """What an utterance was worth. `answered` is None where no question waited."""

    hits: tuple[Rubric, ...]
    answered: bool | None
    invited: bool  # asks for the contact or sends an entry
    stale: bool  # said before in nearly these words
    reading: Reading


class Rater:
    """The rubric over one agent's utterances of one call, in order."""

    def __init__(self, language: Language, lead: LeadRecord | None) -> None:
        self.language: Language = language
        self._lead = lead
        self._heard: frozenset[str] = frozenset()
        self._paid: Counter[Rubric] = Counter()
        self._pushes = 0  # in a row, without news
        self._turns = 0

    def rate(self, words: str, calls: int, asked: Asked) -> Rated:
        """What the next utterance fires; `calls` is the number of tool calls in it."""
        reading, lengths = read(words, self.language), LENGTHS[self.language]
        dumped = len({claim.category for claim in reading.claims}) > 1
        stale = staleness(reading, self._heard) > OVERLAP
        invited = calls > 0 or "asks_contact" in reading.cues
        answer = answers(reading, asked.category, self._lead)
        answered = answer is not None and not dumped and not stale
        hits = self._earned(reading, asked, answer if answered else None, invited, stale or dumped)
        news = bool(set(hits) & {B.B01, B.B02, B.B03, B.B04, B.B05})
        self._pushes = self._pushes + 1 if invited and not news else 0
        if asked.category is not None and not answered and B.B02 not in hits:
            if invited:
                hits.append(B.B08)
            elif not any(claim.category is asked.category for claim in reading.claims):
                hits.append(B.B11)  # a wrong value of what was asked is no change of subject
        if asked.busy and reading.length >= lengths.pitch:
            hits.append(B.B07)
        if "pressure" in reading.cues:
            hits.append(B.B09)
        if self._pushes >= 3:
            hits.append(B.B10)
        if asked.refused and invited:
            hits.append(B.B12)
        if invited:
            hits.append(B.B15)
        if dumped or reading.length >= lengths.script or "written" in reading.cues:
            hits.append(B.B16)
        if reading.length >= lengths.long:
            hits.append(B.B18)
        self._heard |= reading.trigrams
        self._turns += 1
        waited = asked.category is not None
        return Rated(
            hits=tuple(sorted(hits)) or (B.B14,),
            answered=answered if waited else None,
            invited=invited,
            stale=stale,
            reading=reading,
        )

    def _earned(
        self,
        reading: Reading,
        asked: Asked,
        answer: tuple[Rubric, ...] | None,
        invited: bool,
        worthless: bool,
    ) -> list[Rubric]:
        """The entries that pay, within their caps."""
        cues, lengths = reading.cues, LENGTHS[self.language]
        if worthless or "pressure" in cues:
            return []
        found = list(answer or ())
        if asked.opening and {"identity", "source", "purpose"} <= cues:
            found.append(B.B02)
        passed_over = asked.category is not None and answer is None
        related = asked.topic is not None and asked.topic in reading.topics
        if "follow_up" in cues and "contact" in cues and related and not passed_over:
            found.append(B.B05)
        if "privacy" in cues and not passed_over and B.B06 not in found:
            found.append(B.B06)
        if answer and (invited or "next_step" in cues):
            found.append(B.B13)
        if (answer or B.B02 in found) and reading.length <= lengths.brief:
            found.append(B.B17)
        paid = [code for code in found if self._paid[code] < CAPS[code]]
        self._paid.update(paid)
        return paid


def answers(
    reading: Reading, category: Category | None, lead: LeadRecord | None
) -> tuple[Rubric, ...] | None:
    """The entries with which an utterance answers a question of a category; None if it does not.

    Without a lead record any value answers, and so does an offer to find out.
    """
    if category is None:
        return None
    if category is C.PRIVACY:
        return (B.B01, B.B06) if "privacy" in reading.cues else None
    values = [claim for claim in reading.claims if claim.category is category]
    checks = {"admit", "verify"} <= reading.cues and not values
    if lead is None:
        if not values:
            return (B.B03,) if checks else None
    elif fact(lead, category) is None:
        return (B.B03,) if checks else None
    else:
        right = any(agrees(value, lead) for value in values)
        if not right or any(contradicts(value, lead) for value in values):
            return None
    return (B.B01, B.B04) if "evidence" in reading.cues else (B.B01,)


def agrees(claim: Claim, lead: LeadRecord) -> bool:
    """Whether a claim is what the lead record has."""
    truth = fact(lead, claim.category)
    if truth is None:
        return False
    if isinstance(truth, str):
        return _plain(claim.value).startswith(_plain(truth))
    return _difference(claim, truth) <= (CLOSE if claim.category in _MEASURED else 0.0)


def contradicts(claim: Claim, lead: LeadRecord) -> bool:
    """Whether a claim and the lead record cannot both be true; a rounded number is no conflict."""
    truth = fact(lead, claim.category)
    if truth is None or agrees(claim, lead):
        return False
    if claim.category is C.CONDITION:  # scratches are no accident
        return VehicleCondition.REPAIRED in (truth, claim.value)
    if claim.category is C.REMOTE:
        return _plain(truth) not in _plain(claim.text) and len(_plain(claim.value)) > 1
    if isinstance(truth, str):
        return True
    if claim.category is C.OWNERSHIP:  # owners and transfers are counted one apart
        return _difference(claim, truth) * max(truth, 1.0) > 1.0
    return _difference(claim, truth) > (CONFLICT if claim.category in _MEASURED else 0.0)


def staleness(reading: Reading, heard: frozenset[str]) -> float:
    """The share of the trigrams of an utterance that earlier ones have had."""
    return len(reading.trigrams & heard) / len(reading.trigrams) if reading.trigrams else 0.0


_MEASURED = frozenset({C.PRICE, C.FEES, C.MILEAGE})


def _difference(claim: Claim, truth: float) -> float:
    assert isinstance(claim.value, float)
    return abs(claim.value - truth) / max(abs(truth), 1.0)


def _plain(text: object) -> str:
    return str(text).strip().lower().removesuffix("市")
