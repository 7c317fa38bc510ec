"""What a domain is: scenarios, the public record of a dialogue, and a referee that rules on it.

A domain knows nothing of policies, tokens or training. It says what a dialogue is about
(`Scenario`), which utterances are legal and when a dialogue ends (`Referee`), and what happened
(`Outcome`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np

Role = str
"""The name of a seat: `agent0`, `agent1` (Deal-or-No-Deal); `sales`, `customer` (TeleSales)."""

TurnEnd = Literal["stop", "length", "error"]
"""How an utterance ended: by its end-of-turn token, by the token limit, or it never came to be."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What one dialogue is about. `private[role]` is seen by that role alone.

    `cluster` identifies the unit of the statistics (Deal-or-No-Deal: the unordered scenario).
    """

    id: str
    cluster: str
    public: Mapping[str, Any]
    private: Mapping[Role, Any]

    def seen_by(self, role: Role) -> Scenario:
        """All that a role may know of it: what is public, and its own private part.

        It has no name, since an id may spell what is private to others.
        """
        return Scenario(id="", cluster="", public=self.public, private={role: self.private[role]})


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One utterance as the record holds it: never a thought, never a private observation in `text`.

    `action` is a label of the domain's own enum (`talk`, `propose`, ...; `malformed` when `valid`
    is false), `payload` its JSON-able content, `error_code` says why a turn is malformed, `flags`
    note tolerated oddities; `scripted` is the flag of a line that the domain itself spoke for a
    role. `private[role]` is JSON-able and that role's alone: no other's prompt or judge sees it.
    """

    role: Role
    text: str
    end: TurnEnd
    action: str
    valid: bool = True
    payload: Any = None
    error_code: str | None = None
    flags: tuple[str, ...] = ()
    private: Mapping[Role, Any] = field(default_factory=dict)

    @property
    def said(self) -> str:
        """The whole turn as its own role said it: `private[role]["said"]`, else what all see."""
        own = self.private.get(self.role)
        if isinstance(own, Mapping) and "said" in own:
            return str(own["said"])
        return self.text

    def seen_by(self, role: Role) -> Turn:
        """The turn without what is private to other roles."""
        if set(self.private) <= {role}:
            return self
        return replace(self, private={r: own for r, own in self.private.items() if r == role})


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What happened, verified by the domain's rules.

    `facts` is JSON-able; facts of a role are mappings by role. `joint` names those that follow from
    the private parts of several roles: they are for measurements, and no role's judge sees them.
    """

    end_reason: str
    success: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    offender: Role | None = None
    joint: tuple[str, ...] = ()


class Referee(Protocol):
    """Rules on one dialogue.

    `check` parses without recording; `play` records and may end the dialogue.
    """

    scenario: Scenario
    turns: Sequence[Turn]

    @property
    def to_move(self) -> Role | None:
        """The role that speaks next, or None once the dialogue has ended."""
        ...

    @property
    def outcome(self) -> Outcome | None:
        """What happened, or None while the dialogue goes on."""
        ...

    def check(self, role: Role, text: str, end: TurnEnd) -> Turn:
        """The turn that `text` would be.

        Nothing is recorded, so an invalid one can be sampled again.
        """
        ...

    def play(self, turn: Turn) -> None:
        """Record a turn. An invalid one ends the dialogue with its role as the offender."""
        ...

    def abort(self, reason: str) -> None:
        """End the dialogue without a result (an endpoint that failed, a run that stops)."""
        ...


class ScriptedPlayer(Protocol):
    """A rule-based counterpart in one dialogue."""

    def reply(self, turns: Sequence[Turn]) -> str:
        """The next utterance, given the whole public record so far (its own turns included)."""
        ...


class Adapter(Protocol):
    """How a model that speaks a role in a form of its own takes part in a dialogue."""

    name: str

    def system(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        """The system prompt before the role's next turn, in place of `Domain.prompt`.

        Scenario and turns are the role's own side of them (`seen_by`).
        """
        ...

    def own(self, turn: Turn) -> str:
        """How an earlier turn of the role's stands in its own history."""
        ...

    def utterance(self, text: str) -> str | None:
        """What the model wrote, as the referee reads it; None where its form is broken."""
        ...


@dataclass(frozen=True)
class Measure:
    """A number in the cells of a result table.

    `key` finds it in `Domain.tabulate` (and, if `compared`, in `Domain.measures`), `title` and
    `short` name it. `shown` ones stand in every layout of a table, the others in its long form.
    """

    key: str
    title: str
    short: str
    form: Literal["percent", "share", "signed", "count"]
    shown: bool = True
    ranked: bool = True
    """Whether more is better, and the best of a column is marked."""
    compared: bool = False
    """Whether each dialogue has a value: it has an interval then, and policies are compared by it.
    """
    first_try: bool = False
    """Whether it is also told as if no refused turn were ever sampled again: then it is 0."""


class Domain(Protocol):
    """One domain, built from a config."""

    name: str
    roles: tuple[Role, ...]

    @property
    def families(self) -> Mapping[Role, Sequence[str]]:
        """The scripted families that can hold each role's seat."""
        ...

    @property
    def interchangeable(self) -> bool:
        """Whether a policy of one role can hold the other's seat too, since both play one game."""
        ...

    @property
    def measured(self) -> Sequence[Measure]:
        """What tables hold, in their order; the first one is 0 or 1 a dialogue: its success."""
        ...

    @property
    def deed(self) -> tuple[str, str]:
        """What one policy does that has a success, and what several do (`agrees`, `agree`)."""
        ...

    @property
    def remark(self) -> str:
        """What has to stand wherever the domain's numbers do; empty if nothing has to."""
        ...

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """The scenarios of `train`, `val` or `test`; the three are disjoint by cluster."""
        ...

    def prompt(self, scenario: Scenario, role: Role) -> str:
        """The system prompt of a role: its rules, then its own private observation, no other's.

        `scenario` is the role's own side of it (`Scenario.seen_by`), or more than is needed.
        """
        ...

    def beside(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        """What a role is told beside the last of `turns`, its counterpart's, and nobody says.

        Scenario and turns are the role's own side of them (`seen_by`); empty if there is nothing.
        """
        ...

    def brief(self, scenario: Scenario, role: Role) -> str:
        """What a person in a role's seat is told: the game, the goal, what a line can be.

        In place of `prompt`, and no more than that tells; `scenario` is the role's own side of it.
        """
        ...

    def referee(self, scenario: Scenario, first: Role) -> Referee:
        """A fresh referee for a dialogue that `first` opens."""
        ...

    def scripted(
        self, family: str, scenario: Scenario, role: Role, rng: np.random.Generator
    ) -> ScriptedPlayer:
        """A scripted counterpart of a named family; raises UserError for an unknown one."""
        ...

    def adapter(self, name: str, role: Role) -> Adapter:
        """A form of its own in which a model may speak a role; UserError for an unknown one."""
        ...

    def exact(self, turn: Turn) -> bool:
        """Whether numbers in a turn have to be right to the digit, and weigh more in a start."""
        ...

    def told(self, outcome: Outcome) -> str:
        """What came of a dialogue, in a line for a person."""
        ...

    def refusal(self, turn: Turn) -> str:
        """Why a malformed turn is none and what would be legal, in a sentence for a person."""
        ...

    def reward(self, outcome: Outcome, role: Role) -> float:
        """What a role is paid for an outcome by the domain's rules."""
        ...

    def measures(
        self, scenario: Scenario, outcome: Outcome, role: Role
    ) -> Mapping[str, float] | None:
        """One dialogue's numbers for one seat, whose means are the table's (`agreement`, ...).

        None if the dialogue was aborted.
        """
        ...

    def tabulate(
        self, results: Sequence[tuple[Scenario, Outcome, Role]], planned: int
    ) -> Mapping[str, Any]:
        """The metrics of a table's cell, JSON-able, None where undefined.

        `planned` dialogues were wanted, whatever came of them.
        """
        ...
