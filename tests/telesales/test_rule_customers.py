"""Rule-based customers: legal records, hard to fool, and never the first to propose anything."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from ibrl_jax.domains.base import Scenario, Turn
from ibrl_jax.domains.telesales.audit import check_labels
from ibrl_jax.domains.telesales.cues import asked, cues, read
from ibrl_jax.domains.telesales.customers import FAMILIES, Move, RuleCustomer, customer
from ibrl_jax.domains.telesales.labels import AFTER_VERBAL_YES, Behaviour, Language, Rubric
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles, training_profiles
from ibrl_jax.domains.telesales.profiles.schema import State, fact, lead_record
from ibrl_jax.domains.telesales.profiles.terms import Category, Personality, PrivacySensitivity
from ibrl_jax.domains.telesales.referee import TelesalesReferee
from ibrl_jax.domains.telesales.rubric import answers
from ibrl_jax.domains.telesales.scenarios import lead_of, make_scenario, view_of
from ibrl_jax.domains.telesales.sellers import SELLERS, Competent, seller
from ibrl_jax.domains.telesales.tools import Call, Tool
from ibrl_jax.domains.telesales.wording import clause, facts_text, spoken

CELLS = [(family, language) for family in FAMILIES for language in ("zh", "en")]
PEOPLE: Mapping[Language, list[Scenario]] = {
    "zh": [make_scenario(p) for p in evaluation_profiles(3, 40, "sampled", "zh")]
    + [make_scenario(p) for p in training_profiles(3, 20, "zh")],
    "en": [make_scenario(p) for p in evaluation_profiles(3, 40, "sampled", "en")],
}


def play(scenario: Scenario, name: str, family: str, seed: int = 0) -> TelesalesReferee:
    """A whole call under the referee, every turn of which has to be valid."""
    ruling = TelesalesReferee(scenario, max_agent_turns=15)
    players = {
        "sales": seller(name, scenario, np.random.default_rng([seed, 1])),
        "customer": customer(family, scenario, np.random.default_rng([seed, 2]), score_step=0.01),
    }
    while (role := ruling.to_move) is not None:
        turn = ruling.check(role, players[role].reply(ruling.turns), "stop")
        assert turn.valid, (role, turn.error_code)
        ruling.play(turn)
    return ruling


class Perfect(Competent):
    """Takes in every question, shows something with every answer, asks which number."""

    attention = skill = care = 1.0


def willing(**initial: float) -> tuple[RuleCustomer, Perfect]:
    """A friendly customer who asks about known facts, and a seller who answers them."""
    profile = next(
        p
        for p in evaluation_profiles(8, 200, "sampled", "zh")
        if p.user_profile.intent_state.personality is Personality.FRIENDLY
        and p.user_profile.intent_state.privacy_sensitivity is not PrivacySensitivity.HIGH
        and p.user_profile.contact_info.phone_can_add_wechat
        and p.agent_info.vehicle.price is not None
        and p.agent_info.vehicle.mileage is not None
    )
    scores = {"willingness": 0.7, "trust": 0.6, "patience": 0.6} | initial
    concerns = profile.user_profile.concerns.model_copy(
        update={"objections": (Category.PRICE, Category.MILEAGE)}
    )
    user = profile.user_profile.model_copy(update={"concerns": concerns})
    changed = profile.model_copy(update={"initial_state": State(**scores), "user_profile": user})
    scenario = make_scenario(changed)
    person = RuleCustomer(
        FAMILIES["rule_v1"],
        lead_record(changed),
        view_of(scenario),
        np.random.default_rng(1),
        score_step=0.01,
    )
    return person, Perfect(lead_record(changed), np.random.default_rng(1))


def until_yes(person: RuleCustomer, agent: Perfect) -> Move:
    move = person.hear(agent.greeting(), ())
    for _ in range(2):
        category = asked(move.reply, "zh")
        assert category is not None
        said = agent.answer(category, shown=True) + agent.line(agent.words.invitations, topic="")
        move = person.hear(said, ())
    return move


@pytest.mark.parametrize("family, language", CELLS)
def test_every_turn_is_a_valid_record_whose_words_are_its_label(family, language):
    for seed, scenario in enumerate(PEOPLE[language]):
        for name in SELLERS:
            ruling = play(scenario, name, family, seed)
            assert ruling.outcome is not None
            assert all(c.matches for c in check_labels(ruling.turns, language))


@pytest.mark.parametrize("language", ["zh", "en"])
def test_a_reader_answers_every_question_with_a_clause_of_its_prompt(language):
    said = set()
    for scenario in PEOPLE[language]:
        lead = lead_of(scenario)
        prompted = facts_text(lead)
        agent = seller("reader", scenario, np.random.default_rng(0))
        for category in set(Category) - {Category.PRIVACY}:
            words = agent.answer(category, shown=True)
            assert words[1:].startswith(clause(lead, category)[1:])  # after a capital letter
            assert clause(lead, category) in prompted
            assert answers(read(words, language), category, lead) is not None
            said.add(fact(lead, category) is None)
        promise = agent.answer(Category.PRIVACY, shown=True)
        assert answers(read(promise, language), Category.PRIVACY, lead)
    assert said == {True, False}


def test_no_two_clauses_have_the_same_word_before_their_value():
    before: dict[Category, set[str]] = {}
    for lead in map(lead_of, PEOPLE["en"]):
        for category in set(Category) - {Category.PRIVACY}:
            value = fact(lead, category)
            if value:  # a warranty of no months is told in words
                words, _ = clause(lead, category).split(f" {spoken(category, value, 'en')}")
                before.setdefault(category, set()).add(words.split()[-1])
    assert len(before) == len(Category) - 1
    assert len(set.union(*before.values())) == len(before)


def test_an_inviter_sends_nothing_but_invitations_and_wins_where_these_arrive():
    sent = 0
    for seed, scenario in enumerate(PEOPLE["zh"]):
        outcome = play(scenario, "inviter", "rule_v1", seed).outcome
        assert outcome is not None
        calls = outcome.facts["calls"]
        assert [call["tool"] for call in calls] in ([], [Tool.SEND_INVITATION])
        if calls:
            assert outcome.success is view_of(scenario).channels.invitation
            sent += 1
    assert sent > 10


@pytest.mark.parametrize("family, language", CELLS)
def test_a_yes_follows_an_invitation_and_an_add_follows_a_yes(family, language):
    for seed, scenario in enumerate(PEOPLE[language]):
        turns = play(scenario, "competent", family, seed).turns
        agreed = invited = False
        for turn in turns[1:]:
            if turn.role == "sales":
                invited |= "asks_contact" in cues(turn.payload["words"], language)
                invited |= bool(turn.payload["calls"])
                continue
            behaviour = turn.private["customer"]["behavior"]
            assert agreed or behaviour not in AFTER_VERBAL_YES
            if behaviour == Behaviour.AGREE_WECHAT:
                assert invited
                agreed = True


def test_a_call_is_the_same_when_it_is_told_again():
    scenario = PEOPLE["zh"][0]
    turns = play(scenario, "competent", "rule_v1").turns
    again = customer("rule_v1", scenario, np.random.default_rng([0, 2]), score_step=0.01)
    cut = len(turns) - 2 if turns[-1].role == "customer" else len(turns) - 3
    assert again.reply(turns[: cut + 1]) == turns[cut + 1].said
    assert again.reply(turns[: cut + 1]) == turns[cut + 1].said  # asked twice, heard once


def test_the_customer_answers_and_does_not_open():
    with pytest.raises(ValueError, match="has said nothing"):
        customer("rule_v1", PEOPLE["zh"][0], np.random.default_rng(0), score_step=0.01).reply(())


def test_two_answers_and_high_scores_make_a_yes():
    person, agent = willing()
    assert until_yes(person, agent).behaviour is Behaviour.AGREE_WECHAT
    assert person.answered == 2


def test_one_answer_does_not():
    person, agent = willing()
    move = person.hear(agent.greeting(), ())
    category = asked(move.reply, "zh")
    assert category is not None
    move = person.hear(agent.answer(category, shown=True) + "加您一下微信可以吗？", ())
    assert move.behaviour is not Behaviour.AGREE_WECHAT


@pytest.mark.parametrize("score", ["willingness", "trust"])
def test_low_scores_do_not(score):
    person, agent = willing(**{score: 0.2})
    assert until_yes(person, agent).behaviour is not Behaviour.AGREE_WECHAT


def test_thresholds_of_the_first_family_are_those_of_the_design():
    family = FAMILIES["rule_v1"]
    assert (family.willingness, family.trust, family.answered) == (0.62, 0.60, 2)


def test_a_yes_is_no_add_before_the_right_call():
    person, agent = willing()
    until_yes(person, agent)
    assert person.hear("好的。", ()).behaviour is Behaviour.IGNORE_REQUEST
    call = Call(tool=Tool.ADD_CONTACT, phone_number=agent.lead.phone_number)
    assert person.hear("发过去了。", (call,)).behaviour is Behaviour.CONFIRM_ADDED


def test_only_the_first_call_counts():
    person, agent = willing()
    until_yes(person, agent)
    wrong = Call(tool=Tool.ADD_CONTACT, phone_number="10000000000")
    assert person.hear("发过去了。", (wrong,)).behaviour is Behaviour.REJECT_REQUEST
    right = Call(tool=Tool.SEND_INVITATION)
    assert person.hear("再发一次。", (right,)).behaviour is Behaviour.REJECT_REQUEST


def test_a_call_before_the_yes_is_wasted():
    person, agent = willing()
    person.hear("您好。", (Call(tool=Tool.SEND_INVITATION),))
    assert until_yes(person, agent).behaviour is Behaviour.AGREE_WECHAT
    call = Call(tool=Tool.ADD_CONTACT, phone_number=agent.lead.phone_number)
    assert person.hear("发过去了。", (call,)).behaviour is Behaviour.REJECT_REQUEST


def test_asked_which_number_it_says_one_that_works():
    seen = set()
    for seed, scenario in enumerate(PEOPLE["zh"]):
        person = customer("rule_v1", scenario, np.random.default_rng(seed), score_step=0.01)
        person.agreed = True
        channels = view_of(scenario).channels
        reply = person.hear("您这个手机号就是微信号吗？", ()).reply
        if channels.reachable:
            seen.add("same")
            assert not any(number in reply for number in channels.numbers)
        elif channels.numbers:
            seen.add("other")
            assert channels.numbers[0] in reply
        else:
            seen.add("invitation")
            assert "短信" in reply
    assert seen == {"same", "other", "invitation"}


def test_passed_over_three_times_in_a_row_it_hangs_up():
    person, agent = willing()
    person.hear(agent.greeting(), ())
    kind = iter(agent.words.kind)
    moves = [person.hear(next(kind), ()) for _ in range(3)]
    assert [m.behaviour for m in moves[:2]] == [Behaviour.EXPRESS_CONCERN] * 2
    assert moves[2].behaviour is Behaviour.HANG_UP
    assert all(Rubric.B11 in move.rated.hits for move in moves)


def test_asked_again_after_its_refusal_it_hangs_up():
    person, _ = willing(willingness=0.2)
    pushes = (
        "加个微信吧。",
        "咱们加微信好吧。",
        "麻烦通过微信。",
        "先加微信再说。",
        "留个联系方式。",
    )
    behaviours = [person.hear(words, ()).behaviour for words in pushes]
    assert Behaviour.HANG_UP in behaviours
    assert behaviours.index(Behaviour.HANG_UP) <= 4


def test_who_calls_is_asked_before_anything_else():
    person, _ = willing()
    assert person.hear("您好。", ()).behaviour is Behaviour.GREETING


@pytest.mark.parametrize(
    "personality, missing",
    [(Personality.SKEPTICAL, "shown"), (Personality.PASSIVE, "reason")],
)
def test_what_a_kind_of_person_misses_it_asks_for(personality, missing):
    person, agent = willing()
    object.__setattr__(person.persona, "personality", personality)
    move = person.hear(agent.greeting(), ())
    for _ in range(2):
        category = asked(move.reply, "zh")
        assert category is not None
        move = person.hear(agent.answer(category, shown=missing != "shown"), ())
        if person.answered == 2:
            break
    person._waiting = None
    move = person.hear("加您一下微信可以吗？", ())
    expected = {"shown": Behaviour.EXPRESS_CONCERN, "reason": Behaviour.REQUEST_VALUE}
    assert move.behaviour is expected[missing]


def test_turns_without_records_of_others_are_enough():
    """A customer reads the agent's turns alone, so its own may be anybody's."""
    scenario = PEOPLE["zh"][1]
    said = Turn(
        role="sales",
        text="您好。",
        end="stop",
        action="speak",
        payload={"words": "您好。", "calls": []},
    )
    first = customer("rule_v1", scenario, np.random.default_rng(4), score_step=0.01).reply([said])
    other = Turn(role="customer", text="喂", end="stop", action="pick_up")
    second = customer("rule_v1", scenario, np.random.default_rng(4), score_step=0.01).reply(
        [other, said]
    )
    assert first == second
