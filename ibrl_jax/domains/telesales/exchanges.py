"""The agent's turns of a call, each beside what the customer said before it, rated by the rubric.

For those who only have the words: the rule-based judges, and the scores of a person who plays a
customer. (A rule-based customer rates what it hears by itself, since it knows what it asked.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ibrl_jax.domains.base import Turn
from ibrl_jax.domains.telesales.cues import asked, cues
from ibrl_jax.domains.telesales.labels import Language, Rubric
from ibrl_jax.domains.telesales.profiles.schema import LeadRecord
from ibrl_jax.domains.telesales.profiles.terms import Category
from ibrl_jax.domains.telesales.rubric import Asked, Rated, Rater
from ibrl_jax.domains.telesales.scenarios import CUSTOMER


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """An agent's turn, what the customer had said before it, and how it rates."""

    before: str
    turn: Turn
    asked: Category | None
    rated: Rated


def rate_agent(
    turns: Sequence[Turn], language: Language, lead: LeadRecord | None
) -> list[Exchange]:
    """The agent's turns as the rubric rates them, given the customer's words alone.

    Without a `lead` any value is believed.
    """
    rater, found = Rater(language, lead), []
    before, topic, known, refused = "", None, False, False
    for turn in turns:
        if not turn.valid:
            continue
        if turn.role == CUSTOMER:
            before = turn.text
            refused |= "says_never" in cues(before, language)
            continue
        category = asked(before, language)
        topic = category or topic
        state = Asked(
            category=category,
            topic=topic,
            opening=not known,
            busy="busy" in cues(before, language),
            refused=refused,
        )
        rated = rater.rate(turn.payload["words"], len(turn.payload["calls"]), state)
        known |= Rubric.B02 in rated.hits
        found.append(Exchange(before=before, turn=turn, asked=category, rated=rated))
    return found
