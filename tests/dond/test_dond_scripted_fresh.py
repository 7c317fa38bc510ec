"""The fresh held-out families: each its own way, in known words, and in no training."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ibrl_jax.config import load
from ibrl_jax.dialogue.tokenizers import EMBEDDED, load_tokenizer
from ibrl_jax.domains.dond import scripted_fresh
from ibrl_jax.domains.dond.domain import (
    DEVELOPMENT_FAMILIES,
    FRESH_FAMILIES,
    HELD_OUT_FAMILIES,
    DealOrNoDeal,
    DondSettings,
)
from ibrl_jax.domains.dond.scenarios import make_scenario
from ibrl_jax.domains.dond.scripted import tagged
from ibrl_jax.domains.dond.selfplay import family_matrix

CONFIGS = Path(__file__).parents[2] / "configs"
DOMAIN = DealOrNoDeal(
    DondSettings(
        horizon_turns=20,
        select_rule="last_try",
        close="literal",
        penalty_malformed=0.2,
        prompt="short",
        data_dir=None,
        test_mode="test200x5",
        max_count=4,
        split_seed=0,
        split_fractions=(0.8, 0.1, 0.1),
    )
)
COUNTS, VALUES = (2, 2, 1), (1, 3, 2)


def asked(family, tries, counts=COUNTS, values=VALUES, seed=0):
    """The speaker, and all that it says to a counterpart that opens with these tries in turn."""
    scenario = make_scenario(counts, values, (4, 1, 0))
    bot = DOMAIN.scripted(family, scenario, "agent0", np.random.default_rng(seed))
    referee = DOMAIN.referee(scenario, "agent1")
    for items in tries:
        text = "hi" if items is None else tagged("try", items)
        referee.play(referee.check("agent1", text, "stop"))
        referee.play(referee.check("agent0", bot.reply(referee.turns), "stop"))
    return bot, [turn for turn in referee.turns if turn.role == "agent0"]


def offers(turns):
    return [tuple(turn.payload["items"]) for turn in turns if turn.action == "propose"]


def test_anchor_opens_with_everything_and_yields_more_to_who_yields_more():
    stubborn = [(2, 2, 1)] * 4
    yielding = [(2, 2, 1), (2, 1, 1), (2, 1, 0), (2, 1, 0)]
    bot, turns = asked("anchor", stubborn)
    assert bot.points(offers(turns)[0]) == 10
    _, more = asked("anchor", yielding)
    assert bot.points(offers(more)[2]) < bot.points(offers(turns)[2])


def test_anchor_never_asks_again_for_what_it_gave_up():
    for seed in range(5):
        _, turns = asked("anchor", [(2, 2, 1), (2, 1, 1), (1, 2, 1), (2, 2, 0)] * 2, seed=seed)
        for before, after in pairwise(offers(turns)):
            assert all(b <= a for a, b in zip(before, after, strict=True))


def test_tally_asks_by_number_and_takes_half_of_the_units_whatever_they_are_worth():
    _, turns = asked("tally", [(2, 2, 1)] * 4)
    assert [sum(items) for items in offers(turns)] == [5, 4, 3, 3]
    bot, turns = asked("tally", [(0, 2, 0)])  # leaves three of five units, for 4 of 10 points
    assert turns[0].action == "select"
    assert bot.points((2, 0, 1)) == 4
    _, turns = asked("tally", [(1, 0, 1)], counts=(2, 4, 1), values=(1, 0, 8))
    assert turns[0].action == "select"  # five units worth a single point
    _, turns = asked("tally", [(1, 1, 1)])  # two of five, though these are worth 4
    assert turns[0].action == "propose"


def test_patient_talks_then_holds_until_half_of_the_time_is_gone():
    _, turns = asked("patient", [(2, 2, 1)] * 9)
    assert turns[0].action == "talk"
    held = offers(turns)[:4]  # turns 3 to 9 of 20
    assert len(set(held)) == 1
    worths = [3 * n1 + n0 + 2 * n2 for n0, n1, n2 in offers(turns)]
    assert worths == sorted(worths, reverse=True)
    assert worths[-1] < worths[0]


def test_swapper_trades_its_cheapest_unit_for_a_dear_one():
    # Theirs leaves (2, 0, 1) for 4 points: a unit at 1 for one at 3 makes 6, and again 8.
    for seed in range(5):
        bot, turns = asked("swapper", [(0, 2, 0)], seed=seed)
        if turns[0].action == "propose":
            assert offers(turns)[0] in {(1, 1, 1), (0, 2, 1)}
            assert sum(offers(turns)[0]) == 3
            assert bot.points(offers(turns)[0]) in {6, 8}


def test_swapper_with_nothing_to_give_asks_for_dear_units():
    bot, turns = asked("swapper", [None, (2, 2, 1)])
    assert bot.points(offers(turns)[-1]) >= 5


@pytest.mark.parametrize("family", FRESH_FAMILIES)
def test_the_families_are_sane(family):
    wide = family_matrix(
        DOMAIN, (family, *DEVELOPMENT_FAMILIES), DOMAIN.scenarios("val")[:10], seed=0
    )
    met = [wide[family, name] for name in DEVELOPMENT_FAMILIES]
    agreement = sum(s.agreement or 0.0 for s in met) / len(met)
    assert agreement > 0.6
    assert all((s.agreement or 0.0) > 0.4 for s in met)


def test_phrases_are_whole_words_to_the_tokenizer():
    tokenizer = load_tokenizer(EMBEDDED["dond"])
    for family in scripted_fresh.FAMILIES.values():
        for phrase in family.phrases.all():
            ids = tokenizer.encode(phrase)
            assert tokenizer.decode(ids) == phrase
            assert len(ids) <= len(phrase.split()) * 3  # no bytes, no letters one by one


def test_no_config_trains_on_a_fresh_family():
    assert set(FRESH_FAMILIES) == {"anchor", "tally", "patient", "swapper"}
    assert set(FRESH_FAMILIES) <= set(HELD_OUT_FAMILIES)
    assert not set(HELD_OUT_FAMILIES) & set(DEVELOPMENT_FAMILIES)
    for file in sorted(CONFIGS.glob("dond/*.py")):
        if file.stem == "__init__":
            continue
        config = load(str(file))
        met = set(config.sft.families)
        met |= {
            name.removeprefix("scripted:") for r in config.roles.values() for name in r.counterpart
        }
        assert not met & set(FRESH_FAMILIES), file
