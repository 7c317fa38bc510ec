"""Deal-or-No-Deal as a `Domain`: scenarios, prompts, referee, scripted counterparts and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ibrl_jax.domains.base import Adapter, Measure, Outcome, Role, Scenario, Turn
from ibrl_jax.domains.dond import person, scripted_development, scripted_fresh, scripted_heldout
from ibrl_jax.domains.dond.data import load_rows
from ibrl_jax.domains.dond.grammar import Action, CloseForm, ErrorCode
from ibrl_jax.domains.dond.metrics import MEASURES, Result, summarise
from ibrl_jax.domains.dond.prompts import load_prompt
from ibrl_jax.domains.dond.referee import DondReferee, EndReason, RefereeSettings, SelectRule
from ibrl_jax.domains.dond.refusals import REFUSALS
from ibrl_jax.domains.dond.scenarios import (
    SPLITS,
    check_disjoint,
    enumerated_splits,
    one_order_each,
)
from ibrl_jax.domains.dond.scoring import POINTS, ROLES, board
from ibrl_jax.domains.dond.scripted import Negotiator, Seat
from ibrl_jax.errors import UserError

DEVELOPMENT_FAMILIES: tuple[str, ...] = tuple(scripted_development.FAMILIES)
FRESH_FAMILIES: tuple[str, ...] = tuple(scripted_fresh.FAMILIES)
HELD_OUT_FAMILIES: tuple[str, ...] = (*scripted_heldout.FAMILIES, *FRESH_FAMILIES)
FAMILIES = scripted_development.FAMILIES | scripted_heldout.FAMILIES | scripted_fresh.FAMILIES
ROWS_1000 = 1000

TestMode = Literal["test200x5", "rows1000"]
"""How the original test split becomes scenarios: its 200 distinct ones, or its first 1,000 rows."""


@dataclass(frozen=True, kw_only=True)
class DondSettings:
    """What a Deal-or-No-Deal run can set.

    horizon_turns     utterances until the turn limit (10 rounds: 20); a deal needs at least 3
    select_rule       what a first selection needs
    close             legal closing tags
    penalty_malformed what ending a dialogue by a malformed turn costs, on the scale of the reward
    prompt            `full`, `short`, or a folder that holds a `role.txt`
    data_dir          folder of the original files; None: scenarios are enumerated
    test_mode         `test200x5` (200 scenarios, 5 seeds each) or `rows1000`; with `data_dir` only
    max_count         largest count of an item in the enumeration
    split_seed        seed of the enumeration's splits, and of which side sits where in val and test
    split_fractions   shares of train, val and test in the enumeration; they add up to 1
    """

    horizon_turns: int
    select_rule: SelectRule
    close: CloseForm
    penalty_malformed: float
    prompt: str
    data_dir: str | None
    test_mode: TestMode
    max_count: int
    split_seed: int
    split_fractions: tuple[float, float, float]


class DealOrNoDeal:
    """The domain, built once a run.

    Reads the files or enumerates, and checks that the splits are disjoint.

    Raises UserError for settings, files or prompts that cannot be used.
    """

    def __init__(self, settings: DondSettings):
        _check(settings)
        self.name: str = "dond"
        self.roles: tuple[Role, ...] = ROLES
        self.settings = settings
        self._template = load_prompt(settings.prompt)
        self._referee = RefereeSettings(
            horizon_turns=settings.horizon_turns,
            select_rule=settings.select_rule,
            close=settings.close,
        )
        self._splits = _load_splits(settings)
        check_disjoint(self._splits)

    @property
    def families(self) -> Mapping[Role, Sequence[str]]:
        """Every family can hold either seat."""
        return dict.fromkeys(ROLES, (*DEVELOPMENT_FAMILIES, *HELD_OUT_FAMILIES))

    @property
    def interchangeable(self) -> bool:
        """Both seats play one game."""
        return True

    @property
    def measured(self) -> Sequence[Measure]:
        """What tables hold."""
        return MEASURES

    @property
    def deed(self) -> tuple[str, str]:
        """What a success is called."""
        return "agrees", "agree"

    @property
    def remark(self) -> str:
        """Nothing: points are verified by rules."""
        return ""

    def scenarios(self, split: str) -> Sequence[Scenario]:
        """The scenarios of `train`, `val` or `test`, disjoint by cluster.

        From files: every row of train (a scenario as often as it was played), the distinct
        scenarios of val, and test by `test_mode`. Enumerated: both orders in train, one order in
        val and test.
        """
        if split not in self._splits:
            raise UserError(f"There is no split {split!r}; the splits are {', '.join(SPLITS)}.")
        return self._splits[split]

    def prompt(self, scenario: Scenario, role: Role) -> str:
        """The system prompt of a role: the rules first, its own counts and values last."""
        return self._template.render(scenario, role)

    def brief(self, scenario: Scenario, role: Role) -> str:
        """The game in words, and lines that are legal in it."""
        return person.brief(scenario, role, self._referee)

    def referee(self, scenario: Scenario, first: Role) -> DondReferee:
        """A fresh referee for a dialogue that `first` opens."""
        return DondReferee(scenario, first, self._referee)

    def scripted(
        self, family: str, scenario: Scenario, role: Role, rng: np.random.Generator
    ) -> Negotiator:
        """A negotiator of a development or held-out family; raises UserError for an unknown one."""
        if family not in FAMILIES:
            raise UserError(
                f"There is no scripted family {family!r} in Deal-or-No-Deal; those for development "
                f"are {', '.join(DEVELOPMENT_FAMILIES)}, the held-out ones "
                f"{', '.join(HELD_OUT_FAMILIES)}."
            )
        counts, *sides = board(scenario)
        seat = Seat(
            role=role,
            counts=counts,
            values=sides[ROLES.index(role)],
            horizon=self.settings.horizon_turns,
        )
        return FAMILIES[family](seat, rng)

    def adapter(self, name: str, role: Role) -> Adapter:
        """None: whoever speaks, speaks plain text."""
        raise UserError(f"{role} has no form {name!r} in Deal-or-No-Deal; it speaks plain text.")

    def beside(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        """Nothing: all that a role knows is in its prompt and was said."""
        del scenario, role, turns
        return ""

    def exact(self, turn: Turn) -> bool:
        """A selection's numbers."""
        return turn.action == Action.SELECT

    def told(self, outcome: Outcome) -> str:
        """How it ended, and the points of each seat."""
        return person.told(outcome)

    def refusal(self, turn: Turn) -> str:
        """By its error code."""
        return REFUSALS[ErrorCode(turn.error_code)]

    def reward(self, outcome: Outcome, role: Role) -> float:
        """Own points / 10 on a deal, minus the penalty for a malformed end of one's own, else 0.

        Raises ValueError for an aborted dialogue, which has no result to pay for.
        """
        if outcome.end_reason == EndReason.ABORTED:
            raise ValueError("an aborted dialogue has no reward; it counts as failed")
        if outcome.success:
            return outcome.facts["points"][role] / POINTS
        return -self.settings.penalty_malformed if outcome.offender == role else 0.0

    def measures(self, scenario: Scenario, outcome: Outcome, role: Role) -> dict[str, float] | None:
        """Agreement (0 or 1) and points of the total (0 without a deal); None if aborted."""
        result = Result.of(scenario, outcome, role)
        if not result.scored:
            return None
        return {
            "agreement": float(result.agreed),
            "expected_utility": result.points / result.total if result.agreed else 0.0,
        }

    def tabulate(
        self, results: Sequence[tuple[Scenario, Outcome, Role]], planned: int
    ) -> dict[str, Any]:
        """The metrics of `metrics.summarise`, under the names that tables use."""
        found = summarise((Result.of(*result) for result in results), asked=planned)
        return {
            "n": found.scored,
            "planned": found.asked,
            "coverage": found.coverage,
            "agreement": found.agreement,
            "own_utility": found.own_utility,
            "joint_value": found.joint_value,
            "pareto": found.pareto,
            "expected_utility": found.expected_utility,
            "turns": found.turns,
            "format_failures": {side: dict(codes) for side, codes in found.failures.items()},
            "end_reasons": dict(found.end_reasons),
            "flags": dict(found.flags),
        }


def _load_splits(settings: DondSettings) -> dict[str, Sequence[Scenario]]:
    if settings.data_dir is None:
        return dict(
            enumerated_splits(
                max_count=settings.max_count,
                seed=settings.split_seed,
                fractions=settings.split_fractions,
            )
        )
    rows = {
        split: [row.scenario for row in load_rows(settings.data_dir, split)] for split in SPLITS
    }
    if settings.test_mode == "rows1000":
        if len(rows["test"]) < ROWS_1000:
            raise UserError(
                f"config.dond.test_mode=rows1000 needs {ROWS_1000} rows in the test file of "
                f"{settings.data_dir}, which has {len(rows['test'])}."
            )
        test: Sequence[Scenario] = rows["test"][:ROWS_1000]
    else:
        test = one_order_each(rows["test"], settings.split_seed)
    return {
        "train": rows["train"],
        "val": one_order_each(rows["val"], settings.split_seed),
        "test": test,
    }


def _check(settings: DondSettings) -> None:
    if settings.horizon_turns < 3:
        raise UserError(
            f"config.dond.horizon_turns is {settings.horizon_turns}; "
            "a try and two selections need 3."
        )
    for field, value, legal in (
        ("select_rule", settings.select_rule, ("any_try", "last_try")),
        ("close", settings.close, ("either", "literal")),
        ("test_mode", settings.test_mode, ("test200x5", "rows1000")),
    ):
        if value not in legal:
            raise UserError(
                f"config.dond.{field} is {value!r}; it must be one of {', '.join(legal)}."
            )
    if settings.penalty_malformed < 0:
        raise UserError(
            f"config.dond.penalty_malformed is {settings.penalty_malformed}; "
            "it is subtracted, so it must be 0 or more."
        )
    if not 2 <= settings.max_count <= 5:
        raise UserError(f"config.dond.max_count is {settings.max_count}; it must be 2 to 5.")
