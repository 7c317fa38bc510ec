"""An endpoint in a seat, over loopback: what it is told, how often it is asked, how it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from ibrl_jax.config import default_config
from ibrl_jax.dialogue.agents import OPENING, ApiSpeaker, LocalSpeaker
from ibrl_jax.dialogue.build import build_domain, build_hall
from ibrl_jax.dialogue.loop import Hall, Match, play
from ibrl_jax.dialogue.views import Segment
from ibrl_jax.domains.dond.scenarios import make_scenario
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.endpoints.settings import Budget, EndpointSettings
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Failed, Scored
from tests.dialogue.fakes import TOKENIZER, TalkingEngine
from tests.endpoints.fault_server import Asked, FaultServer, Reply, say, send_json, status

SCENARIO = make_scenario((1, 2, 3), (1, 3, 1), (4, 0, 2))
MINE = "<try> item0=0 item1=2 item2=0 <try>"
THEIRS = "<selection> item0=1 item1=0 item2=3 <selection>"
CONFIRM = "<selection> item0=0 item1=2 item2=0 <selection>"


def negotiates(text: str, key: tuple[int, int]) -> str:
    """agent0's side of a deal: asks for both of item1, and takes them."""
    return CONFIRM if "item0=1 item1=0 item2=3" in text else MINE


def agrees(asked: Asked) -> Reply:
    """agent1's side: small talk until there is an offer, which it takes."""
    return say(THEIRS if "<try>" in asked.prompt else "what do you need?")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FaultServer]]:
    """Start servers that end with the test."""
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(FaultServer(script))


def speaker(server: FaultServer, **changes: Any) -> ApiSpeaker:
    fields: dict[str, Any] = dict(
        name="friend",
        base_url=server.url,
        model="scripted",
        key_env=None,
        temperature=1.0,
        max_tokens=64,
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
    return ApiSpeaker(endpoint=Endpoint(EndpointSettings(**fields | changes)))


@pytest.fixture(scope="module")
def table() -> Hall:
    """Deal-or-No-Deal with its own referee and judges."""
    config = default_config()
    return build_hall(config, build_domain(config), retries=0, concurrency=8)


@pytest.fixture
def policy(local) -> LocalSpeaker:
    return local(TalkingEngine(negotiates), "agent0", 64)


def match(policy: Any, other: Any, first: str = "agent0") -> Match:
    return Match(
        stage=("train", 0),
        draw="0.0",
        rollout=0,
        scenario=SCENARIO,
        first=first,
        matchup=frozenset({"agent0"}),
        speakers={"agent0": policy, "agent1": other},
    )


def test_a_policy_makes_a_deal_with_an_endpoint(serve, table, policy) -> None:
    server = serve(agrees)
    (trajectory,) = play(table, [match(policy, speaker(server))])
    assert [turn.action for turn in trajectory.turns] == ["propose", "select", "select"]
    assert trajectory.outcome.end_reason == "deal"
    assert trajectory.rewards == {"agent0": Scored(value=0.6), "agent1": Scored(value=1.0)}
    assert trajectory.speakers == {"agent0": "live:agent0@3", "agent1": "api:friend"}
    assert set(trajectory.views) == {"agent0"}
    view = trajectory.views["agent0"]
    heard = view.ids[view.segment == Segment.COUNTERPART].tolist()
    assert heard == TOKENIZER.encode(THEIRS)


def test_its_own_turns_are_the_assistants_and_the_policys_the_users(serve, table, policy) -> None:
    server = serve(agrees)
    play(table, [match(policy, speaker(server))])
    (asked,) = server.asked
    system, user = asked.body["messages"]
    assert system == {"role": "system", "content": table.domain.prompt(SCENARIO, "agent1")}
    assert user == {"role": "user", "content": MINE}


def test_an_endpoint_that_speaks_first_is_asked_to(serve, table, policy) -> None:
    server = serve(agrees)
    (trajectory,) = play(table, [match(policy, speaker(server), first="agent1")])
    assert trajectory.outcome.end_reason == "deal"
    talk = [message["role"] for message in server.asked[1].body["messages"]]
    assert talk == ["system", "user", "assistant", "user"]
    assert server.asked[0].prompt == OPENING["en"]
    assert server.asked[1].body["messages"][1]["content"] == OPENING["en"]
    assert server.asked[1].body["messages"][2]["content"] == "what do you need?"
    assert OPENING["en"] not in repr(trajectory.turns)


def test_an_endpoint_is_never_told_the_policys_values(serve, table, policy) -> None:
    server = serve(agrees)
    play(table, [match(policy, speaker(server), first=role) for role in table.domain.roles])
    for asked in server.asked:
        said = repr(asked.body)
        assert "item0 count 1 value 4 item1 count 2 value 0 item2 count 3 value 2" in said
        assert "value 1 item1 count 2 value 3" not in said


def test_three_conversations_are_three_calls_and_a_rerun_replays_those_three(
    serve, table, local, tmp_path
) -> None:
    """The server never says the same twice, so a replay can be told from a call."""

    def numbered(asked: Asked) -> Reply:
        return say(f"call number {asked.number}")

    def says(text: str, key: tuple[int, int]) -> str:
        return "<disagree>" if "call number" in text else "hello"

    server = serve(numbered)
    runs = []
    for _ in range(2):
        friend = speaker(server, cache_dir=str(tmp_path))
        one = match(local(TalkingEngine(says), "agent0", 64), friend)
        played = play(table, [replace(one, rollout=g) for g in range(3)])
        runs.append([t.turns[1].text for t in played])
    assert len(set(runs[0])) == 3
    assert runs[1] == runs[0]
    assert len(server.asked) == 3


def test_a_malformed_answer_that_is_asked_for_again_is_another_call(
    serve, table, policy, tmp_path
) -> None:
    """With a cache too: the second attempt is no replay of the first."""

    def learns(asked: Asked) -> Reply:
        return say("<offer> all <offer>") if asked.number == 0 else say(THEIRS)

    server = serve(learns)
    friend = speaker(server, cache_dir=str(tmp_path))
    (trajectory,) = play(replace(table, retries=1), [match(policy, friend)])
    assert trajectory.outcome.end_reason == "deal"
    assert trajectory.retries == {"agent0": 0, "agent1": 1}
    assert len(server.asked) == 2


def test_an_answer_cut_off_is_no_turn(serve, table, policy) -> None:
    server = serve(lambda asked: say("i would like to", finish="length"))
    (trajectory,) = play(table, [match(policy, speaker(server))])
    assert trajectory.outcome.end_reason == "malformed"
    assert trajectory.outcome.offender == "agent1"
    assert trajectory.turns[-1].error_code == "truncated"


RISK = {"error": {"message": "Content Exists Risk", "code": "invalid_request_error"}}


@pytest.mark.parametrize(
    "reply",
    [say(THEIRS, finish="content_filter"), say("", finish="sensitive"), send_json(RISK, 400)],
    ids=["held back", "held back whole", "not let in"],
)
def test_a_providers_content_filter_is_nobodys_malformed_turn(serve, table, policy, reply) -> None:
    """The endpoint failed, not the model behind it: nothing is asked again but the dialogue."""
    server = serve(lambda asked: reply)
    friend = speaker(server, retries=3)
    (trajectory,) = play(replace(table, retries=2), [match(policy, friend)])
    assert len(server.asked) == 2  # the dialogue was played once more
    assert trajectory.outcome.end_reason == "aborted"
    assert trajectory.outcome.offender is None
    assert trajectory.retries == {"agent0": 0, "agent1": 0}
    for reward in trajectory.rewards.values():
        assert isinstance(reward, Failed)
        assert "endpoint 'friend': filtered after 1 attempt" in reward.reason
    assert friend.endpoint.ledger.summary()["failures"] == {"filtered": 2}


@pytest.mark.parametrize("reply", [status(500), say("")], ids=["server error", "empty"])
def test_a_failing_endpoint_is_a_failed_dialogue_and_no_zero(serve, table, policy, reply) -> None:
    server = serve(lambda asked: reply)
    (trajectory,) = play(table, [match(policy, speaker(server))])
    assert len(server.asked) == 2  # the dialogue was played once more
    assert trajectory.outcome.end_reason == "aborted"
    for reward in trajectory.rewards.values():
        assert isinstance(reward, Failed)
        assert "endpoint 'friend'" in reward.reason


def test_a_refused_key_ends_the_stage_and_names_the_variable(
    serve, table, policy, monkeypatch
) -> None:
    monkeypatch.setenv("FRIEND_KEY", "sk-marker")
    server = serve(lambda asked: status(401))
    friend = speaker(server, key_env="FRIEND_KEY")
    with pytest.raises(UserError, match="FRIEND_KEY") as caught:
        play(table, [replace(match(policy, friend), rollout=g) for g in range(3)])
    assert "sk-marker" not in str(caught.value)
