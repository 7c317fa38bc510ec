"""What a family of rule-based customers has to be able to say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ibrl_jax.domains.telesales.profiles.terms import Category, Memory


@dataclass(frozen=True, kw_only=True)
class Phrases:
    """The lines of a family. `{number}` stands for the number of the customer's account."""

    who: tuple[str, ...]  # asks who is calling
    memory: Mapping[Memory, tuple[str, ...]]  # what is left of the lead
    busy: tuple[str, ...]
    questions: Mapping[Category, tuple[str, ...]]
    about: Mapping[Category, tuple[str, ...]] = field(default_factory=dict)  # questions as well
    frames: tuple[str, ...] = ()  # around a question now and then: `{}` is the question
    again: tuple[str, ...]  # before a question that was passed over
    exactly: tuple[str, ...]  # before a question whose answer did not convince
    noted: tuple[str, ...]  # after an answer
    waiting: tuple[str, ...]  # after an offer to find out
    what_for: tuple[str, ...]  # what the contact is for
    undecided: tuple[str, ...]
    not_now: tuple[str, ...]
    never: tuple[str, ...]
    bye: tuple[str, ...]  # hangs up
    agreed: tuple[str, ...]
    this_number: tuple[str, ...]
    other_number: tuple[str, ...]
    by_invitation: tuple[str, ...]
    still_waiting: tuple[str, ...]  # agreed, and nothing came
    not_found: tuple[str, ...]  # what came leads nowhere
    added: tuple[str, ...]

    def asks(self) -> dict[str, Category]:
        """Every question, and what it is about."""
        tables = (self.questions, self.about)
        return {line: c for table in tables for c, lines in table.items() for line in lines}

    def all(self) -> tuple[str, ...]:
        """Every line."""
        found: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            for lines in value.values() if isinstance(value, Mapping) else (value,):
                found.extend(lines)
        return tuple(found)


def in_sentences(
    sentences: tuple[str, ...], nouns: Mapping[Category, tuple[str, ...]]
) -> dict[Category, tuple[str, ...]]:
    """Every noun in every sentence."""
    filled = {c: [s.format(n) for n in found for s in sentences] for c, found in nouns.items()}
    return {c: tuple(s[0].upper() + s[1:] for s in found) for c, found in filled.items()}
