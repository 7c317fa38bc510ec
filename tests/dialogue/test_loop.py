"""The dialogue loop: what a view holds, what is said again, what never mixes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ibrl_jax.dialogue.agents import ScriptedSpeaker, Utterance
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.loop import play
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import RoleView, Segment
from ibrl_jax.rewards.types import Scored
from ibrl_jax.sampler.types import Completion, Request
from tests.dialogue.fakes import (
    BAD,
    CHAT,
    LEFT,
    RIGHT,
    TOKENIZER,
    Chatter,
    Puppet,
    Recorder,
    TalkingEngine,
    polite,
    quiet,
    same,
    whole,
)

END, NEWLINE = CHAT.stop_ids[0], TOKENIZER.encode("\n")
Spoken = list[tuple[Request, Completion]]


def words(view: RoleView, segment: Segment, turn: int) -> str:
    """The text of one turn's tokens of a kind."""
    chosen = (view.segment == segment) & (view.turn_index == turn)
    return TOKENIZER.decode(view.ids[chosen].tolist())


# ------------------------------------------------------------------------- views of real policies


@pytest.fixture(scope="module")
def talks(warm_engines, local, hall, matches) -> tuple[list[Trajectory], dict[str, list[Spoken]]]:
    """Six dialogues of five turns between two networks, and what their engines heard and said."""
    recorders = {role: Recorder(engine) for role, engine in warm_engines.items()}
    speakers = {role: local(recorder, role) for role, recorder in recorders.items()}
    played = play(hall(horizon=5, cuts_are_legal=True), matches(speakers, 6))
    spoken: dict[str, list[Spoken]] = {}
    for role, recorder in recorders.items():
        slots = range(6)  # dialogues sit down in order, so slot n is dialogue n's
        spoken[role] = [[pair for pair in recorder.log if pair[0].slot == n] for n in slots]
    return played, spoken


def test_a_prompt_starts_with_the_last_prompt_and_what_was_said_to_it(talks) -> None:
    played, spoken = talks
    for role, dialogues in spoken.items():
        for trajectory, pairs in zip(played, dialogues, strict=True):
            assert len(pairs) in (2, 3)
            reached: list[int] = []
            for request, completion in pairs:
                assert request.ids[: len(reached)] == reached
                reached = [*request.ids, *completion.ids]
            assert trajectory.views[role].ids.tolist() == reached


def test_the_ids_trained_on_are_the_ids_sampled_and_nothing_else_is(talks) -> None:
    played, spoken = talks
    for role, dialogues in spoken.items():
        for trajectory, pairs in zip(played, dialogues, strict=True):
            view = trajectory.views[role]
            own = view.loss_mask == 1
            assert view.ids[own].tolist() == [i for _, c in pairs for i in c.ids]
            np.testing.assert_array_equal(
                view.behaviour_logp[own],
                np.array([p for _, c in pairs for p in c.logps], np.float32),
            )
            assert int(own.sum()) == sum(len(c.ids) for _, c in pairs)
            assert (view.behaviour_logp[~own] == 0).all()
            np.testing.assert_array_equal(view.segment == Segment.OWN, own)


def test_the_counterparts_words_enter_as_its_segment_and_are_not_trained_on(talks) -> None:
    for trajectory in talks[0]:
        for role, view in trajectory.views.items():
            last_own = max(i for i, turn in enumerate(trajectory.turns) if turn.role == role)
            for index, turn in enumerate(trajectory.turns):
                theirs = (view.segment == Segment.COUNTERPART) & (view.turn_index == index)
                heard = turn.role != role and index < last_own
                assert view.ids[theirs].tolist() == (TOKENIZER.encode(turn.text) if heard else [])
                assert not view.loss_mask[theirs].any()


def test_both_views_of_a_dialogue_agree_on_what_was_said(talks) -> None:
    for trajectory in talks[0]:
        for index, turn in enumerate(trajectory.turns):
            said = words(trajectory.views[turn.role], Segment.OWN, index)
            assert said.rpartition("</think>")[2] == turn.text
            listener = RIGHT if turn.role == LEFT else LEFT
            if index < len(trajectory.turns) - 1:
                heard = words(trajectory.views[listener], Segment.COUNTERPART, index)
                assert heard == TOKENIZER.decode(TOKENIZER.encode(turn.text))


def test_a_turn_cut_by_length_gets_an_end_marker_that_is_not_trained_on(talks) -> None:
    played, spoken = talks
    seen = set()
    for role, dialogues in spoken.items():
        for trajectory, pairs in zip(played, dialogues, strict=True):
            view = trajectory.views[role]
            for request, completion in pairs[:-1]:
                at = len(request.ids) + len(completion.ids)
                closing = NEWLINE if completion.ids[-1] == END else [END, *NEWLINE]
                assert view.ids[at : at + len(closing)].tolist() == closing
                assert not view.loss_mask[at : at + len(closing)].any()
                assert (view.segment[at : at + len(closing)] == Segment.TEMPLATE).all()
                seen.add(completion.end)
    assert seen == {"stop", "length"}


def test_a_view_opens_with_its_own_prompt_and_holds_no_secret_of_the_other_side(talks) -> None:
    for index, trajectory in enumerate(talks[0]):
        for role, view in trajectory.views.items():
            prompt = TOKENIZER.decode(view.ids[view.turn_index == -1].tolist())
            assert prompt.split("\n")[1] == f"{role}, topic{index}. secret{role}{index}."
            assert "secret" not in whole(view).replace(f"secret{role}{index}.", "")


def test_order_and_concurrency_change_no_token(engines, local, hall, matches, talks) -> None:
    """Keys are the dialogue's own, and one bucket of each kind leaves one program."""
    speakers = {role: local(engine, role) for role, engine in engines.items()}
    for concurrency, found in ((2, matches(speakers, 6)), (5, matches(speakers, 6)[::-1])):
        again = play(hall(horizon=5, cuts_are_legal=True, concurrency=concurrency), found)
        assert [t.draw for t in again] == [m.draw for m in found]
        for one, other in zip(sorted(again, key=lambda t: t.draw), talks[0], strict=True):
            for role in (LEFT, RIGHT):
                same(one.views[role], other.views[role])


def test_rollouts_of_a_draw_differ(engines, local, hall, matches) -> None:
    speakers = {role: local(engine, role) for role, engine in engines.items()}
    (match,) = matches(speakers)
    group = [replace(match, rollout=g) for g in range(4)]
    played = play(hall(horizon=2, cuts_are_legal=True), group)
    assert len({t.turns[0].text for t in played}) == 4


# ------------------------------------------------------------------------- malformed turns


def clumsy(at: int, times: int) -> Callable[[str, tuple[int, int]], str]:
    """Polite, but its turn after `at` heard messages is malformed so many times."""
    left = [times]

    def says(text: str, key: tuple[int, int]) -> str:
        if text.count("user") == at and left[0]:
            left[0] -= 1
            return f"{BAD} {left[0]}"
        return polite(text, key)

    return says


def test_a_malformed_turn_is_sampled_again_and_leaves_no_trace(local, hall, matches) -> None:
    played = {}
    for times in (0, 2):
        engines = {LEFT: TalkingEngine(clumsy(1, times)), RIGHT: TalkingEngine(polite)}
        speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
        (played[times],) = play(hall(retries=2), matches(speakers))
        asked = engines[LEFT].requests
        assert len(asked) == 2 + times
        if times:
            first, second, third = asked[1:]
            assert first.ids == second.ids == third.ids  # the refused words are in no prompt
            assert len({first.key, second.key, third.key}) == 3
    clean, mended = played[0], played[2]
    assert mended.retries == {LEFT: 2, RIGHT: 0}
    assert mended.turns == clean.turns
    for role in (LEFT, RIGHT):
        assert BAD not in whole(mended.views[role])
        same(mended.views[role], clean.views[role])


def test_retries_that_run_out_end_the_dialogue_with_its_offender(local, hall, matches) -> None:
    engines = {LEFT: TalkingEngine(polite), RIGHT: TalkingEngine(clumsy(1, 99))}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    (trajectory,) = play(hall(retries=2), matches(speakers))
    assert trajectory.outcome.end_reason == "malformed"
    assert trajectory.outcome.offender == RIGHT
    assert trajectory.retries == {LEFT: 0, RIGHT: 2}
    assert len(engines[RIGHT].requests) == 3
    assert [turn.valid for turn in trajectory.turns] == [True, False]


def test_in_training_a_malformed_turn_stays_in_its_view_and_is_trained_on(
    local, hall, matches
) -> None:
    engines = {LEFT: TalkingEngine(clumsy(1, 99)), RIGHT: TalkingEngine(polite)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    (trajectory,) = play(hall(retries=0), matches(speakers))
    assert len(engines[LEFT].requests) == 2
    assert trajectory.retries == {LEFT: 0, RIGHT: 0}
    view = trajectory.views[LEFT]
    assert BAD in words(view, Segment.OWN, 2)
    assert view.loss_mask[(view.segment == Segment.OWN) & (view.turn_index == 2)].all()
    assert view.ids[-1] == END  # it ended its turn itself; nothing follows
    assert BAD not in whole(trajectory.views[RIGHT])


def test_a_malformed_turn_that_was_cut_off_is_trained_on_as_it_was_sampled(
    local, hall, matches
) -> None:
    engine = TalkingEngine(lambda text, key: "on and on " * 20)
    speakers = {LEFT: local(engine, LEFT, 5), RIGHT: Puppet(replies=quiet)}
    (trajectory,) = play(hall(), matches(speakers))
    view = trajectory.views[LEFT]
    assert trajectory.turns[-1].error_code == "truncated"
    assert view.ids[-5:].tolist() == TOKENIZER.encode("on and on " * 20)[:5]
    assert view.loss_mask[-5:].all()
    assert view.loss_mask.sum() == 5


def test_thoughts_stay_in_their_own_view_and_reach_nobody_else(local, hall, matches) -> None:
    def thinks(text: str, key: tuple[int, int]) -> str:
        return f"<think>hidden</think>{polite(text, key)}"

    engines = {LEFT: TalkingEngine(thinks), RIGHT: TalkingEngine(polite)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    one = hall()
    (trajectory,) = play(one, matches(speakers))
    assert whole(trajectory.views[LEFT]).count("hidden") == 2
    assert "hidden" not in whole(trajectory.views[RIGHT])
    assert "hidden" not in repr(trajectory.turns)
    assert "hidden" not in repr([case for judge in one.judges.values() for case in judge.cases])


def test_a_thought_that_the_header_opens_is_the_turns_own(speech, local, hall, matches) -> None:
    """Otherwise one that is never closed would look like plain words to the referee."""
    opens = ChatML(TOKENIZER)
    opens.opening = "<think>\n"
    speaker = local(TalkingEngine(lambda text, key: "hidden"), LEFT, 64)
    opened = replace(speaker, speech=replace(speech, chat=opens))
    (trajectory,) = play(hall(horizon=1), matches({LEFT: opened, RIGHT: Puppet(replies=quiet)}))
    assert trajectory.turns[0].text == "<think>\nhidden"
    assert "<think>" not in whole(trajectory.views[LEFT])


# ------------------------------------------------------------------------- who sits where


def test_a_scripted_seat_has_no_view(local, hall, matches) -> None:
    talk = hall()
    speakers = {
        LEFT: local(TalkingEngine(polite), LEFT, 64),
        RIGHT: ScriptedSpeaker(domain=talk.domain, family="stubborn"),
    }
    (trajectory,) = play(talk, matches(speakers))
    assert set(trajectory.views) == {LEFT}
    assert trajectory.speakers == {LEFT: "live:left@3", RIGHT: "scripted:stubborn"}
    heard = words(trajectory.views[LEFT], Segment.COUNTERPART, 1)
    assert heard == trajectory.turns[1].text
    assert heard.startswith("stubborn")


def test_scripted_players_draw_by_their_dialogues_identity(hall, matches) -> None:
    talk = hall(horizon=1)
    speakers = {role: ScriptedSpeaker(domain=talk.domain, family="dice") for role in (LEFT, RIGHT)}
    found = [replace(m, rollout=g) for m in matches(speakers, 3) for g in range(2)]
    said = [t.turns[0].text for t in play(talk, found)]
    assert len(set(said)) == 6
    assert [t.turns[0].text for t in play(talk, found[::-1])] == said[::-1]


def test_many_dialogues_at_once_never_exchange_text(local, hall, matches) -> None:
    """Forty at once, some retried, some scripted, some failing: each knows its own topic alone."""
    engines = {LEFT: TalkingEngine(clumsy(1, 9)), RIGHT: TalkingEngine(polite)}
    here = {role: local(engine, role, 64) for role, engine in engines.items()}

    def named(seat: Any, turns: Sequence[Any], attempt: int) -> str:
        if attempt == 0 and len(turns) == 3:
            return BAD
        return f"about {seat.scenario.public['topic']} and {len(turns)}"

    one = hall(retries=3, concurrency=17)
    found = matches(here, 40)
    for index in range(0, 40, 5):
        found[index] = replace(found[index], speakers={**here, RIGHT: Puppet(replies=named)})
    played = play(one, found)
    assert [t.scenario.id for t in played] == [f"s{n}" for n in range(40)]
    for number, trajectory in enumerate(played):
        texts = [turn.text for turn in trajectory.turns]
        assert len(texts) == 4
        assert all(re.findall(r"topic\d+\.", text) == [f"topic{number}."] for text in texts)
        for role, view in trajectory.views.items():
            marks = set(re.findall(r"(?:topic|secret[a-z]+)\d+\.", whole(view)))
            assert marks == {f"topic{number}.", f"secret{role}{number}."}


def test_a_judge_sees_its_roles_observation_and_the_public_dialogue_alone(
    local, hall, matches
) -> None:
    one = hall()
    engines = {role: TalkingEngine(polite) for role in (LEFT, RIGHT)}
    speakers = {role: local(engine, role, 64) for role, engine in engines.items()}
    played = play(one, matches(speakers, 5))
    for role, other in ((LEFT, RIGHT), (RIGHT, LEFT)):
        cases = one.judges[role].cases
        assert sorted(case.scenario_id for case in cases) == [f"s{n}" for n in range(5)]
        for case in cases:
            assert case.observation == f"secret{role}{case.scenario_id[1:]}."
            assert f"secret{other}" not in repr(case)
        assert all(t.rewards[role] == Scored(value=1.0) for t in played)


def test_what_a_role_is_told_is_made_of_its_own_side_of_the_scenario_alone(hall, matches) -> None:
    """Nothing else is handed over, so that no domain can give the other side away."""
    shown: list[tuple[str, Any]] = []

    class Curious(Chatter):
        def prompt(self, scenario: Any, role: str) -> str:
            shown.append((role, scenario))
            return super().prompt(scenario, role)

        def beside(self, scenario: Any, role: str, turns: Sequence[Any]) -> str:
            shown.append((role, (scenario, turns)))
            return ""

    def talk(seat: Any, turns: Sequence[Any], attempt: int) -> str:
        seat.beside(turns)
        shown.append((seat.role, seat.scenario))
        return "well"

    play(
        hall(domain=Curious(horizon=4)),
        matches({role: Puppet(replies=talk) for role in (LEFT, RIGHT)}, 3),
    )
    assert {role for role, _ in shown} == {LEFT, RIGHT}
    for role, what in shown:
        other = RIGHT if role == LEFT else LEFT
        assert f"secret{other}" not in repr(what)
        assert not re.search(r"'[sc]\d+'", repr(what))  # an id may spell what is private


def test_a_control_token_ends_a_turn_so_that_its_ids_are_its_text(engines, local, hall, matches):
    """Whichever it is; one's own view then gets the end that the format asks for."""

    class Odd(TalkingEngine):
        def _answer(self, request: Request) -> Completion:
            ids = [*TOKENIZER.encode("i see"), CHAT.stop_ids[len(self.requests) % 3]]
            return Completion(ids, [-0.5] * len(ids), "stop")

    assert len(set(CHAT.stop_ids)) == 3
    speakers = {LEFT: local(Odd(polite), LEFT, 64), RIGHT: Puppet(replies=quiet)}
    (trajectory,) = play(hall(horizon=6), matches(speakers))
    assert [turn.text for turn in trajectory.turns[::2]] == ["i see"] * 3
    view = trajectory.views[LEFT]
    for turn in (0, 2):
        own = (view.turn_index == turn) & (view.loss_mask == 1)
        closed = view.ids[np.flatnonzero(own)[-1] + 1 :].tolist()
        if view.ids[own][-1] == END:
            assert closed[: len(NEWLINE)] == NEWLINE
        else:
            assert closed[: 1 + len(NEWLINE)] == [END, *NEWLINE]


def test_trajectories_come_in_the_order_of_their_matches(hall, matches) -> None:
    def brief(seat: Any, turns: Sequence[Any], attempt: int) -> str | Utterance:
        return BAD if seat.whole.id == "s2" else "well"

    speakers = {role: Puppet(replies=brief) for role in (LEFT, RIGHT)}
    played = play(hall(horizon=6, concurrency=2), matches(speakers, 5))
    assert [t.draw for t in played] == [f"0.{n}" for n in range(5)]
