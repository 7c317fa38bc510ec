"""A person who is the customer types words: what they do, and the record around them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ibrl_jax.dialogue.loop import Hall, Match, play
from ibrl_jax.dialogue.person import Manner, PersonSpeaker
from ibrl_jax.domains.base import Outcome
from ibrl_jax.domains.telesales.domain import TeleSales, TelesalesSettings
from ibrl_jax.domains.telesales.labels import RUBRIC_CHANGES, Behaviour, Rubric
from ibrl_jax.domains.telesales.person import NoBehaviour, as_record, standing
from ibrl_jax.domains.telesales.profiles.generate import training_profiles
from ibrl_jax.domains.telesales.record import CustomerError
from ibrl_jax.domains.telesales.referee import EndReason, TelesalesReferee
from ibrl_jax.domains.telesales.refusals import REFUSALS
from ibrl_jax.domains.telesales.scenarios import lead_of, make_scenario, view_of
from ibrl_jax.domains.telesales.tools import AgentError
from ibrl_jax.domains.telesales.wording import lead_text
from tests.dialogue.fakes import NosyJudge, Puppet

DOMAIN = TeleSales(
    TelesalesSettings(
        language="en",
        prompts_dir=None,
        prompt_length="short",
        seed=0,
        train_profiles=1,
        val_profiles=1,
        test_profiles=1,
        composition="sampled",
        stories="none",
        max_agent_turns=15,
        score_step=0.01,
        test_file="",
        conversations=1,
    )
)
PEOPLE = [make_scenario(profile) for profile in training_profiles(5, 20, "en")]
REACHABLE = next(s for s in PEOPLE if view_of(s).channels.reachable)
SEEN = REACHABLE.private["customer"]
INVITE = "Shall I add you on WeChat and send the report?"
CALL = "Here it comes. <call_function=send_contact_invitation>"


def call(*lines: str) -> TelesalesReferee:
    """A call in which the agent and the person speak in turn; every line has to be legal."""
    referee = TelesalesReferee(REACHABLE, max_agent_turns=15)
    for n, line in enumerate(lines):
        role = ("sales", "customer")[n % 2]
        text = line if role == "sales" else as_record(line, SEEN, referee.turns)
        turn = referee.check(role, text, "stop")
        assert turn.valid, (line, turn.error_code)
        referee.play(turn)
    return referee


def behaviour(referee: TelesalesReferee) -> str:
    return referee.turns[-1].private["customer"]["behavior"]


@pytest.mark.parametrize(
    ("lines", "does"),
    [
        (("Hello.", "How many kilometres has it done?"), "AskQuestion"),
        (("Hello.", "Well, let me think."), "Hesitate"),
        (("Hello.", "Ok, and?"), "AskQuestion"),
        ((INVITE, "Sure."), "AgreeWeChat"),
        (("Hello.", "Sure."), "Hesitate"),  # nobody has asked for anything
        ((INVITE, "No, thank you."), "DeclineSoft"),
        ((INVITE, "Stop asking."), "DeclineHard"),
        (("Hello.", "I'm not in the mood. Bye."), "HangUp"),
        ((INVITE, "Ok.", CALL, "I've added you."), "ConfirmAdded"),
        ((INVITE, "Ok.", CALL, "No, I won't."), "RejectRequest"),
        ((INVITE, "Ok.", CALL, "Yes yes, later."), "PartialAgree"),
        (("Hello.", "I've added you."), "Hesitate"),  # before a yes it can be nothing else
    ],
)
def test_what_words_do_is_read_off_them_and_is_legal(lines, does):
    assert behaviour(call(*lines)) == does


def test_a_call_of_typed_words_ends_in_a_success():
    outcome = call("Hello.", "Who is this?", INVITE, "Yes, fine.", CALL, "It's added.").outcome
    assert outcome is not None
    assert (outcome.end_reason, outcome.success) == ("confirmed", True)


def test_a_named_behaviour_is_taken_at_its_word_in_any_case_and_in_chinese():
    assert behaviour(call("Hello.", "/hangup so long")) == "HangUp"
    assert behaviour(call("Hello.", "/挂断")) == "HangUp"
    spoken = call("Hello.", "/ExpressConcern I am worried.").turns[-1]
    assert spoken.text == "I am worried."
    with pytest.raises(NoBehaviour, match="/Dance is nothing that a customer does; there are Gree"):
        as_record("/Dance with me", SEEN, call("Hello.").turns)


def test_scores_move_as_the_rubric_says_of_the_agents_last_turn():
    referee = call("Hello.", "How many kilometres has it done?", "Buy it, it is absolutely great!")
    record = json.loads(as_record("Hm.", SEEN, referee.turns))
    ignored = RUBRIC_CHANGES[Rubric.B11]  # the question was passed over, and nothing else
    assert record["willingness_delta"] == pytest.approx(ignored.willingness)
    assert record["patience_delta"] == pytest.approx(ignored.patience)
    start = referee.turns[-2].private["customer"]["state"]
    assert record["willingness_before"] == start["willingness"]


def test_a_whole_record_stays_as_it_was_typed():
    whole = as_record("Hm.", SEEN, call("Hello.").turns)
    assert as_record(f"  {whole}", SEEN, call("Hello.").turns) == whole


@pytest.mark.parametrize("language", ["zh", "en"])
def test_a_brief_says_who_one_is_and_how_to_play_and_nothing_of_the_other_side(language):
    for profile in training_profiles(7, 10, language):
        scenario = make_scenario(profile)
        text = DOMAIN.brief(scenario.seen_by("customer"), "customer")
        assert profile.user_profile.identity.name in text
        assert "/HangUp" in text
        assert all(name in text for name in Behaviour)
        assert profile.agent_info.service.phone not in text
        text = DOMAIN.brief(scenario.seen_by("sales"), "sales")
        assert lead_text(lead_of(scenario)) in text
        assert profile.user_profile.identity.name not in text
        assert profile.user_profile.persona.attitude_description not in text


@pytest.mark.parametrize("language", ["zh", "en"])
def test_the_lines_of_the_briefs_are_legal_and_do_what_they_say(language):
    """Two or more blanks stand between what a line does, the line, and when it does it."""
    scenario = next(
        s
        for s in map(make_scenario, training_profiles(7, 20, language))
        if view_of(s).channels.reachable and view_of(s).channels.invitation
    )

    def lines(role: str) -> list[str]:
        brief = DOMAIN.brief(scenario.seen_by(role), role)
        return re.findall(r"^  \S+(?: \S+)*  +(\S+(?: \S+)*)", brief, re.M)

    talk, invite, request, end = lines("sales")
    question, yes, added, hang_up = lines("customer")
    ask = {"zh": "我加您的企业微信，把报告发给您，好吗？", "en": INVITE}[language]
    referee = TelesalesReferee(scenario, max_agent_turns=15)
    did = []
    for said, answer in ((talk, question), (ask, yes), (invite, added)):
        referee.play(referee.check("sales", said, "stop"))
        record = as_record(answer, scenario.private["customer"], referee.turns)
        referee.play(referee.check("customer", record, "stop"))
        did.append(referee.turns[-1].private["customer"]["behavior"])
    assert did == ["AskQuestion", "AgreeWeChat", "ConfirmAdded"]
    assert referee.outcome is not None
    assert DOMAIN.told(referee.outcome).startswith("a success, for the customer added the account;")
    other = TelesalesReferee(scenario, max_agent_turns=15)
    calls = other.check("sales", request, "stop").payload["calls"]
    assert calls[0]["phone_number"] == lead_of(scenario).phone_number
    assert other.check("sales", end, "stop").action == "end"
    other.play(other.check("sales", talk, "stop"))
    record = as_record(hang_up, scenario.private["customer"], other.turns)
    assert other.check("customer", record, "stop").action == "hang_up"


def test_every_end_of_a_call_is_told_in_words():
    state = {"willingness": 0.5, "patience": 0.25}
    facts = {"verbal_yes": True, "state_start": state, "state_end": state}
    facts |= {"abort": "no network", "error_code": "empty"}
    for reason in set(EndReason) - {EndReason.CONFIRMED}:
        offender = "sales" if reason is EndReason.MALFORMED else None
        outcome = Outcome(end_reason=reason, success=False, facts=facts, offender=offender)
        told = DOMAIN.told(outcome)
        assert told.startswith(("no success, for the ", "no success, for sales", "broken off, "))
        assert ("sales said no legal turn (nothing was said or done;" in told) == bool(offender)
        assert told.endswith(
            ", after a yes in words; willingness 0.50 to 0.50, patience 0.25 to 0.25"
        )


# ------------------------------------------------------------------------- at the terminal


def test_a_customer_is_shown_the_state_that_a_model_is_told_and_why_a_line_is_refused(
    types: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    types("/Dance", "/ConfirmAdded It's added.", "Who is this?", "", "Yes, fine.", "It's added.")
    said = iter(["Hello.", INVITE, CALL])
    agent = Puppet(replies=lambda seat, turns, attempt: next(said))
    brief = DOMAIN.brief(REACHABLE.seen_by("customer"), "customer")
    person = PersonSpeaker(brief=brief, manner=Manner(beside=standing, written=as_record))
    (trajectory,) = play(
        Hall(
            domain=DOMAIN,
            judges={role: NosyJudge() for role in DOMAIN.roles},
            seed=0,
            retries=0,
            concurrency=1,
        ),
        [
            Match(
                stage=("play",),
                draw="0",
                rollout=0,
                scenario=REACHABLE,
                first="sales",
                matchup=frozenset(),
                speakers={"sales": agent, "customer": person},
            )
        ],
    )
    assert trajectory.outcome.success
    told = capsys.readouterr().out
    assert told.startswith(brief)
    assert "/Dance is nothing that a customer does" in told
    assert "come after a yes to being added: agree first" in told
    assert "(nothing was said; say something" in told
    for n in (1, 3, 5):
        turns = [turn.seen_by("customer") for turn in trajectory.turns[: n + 1]]
        line = standing(SEEN, turns)
        assert f"{trajectory.turns[n].text}\n{line}\ncustomer> " in told
        state = turns[n - 1].private["customer"]["state"]
        assert f"willingness {state['willingness']:.2g}" in line
    assert "WeChat: not added;" in told
    assert "WeChat: a request came, not added yet; guidance: invitation by text message" in told
    for secret in (REACHABLE.private["sales"]["service"]["phone"], "vehicle_information"):
        assert secret not in told


def test_every_refusal_has_its_sentence_and_no_code_is_left_out() -> None:
    assert set(REFUSALS["sales"]) == set(AgentError)
    assert set(REFUSALS["customer"]) == set(CustomerError)
    referee = TelesalesReferee(REACHABLE, max_agent_turns=15)
    refused = referee.check("sales", "Take this. <call_function=dance>", "stop")
    assert DOMAIN.refusal(refused).startswith("there is no such tool; there are <call_function=")
