"""A person at the terminal: lines are read as they come, and Ctrl-C at the prompt ends at once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ibrl_jax.dialogue.loop import play
from ibrl_jax.dialogue.person import Manner, PersonSpeaker
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Outcome
from ibrl_jax.domains.dond.domain import DealOrNoDeal, DondSettings
from ibrl_jax.domains.dond.grammar import CloseForm, ErrorCode
from ibrl_jax.domains.dond.referee import EndReason, SelectRule
from ibrl_jax.domains.dond.refusals import REFUSALS
from ibrl_jax.domains.dond.scoring import settle
from ibrl_jax.errors import UserError
from tests.dialogue.fakes import LEFT, RIGHT, Chatter, Puppet, quiet

TALK = """
import asyncio
from types import SimpleNamespace
from ibrl_jax import entry
from ibrl_jax.dialogue.person import PersonSpeaker
from ibrl_jax.dialogue.conductor import Conductor

async def talk():
    conductor = Conductor()
    legal = SimpleNamespace(valid=True)
    scenario = SimpleNamespace(private={"agent1": None})
    seat = SimpleNamespace(
        role="agent1", prompt="rules", scenario=scenario, check=lambda text: legal
    )
    agent = PersonSpeaker().sit(seat, conductor)
    with conductor.dialogue():
        while True:
            print(ascii((await agent.reply((), 0)).text), flush=True)

entry.run(lambda argv, console: asyncio.run(talk()))
"""


@pytest.fixture
def talk() -> Iterator[subprocess.Popen[bytes]]:
    """A process that repeats what it is told, at its first prompt."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", TALK], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"rules\n"
        assert process.stdout.readline() == b"\n"
        assert b"Ctrl-D" in process.stdout.readline()
        assert process.stdout.readline() == b"\n"
        assert process.stdout.read(8) == b"agent1> "
        yield process
        process.kill()


def test_ctrl_c_at_the_prompt_ends_at_once(talk: subprocess.Popen[bytes]) -> None:
    talk.send_signal(signal.SIGINT)  # standard input stays open
    assert talk.wait(timeout=20) == 130
    assert talk.stderr is not None
    assert talk.stderr.read() == b"interrupted\n"


def test_lines_that_are_no_utf_8_are_heard_and_an_end_is_an_end(
    talk: subprocess.Popen[bytes],
) -> None:
    out, err = talk.communicate(b"one\nt\xffo\n", timeout=20)
    assert out == b"'one'\nagent1> 't\\ufffdo'\nagent1> "
    assert b"EOFError: the person left" in err


# ------------------------------------------------------------------------- in a dialogue


class Whispering(Chatter):
    """Tells each role something beside what it hears."""

    def beside(self, scenario: Any, role: str, turns: Sequence[Any]) -> str:
        return f"\n[told {role} of {len(turns)}]"


def meet(hall: Any, matches: Any, speaker: PersonSpeaker) -> Trajectory:
    """A dialogue of four turns in which a person on the right meets somebody quiet."""
    one = hall(domain=Whispering(horizon=4), retries=0)
    (trajectory,) = play(one, matches({LEFT: Puppet(replies=quiet), RIGHT: speaker}))
    return trajectory


def test_a_person_is_told_what_a_policy_is_told_beside_what_it_hears(
    types: Any, hall: Any, matches: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    types("first", "second")
    trajectory = meet(hall, matches, PersonSpeaker())
    assert [turn.text for turn in trajectory.turns[1::2]] == ["first", "second"]
    said = capsys.readouterr().out
    for n in (1, 3):
        assert f"left> {trajectory.turns[n - 1].text}\n[told right of {n}]\nright> " in said


def test_a_line_that_is_refused_is_told_why_and_asked_for_again_however_often(
    types: Any, hall: Any, matches: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a hall that samples no policy's turn again; the person's slips are in no record."""
    types("BAD", "so BAD", "BAD again", "well", "good")
    trajectory = meet(hall, matches, PersonSpeaker())
    assert [turn.text for turn in trajectory.turns[1::2]] == ["well", "good"]
    assert trajectory.outcome.success
    assert trajectory.retries == {LEFT: 0, RIGHT: 0}
    assert capsys.readouterr().out.count("(bad; leave it out)\nright> ") == 3


def test_a_manner_writes_the_turn_and_tells_in_its_own_words(
    types: Any, hall: Any, matches: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def written(line: str, observation: Any, turns: Sequence[Any]) -> str:
        if line.startswith("/"):
            raise ValueError(f"{line} is nothing that one does")
        return f"{line}, after {len(turns)}"

    manner = Manner(
        beside=lambda observation, turns: f"(turn {len(turns)})",
        written=written,
    )
    types("/dance", "well", "good")
    trajectory = meet(hall, matches, PersonSpeaker(brief="you are right", manner=manner))
    assert [turn.text for turn in trajectory.turns[1::2]] == ["well, after 1", "good, after 3"]
    said = capsys.readouterr().out
    assert said.startswith("you are right\n")
    assert "(/dance is nothing that one does)\nright> " in said
    assert "(turn 1)\n" in said
    assert "[told" not in said


def test_an_input_that_ends_before_a_line_has_nobody_at_it(
    hall: Any, matches: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pytest.raises(UserError, match="nobody is there to type: standard input is at its"):
            meet(hall, matches, PersonSpeaker())


def game(select_rule: SelectRule = "any_try", close: CloseForm = "either") -> DealOrNoDeal:
    return DealOrNoDeal(
        DondSettings(
            horizon_turns=20,
            select_rule=select_rule,
            close=close,
            penalty_malformed=0.1,
            prompt="short",
            data_dir=None,
            test_mode="test200x5",
            max_count=2,
            split_seed=0,
            split_fractions=(0.8, 0.1, 0.1),
        )
    )


@pytest.mark.parametrize(("select_rule", "close"), [("any_try", "either"), ("last_try", "literal")])
def test_the_lines_of_the_brief_of_deal_or_no_deal_are_legal_and_lead_to_a_deal(
    select_rule: SelectRule, close: CloseForm
) -> None:
    domain = game(select_rule, close)
    scenario = domain.scenarios("test")[0]
    brief = domain.brief(scenario.seen_by("agent1"), "agent1")
    counts, values = scenario.public["counts"], scenario.private["agent1"]["values"]
    for j in range(3):
        assert f"item{j}: {counts[j]} of them, each worth {values[j]} to you" in brief
    lines = dict(re.findall(r"^  (talk|offer|agreement|no deal)  +(.+)$", brief, re.M))
    left = re.search(r"just what it leaves,\n(.+),", brief)
    assert left is not None
    closed = "</selection>" if close == "either" else "<selection>"
    rest = f"<selection> {left[1]} {closed}"
    referee = domain.referee(scenario, "agent1")
    for role, kind, action in (
        ("agent1", "offer", "propose"),
        ("agent0", "talk", "talk"),
        ("agent1", "talk", "talk"),
    ):
        turn = referee.check(role, lines[kind], "stop")
        assert (turn.valid, turn.action) == (True, action)
        referee.play(turn)
    assert referee.check("agent0", lines["no deal"], "stop").action == "disagree"
    offer = rest.replace("selection", "try")  # leaves agent1 just what its example takes
    for role, text in (("agent0", offer), ("agent1", lines["agreement"]), ("agent0", rest)):
        referee.play(referee.check(role, text, "stop"))
    assert referee.outcome is not None
    points = referee.outcome.facts["points"]
    assert domain.told(referee.outcome) == (
        f"a deal: agent0 has {points['agent0']} of 10, agent1 has {points['agent1']} of 10 points"
    )


def test_every_end_of_deal_or_no_deal_is_told_in_words() -> None:
    domain = game()
    scenario = domain.scenarios("test")[0]
    for reason in set(EndReason) - {EndReason.DEAL}:
        facts = settle(scenario, None) | {"abort": "no network", "error_code": "empty"}
        offender = "agent0" if reason is EndReason.MALFORMED else None
        outcome = Outcome(end_reason=reason, success=False, facts=facts, offender=offender)
        assert ("agent0 said no legal turn (nothing was said;" in domain.told(outcome)) == bool(
            offender
        )
        assert domain.told(outcome).startswith(
            ("no deal, for ", "broken off, without a result: no")
        )


def test_every_refusal_of_deal_or_no_deal_has_its_sentence() -> None:
    assert set(REFUSALS) == set(ErrorCode)
    domain = game()
    referee = domain.referee(domain.scenarios("train")[0], "agent0")
    turn = referee.check("agent0", "<selection> item0=0 item1=0 item2=0 </selection>", "stop")
    assert domain.refusal(turn).startswith("nobody has made an offer that could be confirmed;")
    assert domain.refusal(replace(turn, error_code="over_count")).startswith("that is more of an")
