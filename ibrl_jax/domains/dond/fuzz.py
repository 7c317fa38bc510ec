"""Random and mutated turns against the grammar and the referee; asserts everything that must hold.

    python -m ibrl_jax.domains.dond.fuzz 100000

plays that many turns and prints one line. The short form runs in the tests.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ibrl_jax.domains.base import Scenario, Turn
from ibrl_jax.domains.dond.grammar import Action, CloseForm, ErrorCode, Items, visible
from ibrl_jax.domains.dond.referee import DondReferee, EndReason, RefereeSettings, SelectRule
from ibrl_jax.domains.dond.scenarios import enumerate_ordered
from ibrl_jax.domains.dond.scoring import ROLES, board, complement, worth
from ibrl_jax.domains.dond.scripted import tagged

FRAGMENTS = (
    *("<try>", "</try>", "<selection>", "</selection>", "<disagree>", "<think>", "</think>"),
    *("<TRY>", "< try >", "<deal>", "\uff1ctry\uff1e", "&lt;try&gt;", "<eos>", "<|im_end|>"),
    *(
        "item0=1",
        "item1=0",
        "item2=2",
        "item3=1",
        "Item0=1",
        "item0 = 1",
        "item0:1",
        '{"item0": 1}',
    ),
    *("item1=-1", "item1=1.5", "item1=+1", "item2=02", "item2=two", "item0=\u0661", "item0=\uff11"),
    *("deal", "i want the rest", "THEM:", "\nother participant:", "```", "**", "\U0001f600"),
    *("\n", "\r\n", "\t", "\u00a0", "\u200b", "\x00", " ", ",", "0", "1", "9", "9" * 400, ""),
)


@dataclass(kw_only=True)
class Tally:
    """What a run has seen."""

    turns: int = 0
    dialogues: int = 0
    deals: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"{self.turns:,} turns in {self.dialogues:,} dialogues: {self.deals:,} deals, all of "
            f"them add up; {len(self.actions)} of {len(Action)} actions, {len(self.codes)} of "
            f"{len(ErrorCode)} error codes, {len(self.ends)} of {len(EndReason)} end reasons seen; "
            "no crash"
        )


def random_items(rng: random.Random, counts: Items) -> Items:
    """A legal allocation."""
    n0, n1, n2 = (rng.randint(0, count) for count in counts)
    return n0, n1, n2


def random_turn(rng: random.Random, turns: Sequence[Turn], counts: Items) -> str:
    """A turn that is often legal, sometimes a fitting answer, sometimes mutated or noise."""
    kind = rng.random()
    if kind < 0.08:
        return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(0, 12)))
    if kind < 0.14:
        return rng.choice(("deal", "what do you want", "i need item0", "<disagree>", "ok ?"))
    items = random_items(rng, counts)
    last = next((t.payload["items"] for t in reversed(turns) if t.payload), None)
    if last is not None and rng.random() < 0.6:
        items = complement(last, counts)
    selects = rng.random() < (0.05 if last is None else 0.5)
    text = tagged("selection" if selects else "try", items)
    if rng.random() < 0.3:
        head, _, _ = text.rpartition("<")
        text = f"{head}</{'selection' if selects else 'try'}>"
    if rng.random() < 0.3:
        text = f"i want this {text}"
    if rng.random() < 0.03:
        text = f"{text} or {tagged('try', random_items(rng, counts))}"
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2, 4))):
        text = mutate(rng, text)
    return text


def mutate(rng: random.Random, text: str) -> str:
    """One edit: insert, delete, replace, repeat, change case or a digit, wrap."""
    start, stop = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    edit = rng.randrange(9)
    if edit == 0:
        return text[:start] + rng.choice(FRAGMENTS) + text[start:]
    if edit == 1:
        return text[:start] + text[min(stop, start + 3) :]
    if edit == 2:
        return text[:start] + rng.choice(FRAGMENTS) + text[stop:]
    if edit == 3:
        return text + text[start:stop]
    if edit == 4:
        return text[:start] + text[start:stop].upper() + text[stop:]
    if edit == 5:
        return f"<think>{text[start:stop]}</think>{text}"
    if edit == 6:
        return f"```\n{text}\n```"
    if edit == 7:
        return text.replace("=1", rng.choice(("=7", "=01", "=-1", "=99", "=1.0")), 1)
    return text.replace(" ", "\n", 1) if rng.random() < 0.5 else text * 2


def check_turn(turn: Turn, raw: str, counts: Items) -> None:
    """Assert what holds of every ruled turn."""
    assert turn.text == visible(raw)
    assert visible(turn.text) == turn.text
    assert "</think>" not in turn.text
    assert turn.valid == (turn.action != Action.MALFORMED) == (turn.error_code is None)
    claims = turn.action in (Action.PROPOSE, Action.SELECT)
    assert claims == (turn.payload is not None)
    if claims:
        assert all(0 <= n <= c for n, c in zip(turn.payload["items"], counts, strict=True))


def check_outcome(referee: DondReferee) -> None:
    """Assert what holds of every finished dialogue; above all, that a deal adds up."""
    outcome, scenario = referee.outcome, referee.scenario
    assert outcome is not None
    assert referee.to_move is None
    facts, (counts, *values) = outcome.facts, board(scenario)
    assert outcome.success == (outcome.end_reason == EndReason.DEAL) == (facts["items"] is not None)
    assert (outcome.offender is not None) == (outcome.end_reason == EndReason.MALFORMED)
    if not outcome.success:
        assert facts["pareto"] is None
        assert set(facts["points"].values()) == {0}
        return
    items = [facts["items"][role] for role in ROLES]
    assert all(a >= 0 and b >= 0 and a + b == c for a, b, c in zip(*items, counts, strict=True))
    assert [facts["points"][r] for r in ROLES] == [
        worth(n, v) for n, v in zip(items, values, strict=True)
    ]
    assert sum(facts["points"].values()) <= facts["first_best"]
    first, second = referee.turns[-2:]
    assert first.action == second.action == Action.SELECT
    assert facts["items"][second.role] == second.payload["items"]


def play_one(
    rng: random.Random, scenario: Scenario, settings: RefereeSettings, tally: Tally
) -> None:
    """One dialogue; a malformed turn is mostly tried again, and sometimes played."""
    referee = DondReferee(scenario, rng.choice(ROLES), settings)
    counts, *_ = board(scenario)
    while (role := referee.to_move) is not None:
        raw = random_turn(rng, referee.turns, counts)
        end = rng.choices(("stop", "length", "error"), (0.98, 0.01, 0.01))[0]
        before = len(referee.turns)
        turn = referee.check(role, raw, end)
        assert len(referee.turns) == before
        assert referee.outcome is None
        check_turn(turn, raw, counts)
        tally.turns += 1
        tally.actions[turn.action] += 1
        if turn.error_code is not None:
            tally.codes[turn.error_code] += 1
        if turn.valid or rng.random() < 0.2:
            referee.play(turn)
        elif rng.random() < 0.01:
            referee.abort("fuzz")
    check_outcome(referee)
    assert referee.outcome is not None
    tally.dialogues += 1
    tally.deals += referee.outcome.success
    tally.ends[referee.outcome.end_reason] += 1


def main(turns: int, seed: int) -> Tally:
    """Play at least `turns` turns under all rules; raises AssertionError on a fault."""
    rng, tally = random.Random(seed), Tally()
    scenarios = enumerate_ordered(4)
    rules: tuple[SelectRule, ...] = ("any_try", "last_try")
    closes: tuple[CloseForm, ...] = ("either", "literal")
    while tally.turns < turns:
        settings = RefereeSettings(
            horizon_turns=rng.choice((3, 8, 20)),
            select_rule=rng.choice(rules),
            close=rng.choice(closes),
        )
        play_one(rng, rng.choice(scenarios), settings, tally)
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Fuzz the Deal-or-No-Deal grammar and referee.")
    parser.add_argument("turns", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(main(arguments.turns, arguments.seed))
