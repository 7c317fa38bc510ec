"""Scripted sellers: a competent one, and those that try to get by without answering.

competent     says who calls, answers what is asked out of the record with something to check it by,
              admits what is missing, invites with a reason, then calls a tool
inviter       as the competent one, but sends an invitation after a yes and asks for no number
reader        as the inviter, but answers every question, in its prompt's own words
spammer       asks for the contact every turn and sends every entry
stuffer       puts all that the record has into every turn
rotator       states one true fact after another, whatever is asked
liar          answers what is asked, with invented values
polite        kind words, no content
hedger        never knows, always offers to find out
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from ibrl_jax.domains.base import Scenario, Turn
from ibrl_jax.domains.telesales.cues import asked, cues
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord, fact
from ibrl_jax.domains.telesales.profiles.terms import Availability, Category, VehicleCondition
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, lead_of
from ibrl_jax.domains.telesales.seller_words import WORDS, SellerPhrases
from ibrl_jax.domains.telesales.tools import Call, Tool, render_agent_turn
from ibrl_jax.domains.telesales.wording import clause, spoken


class Seller(ABC):
    """One agent in one call. It knows the lead record and what was said."""

    def __init__(self, lead: LeadRecord, rng: np.random.Generator) -> None:
        self.lead = lead
        self.rng = rng
        self.words: SellerPhrases = WORDS[lead.language]
        self.used: set[str] = set()

    @abstractmethod
    def speak(self, heard: str, index: int) -> str:
        """The next turn; `heard` is the customer's last reply, `index` counts own turns from 0."""

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next turn, given the whole record so far."""
        heard = next((turn.text for turn in reversed(turns) if turn.role == CUSTOMER), "")
        return self.speak(heard, sum(turn.role != CUSTOMER for turn in turns))

    def line(self, lines: Sequence[str], **values: str) -> str:
        """One of some lines, one that was not said before where there is one."""
        fresh = [line for line in lines if line not in self.used] or list(lines)
        chosen = fresh[int(self.rng.integers(len(fresh)))]
        self.used.add(chosen)
        return chosen.format(**values) if values else chosen

    def greeting(self) -> str:
        """Who calls, why, and what about."""
        name, car = self.lead.service.name, self.lead.target_car
        return self.line(self.words.greetings, name=name, car=car)

    def answer(self, category: Category, *, shown: bool) -> str:
        """What the record has on a category, or that it has nothing."""
        name = category.word(self.lead.language)
        if category is Category.PRIVACY:
            return self.line(self.words.promises)
        value = fact(self.lead, category)
        if value is None:
            return self.line(self.words.unknown, topic=name)
        said = self.line(
            self.words.facts[category], value=spoken(category, value, self.lead.language)
        )
        return said + (self.line(self.words.evidence) if shown else self.words.stop)


class Competent(Seller):
    """Listens, and is no master: now and then it talks past the question or shows nothing.

    `attention` is the share of questions that it takes in, `skill` of answers that come with
    something to check them by, `care` of calls in which it asks which number is the right one.
    """

    attention = 0.85
    skill = 0.4
    care = 0.3

    def __init__(self, lead: LeadRecord, rng: np.random.Generator) -> None:
        super().__init__(lead, rng)
        self.answered = self.invited = self.lost = 0
        self.topic: Category | None = None
        self.agreed = self.called = False

    def speak(self, heard: str, index: int) -> str:
        words = self.words
        if index == 0:
            return render_agent_turn(self.greeting())
        said_cues = cues(heard, self.lead.language)
        if "says_never" in said_cues or self.lost > 2:
            return render_agent_turn(self.line(words.farewells), ended=True)
        self.agreed |= "says_yes" in said_cues
        if self.called:
            return render_agent_turn(self.line(words.farewells), ended=True)
        if self.agreed:
            return self._add(heard)
        question = asked(heard, self.lead.language)
        if question is None:
            self.lost += 1
            return render_agent_turn(self._invite())
        self.lost = 0
        self.topic = question
        if self.rng.random() >= self.attention:
            return render_agent_turn(self.line(self.words.kind))
        said = self.answer(question, shown=bool(self.rng.random() < self.skill))
        self.answered += 1
        if self.answered >= 2 and self.invited < 3:
            said += self._gap + self._invite()
        return render_agent_turn(said)

    def _invite(self) -> str:
        self.invited += 1
        topic = self.topic or Category.PRICE
        return self.line(self.words.invitations, topic=topic.word(self.lead.language))

    def _add(self, heard: str) -> str:
        words = self.words
        other = re.search(r"1\d{10}", heard)
        if other:
            call = Call(tool=Tool.ADD_CONTACT, phone_number=other[0])
        elif words.by_invitation.search(heard):
            call = Call(tool=Tool.SEND_INVITATION)
        elif words.this_number.search(heard) or self.rng.random() >= self.care:
            call = Call(tool=Tool.ADD_CONTACT, phone_number=self.lead.phone_number)
        else:
            return render_agent_turn(self.line(words.asks_number))
        self.called = True
        return render_agent_turn(self.line(words.sends), [call])

    @property
    def _gap(self) -> str:
        return " " if self.lead.language == "en" else ""


class Inviter(Competent):
    """Listens, and leaves the number to the customer: an invitation opens in the account in use."""

    def _add(self, heard: str) -> str:
        self.called = True
        return render_agent_turn(self.line(self.words.sends), [Call(tool=Tool.SEND_INVITATION)])


class Reader(Inviter):
    """Listens closely, and answers with the very clause that its prompt has on the topic.

    A teacher for policies too small to put a fact into words of their own: what it says is there
    to be copied, the word before the value included, and it greets without a name.
    """

    attention = 1.0
    skill = 0.8

    def greeting(self) -> str:
        """Who calls and why: a name that no call of training has would come out as another's."""
        return self.line(self.words.plain_greetings)

    def answer(self, category: Category, *, shown: bool) -> str:
        if category is Category.PRIVACY:
            return self.line(self.words.promises)
        said = clause(self.lead, category)
        said = said[0].upper() + said[1:]
        if fact(self.lead, category) is None:
            return said + self.line(self.words.to_check)
        pause = {"zh": "，", "en": ""}[self.lead.language]
        return said + (pause + self.line(self.words.evidence) if shown else self.words.stop)


class Spammer(Seller):
    """Asks for the contact every turn, and sends an entry with it."""

    def speak(self, heard: str, index: int) -> str:
        number = Call(tool=Tool.ADD_CONTACT, phone_number=self.lead.phone_number)
        calls = [[number], [Call(tool=Tool.SEND_INVITATION)]]
        return render_agent_turn(
            self.line(self.words.pushes), calls[index % 2] if index > 0 else ()
        )


class Stuffer(Seller):
    """All that the record has, every turn, with the contact asked for."""

    def speak(self, heard: str, index: int) -> str:
        known = [c for c in Category if c is not Category.PRIVACY and fact(self.lead, c)]
        parts = [self.greeting()] + [self.answer(c, shown=True) for c in known]
        number = Call(tool=Tool.ADD_CONTACT, phone_number=self.lead.phone_number)
        said = "".join(parts) + self.line(self.words.promises) + self.line(self.words.pushes)
        return render_agent_turn(said, [number] if index > 3 else ())


class Rotator(Seller):
    """One true fact a turn, in a fixed order; from the fifth turn on it pushes, then calls."""

    def speak(self, heard: str, index: int) -> str:
        if index == 0:
            return render_agent_turn(self.greeting())
        known = [c for c in Category if c is not Category.PRIVACY and fact(self.lead, c)]
        said = self.answer(known[(index - 1) % len(known)], shown=True)
        number = Call(tool=Tool.ADD_CONTACT, phone_number=self.lead.phone_number)
        push = self.line(self.words.pushes) if index >= 5 else ""
        return render_agent_turn(said + push, [number] if index >= 8 else ())


class Liar(Competent):
    """Listens, and answers with what the record does not say."""

    def answer(self, category: Category, *, shown: bool) -> str:
        value = _LIES.get(category)
        if value is None:
            return self.line(self.words.unknown, topic=category.word(self.lead.language))
        if value == fact(self.lead, category):
            value = _OTHER_LIES[category]
        said = self.line(
            self.words.facts[category], value=spoken(category, value, self.lead.language)
        )
        return said + self.line(self.words.evidence)


class Polite(Competent):
    """Kind words whatever is asked; invites, and goes on as a competent one would."""

    def answer(self, category: Category, *, shown: bool) -> str:
        return self.line(self.words.kind)


class Hedger(Competent):
    """Does not know anything, and will find out."""

    def answer(self, category: Category, *, shown: bool) -> str:
        return self.line(self.words.unknown, topic=category.word(self.lead.language))


_LIES: Mapping[Category, int | str] = {
    Category.PRICE: 31_000,
    Category.FEES: 700,
    Category.MILEAGE: 1_200,
    Category.CONDITION: VehicleCondition.CLEAN,
    Category.WARRANTY: 60,
    Category.OWNERSHIP: 8,
    Category.BATTERY: 100,
    Category.FINANCE: 5,
    Category.AVAILABILITY: Availability.ON_SALE,
}
_OTHER_LIES: Mapping[Category, int | str] = {
    **_LIES,
    Category.CONDITION: VehicleCondition.REPAIRED,
    Category.AVAILABILITY: Availability.RESERVED,
}

SELLERS: Mapping[str, type[Seller]] = {
    "competent": Competent,
    "inviter": Inviter,
    "reader": Reader,
    "spammer": Spammer,
    "stuffer": Stuffer,
    "rotator": Rotator,
    "liar": Liar,
    "polite": Polite,
    "hedger": Hedger,
}


def seller(family: str, scenario: Scenario, rng: np.random.Generator) -> Seller:
    """A seller by its name. Raises KeyError for an unknown one."""
    return SELLERS[family](lead_of(scenario), rng)
