"""Policies and endpoints in the seats of a call: what they are told, and what stands in a view."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ibrl_jax.dialogue.agents import OPENING, ApiSpeaker, LocalSpeaker
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.loop import Hall, Match, play
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.dialogue.views import PolicyRef, RoleView, Segment
from ibrl_jax.domains.base import Turn
from ibrl_jax.domains.telesales.domain import TeleSales, TelesalesSettings
from ibrl_jax.domains.telesales.labels import Behaviour, Stage
from ibrl_jax.domains.telesales.record import write_record
from ibrl_jax.domains.telesales.scenarios import initial_of
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.endpoints.settings import Budget, EndpointSettings
from ibrl_jax.trainer.teachers import Renderer
from tests.dialogue.fakes import NosyJudge, Puppet, TalkingEngine
from tests.endpoints.fault_server import Asked, FaultServer, Reply, say

TOKENIZER = load_tokenizer("embedded")
DOMAIN = TeleSales(
    TelesalesSettings(
        language="en",
        prompts_dir=None,
        prompt_length="full",
        seed=0,
        train_profiles=8,
        val_profiles=2,
        test_profiles=4,
        composition="sampled",
        stories="offline",
        max_agent_turns=15,
        score_step=0.01,
        test_file="",
        conversations=3,
    )
)
SCENARIO, GUEST = DOMAIN.scenarios("train")[0], DOMAIN.scenarios("test")[0]
HELLO, SENT = "Hi, this is Lin.", "I sent it. <call_function=send_contact_invitation>"
BYE = "Bye. <status=end>"


def written(behaviour: Behaviour, reply: str, scenario: Any = SCENARIO) -> str:
    state = initial_of(scenario.private["customer"])
    return write_record(behaviour, Stage.EXPLORATION, state, state, reply)


ASKS = written(Behaviour.ASK_QUESTION, "How much is it?")
AGREES = written(Behaviour.AGREE_WECHAT, "All right, add me.")


def agent(seat: Any, turns: Any, attempt: int) -> str:
    """A scripted agent: a greeting, an invitation, the end."""
    return (HELLO, SENT, BYE)[sum(turn.role == "sales" for turn in turns)]


def buyer(seat: Any, turns: Any, attempt: int) -> str:
    """A scripted customer: a question, then a yes."""
    return (ASKS, AGREES)[sum(turn.role == "customer" for turn in turns) - 1]


def policy(role: str, says: Callable[[str, Any], str], chat: Any = None) -> LocalSpeaker:
    speech: Any = SimpleNamespace(tokenizer=TOKENIZER, chat=chat or ChatML(TOKENIZER), model=None)
    engine: Any = TalkingEngine(says)
    return LocalSpeaker(
        engine=engine,
        speech=speech,
        params="live",
        ref=PolicyRef(id=role, seat="live", version=1),
        temperature=1.0,
        max_new=400,
    )


def converse(sales: Any, customer: Any, scenario: Any = SCENARIO) -> Trajectory:
    judges: Any = {role: NosyJudge() for role in DOMAIN.roles}
    hall = Hall(domain=DOMAIN, judges=judges, seed=0, retries=0, concurrency=1)
    match = Match(
        stage=("test",),
        draw="0",
        rollout=0,
        scenario=scenario,
        first="sales",
        matchup=frozenset(),
        speakers={"sales": sales, "customer": customer},
    )
    (trajectory,) = play(hall, [match])
    return trajectory


def text_of(view: RoleView, which: np.ndarray) -> str:
    return TOKENIZER.decode(view.ids[which].tolist())


# ------------------------------------------------------------------------- local policies


def customer_policy(chat: Any = None) -> LocalSpeaker:
    return policy("customer", lambda text, _: AGREES if ASKS in text else ASKS, chat)


def test_the_pick_up_line_stands_in_the_customers_view_as_its_own_record_with_mask_0() -> None:
    trajectory = converse(Puppet(replies=agent), customer_policy())
    view = trajectory.views["customer"]
    pick_up = trajectory.turns[0]
    first = view.turn_index == 0
    assert pick_up.said in text_of(view, first)
    assert not view.loss_mask[first].any()
    assert not view.behaviour_logp[first].any()
    assert (view.segment[first] == Segment.TEMPLATE).all()
    # an own turn like any other in the chat format
    assert text_of(view, first & (view.ids != TOKENIZER.control("<|im_end|>"))).startswith(
        TOKENIZER.decode(ChatML(TOKENIZER).header())
    )


def test_what_a_customer_sampled_is_its_record_and_alone_is_trained_on() -> None:
    trajectory = converse(Puppet(replies=agent), customer_policy())
    view, stop = trajectory.views["customer"], ChatML(TOKENIZER).stop_ids[0]
    sampled = view.ids[view.loss_mask == 1].tolist()
    assert sampled == [*TOKENIZER.encode(ASKS), stop, *TOKENIZER.encode(AGREES), stop]
    assert set(view.turn_index[view.loss_mask == 1].tolist()) == {2, 4}


def test_table_16_a_customer_is_told_its_state_anew_beside_each_utterance() -> None:
    call = converse(Puppet(replies=agent), customer_policy())
    view = call.views["customer"]
    start = initial_of(SCENARIO.private["customer"])
    scores = f"{round(start.willingness, 2)}; patience before the turn {round(start.patience, 2)}"
    told = [
        f"\n[state] stage {stage}; willingness before the turn {scores}; WeChat status: {status}; "
        f"guidance method: {method}; guidance quality: {quality}"
        for stage, status, method, quality in (
            ("opening", "not added", "none", "none"),
            (
                *("exploration", "a request came, not added yet"),
                *("invitation by text message", "with words about it"),
            ),
        )
    ]
    for index, turn in enumerate((1, 3)):
        heard = (view.turn_index == turn) & (view.segment == Segment.COUNTERPART)
        assert text_of(view, heard) == call.turns[turn].text
        beside = (view.turn_index == turn) & (view.segment == Segment.TEMPLATE)
        assert text_of(view, beside) == f"user\n{told[index]}\n"
        assert not view.loss_mask[beside].any()


def test_a_state_is_that_of_the_roles_own_records_and_of_nothing_of_the_other_side() -> None:
    call = converse(Puppet(replies=agent), Puppet(replies=buyer))
    own_side = [turn.seen_by("customer") for turn in call.turns[:4]]
    told = DOMAIN.beside(SCENARIO, "customer", own_side)
    assert "agreed" not in told
    assert DOMAIN.beside(SCENARIO, "sales", [turn.seen_by("sales") for turn in call.turns]) == ""
    other = replace(
        SCENARIO,
        private={**SCENARIO.private, "sales": DOMAIN.scenarios("train")[1].private["sales"]},
    )
    assert DOMAIN.beside(other, "customer", own_side) == told
    moved = replace(
        own_side[2],
        private={
            "customer": {
                **own_side[2].private["customer"],
                "state": {"willingness": 0.15, "trust": 0.5, "patience": 0.25},
            }
        },
    )
    changed = DOMAIN.beside(SCENARIO, "customer", [*own_side[:2], moved, own_side[3]])
    assert "willingness before the turn 0.15; patience before the turn 0.25" in changed


def test_a_start_learns_from_the_very_tokens_that_a_policy_reads() -> None:
    sent = SENT.replace(". <", ".<")  # as the agent's own turns are rendered
    call = converse(
        policy("sales", lambda text, _: sent if "much" in text else HELLO), customer_policy()
    )
    speech: Any = SimpleNamespace(tokenizer=TOKENIZER, chat=ChatML(TOKENIZER), model=None)
    renderer = Renderer(DOMAIN, speech, 1.0)
    for role, view in call.views.items():
        example = renderer.example(DOMAIN.prompt(SCENARIO, role), role, call.turns, SCENARIO)
        np.testing.assert_array_equal(view.ids, example.ids[: len(view.ids)])
        np.testing.assert_array_equal(view.loss_mask, example.weight[: len(view.ids)] > 0)


def test_the_pick_up_line_enters_the_view_once_however_long_the_call() -> None:
    view = converse(Puppet(replies=agent), customer_policy()).views["customer"]
    said = converse(Puppet(replies=agent), customer_policy()).turns[0].said
    assert text_of(view, view.turn_index >= 0).count(said) == 1


def test_a_chat_that_opens_thoughts_closes_that_of_the_scripted_line() -> None:
    chat = ChatML(TOKENIZER)
    header = chat.header()
    chat.opening = "<think>\n"
    chat.header = lambda: [*header, *TOKENIZER.encode("<think>\n")]  # type: ignore[method-assign]

    class Thinking:
        def __getattr__(self, name: str) -> Any:
            return getattr(TOKENIZER, name)

        def control(self, name: str) -> int:
            return TOKENIZER.encode("#")[-1] if name == "</think>" else TOKENIZER.control(name)

    speaker = policy("customer", lambda text, _: f"</think>{ASKS if ASKS not in text else AGREES}")
    speech: Any = SimpleNamespace(tokenizer=Thinking(), chat=chat, model=None)
    object.__setattr__(speaker, "speech", speech)
    trajectory = converse(Puppet(replies=agent), speaker)
    view = trajectory.views["customer"]
    said = trajectory.turns[0].said
    before = text_of(view, view.turn_index == 0).partition(said)[0]
    assert before.partition("<think>")[2].strip() == "#"  # the thought is closed before the line


def test_the_agent_hears_the_reply_and_nothing_of_the_record() -> None:
    says = lambda text, _: BYE if "add me" in text else SENT if "much" in text else HELLO  # noqa: E731
    trajectory = converse(policy("sales", says), Puppet(replies=buyer))
    view = trajectory.views["sales"]
    heard = text_of(view, view.segment == Segment.COUNTERPART)
    assert heard == trajectory.turns[0].text + "How much is it?" + "All right, add me."
    assert "willingness" not in text_of(view, view.turn_index >= 0)
    assert "call_function" in text_of(view, view.loss_mask == 1)
    assert trajectory.outcome.end_reason == "agent_end"


def test_the_customer_hears_a_notice_in_place_of_the_tools_syntax() -> None:
    view = converse(Puppet(replies=agent), customer_policy()).views["customer"]
    heard = text_of(view, view.segment == Segment.COUNTERPART)
    assert "[notice]" in heard
    assert "call_function" not in text_of(view, view.turn_index >= 0)


def test_no_agent_is_handed_the_others_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule-based player is shown the turns themselves."""
    from ibrl_jax.dialogue.agents import ScriptedSpeaker

    shown: list[Turn] = []

    class Nosy:
        def reply(self, turns: Any) -> str:
            shown.extend(turns)
            return BYE

    monkeypatch.setattr(DOMAIN, "scripted", lambda *_: Nosy(), raising=False)
    converse(ScriptedSpeaker(domain=DOMAIN, family="nosy"), Puppet(replies=buyer))
    assert shown
    assert not any("customer" in turn.private for turn in shown)


# ------------------------------------------------------------------------- endpoints


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FaultServer]]:
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(FaultServer(script))


def endpoint(server: FaultServer, form: str | None, role: str) -> ApiSpeaker:
    settings = EndpointSettings(
        name="friend",
        base_url=server.url,
        model="scripted",
        key_env=None,
        temperature=1.0,
        max_tokens=400,
        timeout_s=5.0,
        retries=0,
        backoff_s=0.001,
        max_wait_s=0.1,
        concurrency=8,
        requests_per_minute=None,
        budget=Budget(max_calls=None, max_tokens=None, max_cost=None),
        price_in=None,
        price_out=None,
        cache_dir=None,
        schema_mode="none",
        extra_body={},
    )
    adapter = None if form is None else DOMAIN.adapter(form, role)
    return ApiSpeaker(endpoint=Endpoint(settings), adapter=adapter)


def turns_of(server: FaultServer, call: int) -> list[dict[str, str]]:
    return server.asked[call].body["messages"]


@pytest.mark.parametrize("form", [None, "record"])
def test_table_16_a_customers_earlier_records_are_its_assistant_messages(serve, form) -> None:
    server = serve(lambda asked: say(AGREES if asked.number else ASKS))
    trajectory = converse(Puppet(replies=agent), endpoint(server, form, "customer"))
    system, opening, pick_up, hello, asks, sent = turns_of(server, 1)
    assert opening == {"role": "user", "content": OPENING["en"]}
    assert pick_up == {"role": "assistant", "content": trajectory.turns[0].said}
    own_side = [turn.seen_by("customer") for turn in trajectory.turns[:2]]
    told = DOMAIN.beside(SCENARIO, "customer", own_side) if form is None else ""
    assert hello == {"role": "user", "content": HELLO + told}
    assert json.loads(asks["content"]) == json.loads(ASKS)
    assert sent["content"].startswith("I sent it.\n[notice]")
    stage = "Stage opening" if form is None else "Stage exploration"
    assert stage in system["content"]
    # told of the guidance too: beside what was said, or in the prompt that is made anew each turn
    assert ("guidance method none" in system["content"]) is (form is None)
    assert ("guidance method: invitation" in sent["content"]) is (form is None)


def test_an_endpoint_is_addressed_in_the_language_of_the_call(serve) -> None:
    server = serve(lambda asked: say(AGREES))
    chinese = replace(SCENARIO, public={"language": "zh"})
    converse(Puppet(replies=agent), endpoint(server, None, "customer"), chinese)
    assert turns_of(server, 0)[1] == {"role": "user", "content": "（请你先说。）"}


def simulated(action: str, reply: str, *hits: str) -> str:
    zero = {"willingness": 0.0, "trust": 0.0, "patience": 0.0}
    return json.dumps(
        {
            "intent_action_thinking": "",
            "intent_action": "warming",
            "dialogue_action_thinking": "",
            "dialogue_action": action,
            "score_rules_hit": list(hits),
            "score_delta": zero,
            "score_after": zero,
            "user_reply_thinking": "",
            "user_reply": reply,
        }
    )


def test_table_9_the_simulator_sees_its_scores_as_we_count_them_and_its_replies(serve) -> None:
    def script(asked: Asked) -> Reply:
        last = asked.number > 0
        return say(simulated("hang-up" if last else "softening", "Bye." if last else "Ok.", "B02"))

    server = serve(script)
    speaker = endpoint(server, "simulator", "customer")
    trajectory = converse(Puppet(replies=agent), speaker, GUEST)
    assert trajectory.speakers["customer"] == "api:friend:simulator"
    system, _, pick_up, _, reply, _ = turns_of(server, 1)
    assert (pick_up["content"], reply["content"]) == (trajectory.turns[0].text, "Ok.")
    start = initial_of(GUEST.private["customer"])
    trace = json.loads(system["content"].rpartition("SCORE_TRACE: ")[2])
    assert [scores["trust"] for scores in trace] == pytest.approx([start.trust, start.trust + 0.06])
    assert trajectory.outcome.end_reason == "hang_up"
    assert trajectory.outcome.facts["flags"]["rescored"] == 2


def test_table_10_of_a_prompted_agents_json_the_message_alone_is_said(serve) -> None:
    def message(said: str) -> Reply:
        return say(
            json.dumps(
                {"thinking_content": "hm", "agent_action": "Greeting", "agent_message": said}
            )
        )

    server = serve(lambda asked: message((HELLO, SENT, BYE)[asked.number]))
    trajectory = converse(endpoint(server, "seller", "sales"), Puppet(replies=buyer))
    said = [turn for turn in trajectory.turns if turn.role == "sales"]
    assert [turn.said for turn in said] == [
        HELLO,
        SENT.replace(". <", ".<"),
        BYE.replace(" <", "<"),
    ]
    assert trajectory.outcome.end_reason == "agent_end"
    assert "thinking_content" not in repr(trajectory.turns)
    system, pick_up, hello, _ = turns_of(server, 1)
    assert "agent_message" in system["content"]
    assert pick_up == {"role": "user", "content": trajectory.turns[0].text}
    assert hello == {"role": "assistant", "content": HELLO}


def test_a_prompted_agent_that_breaks_its_form_has_said_nothing(serve) -> None:
    server = serve(lambda asked: say("Hello there!"))
    trajectory = converse(endpoint(server, "seller", "sales"), Puppet(replies=buyer))
    assert trajectory.outcome.offender == "sales"
    assert trajectory.turns[-1].error_code == "not_produced"
