"""Scripted families: legal whatever happens, blind to the other side, and each with its own way."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ibrl_jax.domains.dond import scripted_development, scripted_fresh, scripted_heldout
from ibrl_jax.domains.dond.domain import (
    DEVELOPMENT_FAMILIES,
    HELD_OUT_FAMILIES,
    DealOrNoDeal,
    DondSettings,
)
from ibrl_jax.domains.dond.fuzz import random_turn
from ibrl_jax.domains.dond.scenarios import make_scenario
from ibrl_jax.domains.dond.scoring import ROLES, board, other
from ibrl_jax.domains.dond.scripted import tagged, vocabulary
from ibrl_jax.domains.dond.selfplay import family_matrix, format_matrix, selfplay

FAMILIES = DEVELOPMENT_FAMILIES + HELD_OUT_FAMILIES
ALL = scripted_development.FAMILIES | scripted_heldout.FAMILIES | scripted_fresh.FAMILIES


def domain(horizon: int = 8, select: Any = "last_try", close: Any = "literal") -> DealOrNoDeal:
    return DealOrNoDeal(
        DondSettings(
            horizon_turns=horizon,
            select_rule=select,
            close=close,
            penalty_malformed=0.2,
            prompt="short",
            data_dir=None,
            test_mode="test200x5",
            max_count=4,
            split_seed=0,
            split_fractions=(0.8, 0.1, 0.1),
        )
    )


DOMAIN = domain()
SCENARIOS = DOMAIN.scenarios("val")


@pytest.mark.parametrize(
    "horizon, select", [(3, "any_try"), (8, "any_try"), (8, "last_try"), (20, "last_try")]
)
def test_no_family_ever_plays_a_malformed_or_flagged_turn(horizon, select):
    played = domain(horizon, select)
    for k, (a, b) in enumerate(product(FAMILIES, repeat=2)):
        for scenario in SCENARIOS[k : k + 2]:
            referee = selfplay(played, a, b, scenario, ROLES[k % 2], k)
            assert all(turn.valid for turn in referee.turns)
            assert {flag for turn in referee.turns for flag in turn.flags} <= {"not_last_try"}
            assert len(referee.turns) <= horizon


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FAMILIES), st.randoms(use_true_random=False), st.sampled_from((5, 8, 20)))
def test_families_answer_any_legal_counterpart_with_legal_turns(family, rng, horizon):
    wild = domain(horizon, "any_try", "either")
    scenario = rng.choice(SCENARIOS)
    role = rng.choice(ROLES)
    referee = wild.referee(scenario, rng.choice(ROLES))
    bot = wild.scripted(family, scenario, role, np.random.default_rng(rng.randrange(1000)))
    while referee.to_move is not None:
        if referee.to_move == role:
            turn = referee.check(role, bot.reply(referee.turns), "stop")
            assert turn.valid
        else:
            text = random_turn(rng, referee.turns, board(scenario)[0])
            turn = referee.check(other(role), text, "stop")
            if not turn.valid:
                turn = referee.check(other(role), "hm", "stop")
        referee.play(turn)


def test_a_negotiator_is_blind_to_the_other_sides_values():
    counts, own = (2, 2, 1), (1, 3, 2)
    for family in FAMILIES:
        replies = []
        for theirs in ((4, 1, 0), (0, 4, 2), (3, 2, 0)):
            scenario = make_scenario(counts, own, theirs)
            bot = DOMAIN.scripted(family, scenario, "agent0", np.random.default_rng(1))
            referee = DOMAIN.referee(scenario, "agent0")
            said = []
            for answer in ("hi", tagged("try", (2, 1, 1)), tagged("try", (2, 1, 0))):
                said.append(bot.reply(referee.turns))
                referee.play(referee.check("agent0", said[-1], "stop"))
                if referee.to_move is None or "<selection>" in said[-1]:
                    break
                referee.play(referee.check("agent1", answer, "stop"))
            replies.append(said)
        assert replies[0] == replies[1] == replies[2]


def test_selfplay_is_a_function_of_its_seed():
    scenario = SCENARIOS[3]
    runs = [
        [t.text for t in selfplay(DOMAIN, "wanderer", "splitter", scenario, "agent0", seed).turns]
        for seed in (1, 1, 2, 3, 4)
    ]
    assert runs[0] == runs[1]
    assert any(run != runs[0] for run in runs[2:])


def test_development_families_mostly_agree_early_and_well():
    matrix = family_matrix(DOMAIN, DEVELOPMENT_FAMILIES, SCENARIOS[:40], 0)
    cells = list(matrix.values())
    mean = lambda name: sum(getattr(s, name) for s in cells) / len(cells)  # noqa: E731
    assert len(cells) == len(DEVELOPMENT_FAMILIES) ** 2
    assert mean("agreement") > 0.9
    assert 0.6 < mean("own_utility") < 0.75
    assert 4 < mean("turns") < 6.5
    assert all(s.seats == {"agent0": 40, "agent1": 40} for s in cells)
    assert format_matrix(matrix).count("\n") == len(DEVELOPMENT_FAMILIES)


def test_greedy_never_yields_and_takes_most():
    matrix = family_matrix(DOMAIN, ("greedy", "conceder"), SCENARIOS[:40], 0)
    greedy: Any
    conceder: Any
    greedy, conceder = matrix["greedy", "conceder"], matrix["conceder", "greedy"]
    assert greedy.own_utility > 0.8 > conceder.own_utility
    assert greedy.agreement == conceder.agreement < 0.9
    for k, scenario in enumerate(SCENARIOS[:20]):
        turns = selfplay(DOMAIN, "greedy", "fair", scenario, "agent0", k).turns
        asked = [t.payload["items"] for t in turns if t.role == "agent0" and t.action == "propose"]
        assert all(items == asked[0] for items in asked)


def opening(family, values, counts=(2, 2, 1), later=0):
    """What a family asks for first, or after `later` exchanges with a stubborn counterpart."""
    scenario = make_scenario(counts, values, (4, 1, 0))
    wide = domain(20)
    bot = wide.scripted(family, scenario, "agent0", np.random.default_rng(0))
    referee = wide.referee(scenario, "agent1")
    for _ in range(later + 1):
        referee.play(referee.check("agent1", tagged("try", counts), "stop"))
        referee.play(referee.check("agent0", bot.reply(referee.turns), "stop"))
    return bot, referee.turns[-1].payload["items"]


def test_lexi_asks_for_all_of_its_dearest_item_to_the_end():
    for later in range(8):
        assert opening("lexi", (1, 3, 2), later=later)[1][1] == 2


def test_mirror_asks_for_as_many_units_as_it_was_asked_for():
    assert sum(opening("mirror", (1, 3, 2))[1]) == 5


def test_boulware_yields_late_and_conceder_steadily():
    worths = {}
    for family in ("boulware", "conceder"):
        path = [opening(family, (1, 3, 2), later=k) for k in range(9)]
        worths[family] = [bot.points(items) for bot, items in path]
    assert worths["boulware"][4] >= 9 > worths["boulware"][8]
    assert worths["conceder"][4] < worths["boulware"][4]
    for path in worths.values():
        assert path == sorted(path, reverse=True)


def test_fair_opens_near_half_and_takes_half():
    bot, items = opening("fair", (1, 3, 2))
    assert 6 <= bot.points(items) <= 7
    scenario = make_scenario((2, 2, 1), (1, 3, 2), (4, 1, 0))
    referee = DOMAIN.referee(scenario, "agent1")
    referee.play(referee.check("agent1", tagged("try", (2, 1, 0)), "stop"))  # leaves 3 + 2 points
    fair = DOMAIN.scripted("fair", scenario, "agent0", np.random.default_rng(0))
    assert fair.reply(referee.turns) == tagged("selection", (0, 1, 1))


def test_vocabulary_is_small_and_held_out_phrases_are_their_own_of_known_words():
    development = vocabulary(scripted_development.FAMILIES)
    assert 60 <= len(development) <= 110
    assert vocabulary(scripted_heldout.FAMILIES) <= development
    assert vocabulary(scripted_fresh.FAMILIES) <= development
    phrases = {name: set(family.phrases.all()) for name, family in ALL.items()}
    for a in HELD_OUT_FAMILIES:
        for b in FAMILIES:
            assert a == b or not phrases[a] & phrases[b]
    for phrase in set().union(*phrases.values()):
        assert phrase == phrase.lower()
        assert 1 <= len(phrase.split()) <= 6
        assert phrase.replace(" ", "").isalpha()
