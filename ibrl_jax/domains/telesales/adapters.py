"""How models take a seat in a form of their own, each with its own prompt.

| name | role | prompt | writes | own turns in its history |
| --- | --- | --- | --- | --- |
| record | customer | Table 16, its state anew each turn | a record | records |
| simulator | customer | Table 9, the scores so far | the simulator's JSON | replies |
| seller | sales | Table 10 | JSON with `agent_message` | messages |

A policy without an adapter has the forms of training and `TeleSales.prompt`, with the state of the
opening; a customer is told its state anew beside each utterance (`TeleSales.beside`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ibrl_jax.domains.base import Adapter, Role, Scenario, Turn
from ibrl_jax.domains.telesales.labels import AgentAction, Behaviour, Language, Stage
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.prompts import CallState, Prompts
from ibrl_jax.domains.telesales.record import SCORES
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, SALES, Observation, initial_of, lead_of
from ibrl_jax.domains.telesales.tools import Tool
from ibrl_jax.endpoints.answers import parse_answer, strip_leading_thoughts
from ibrl_jax.endpoints.errors import AttemptFailed


class RecordAdapter:
    """The customer of training, played by a model whose prompt can be made anew each turn."""

    name: str = "record"

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def system(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        observation = scenario.private[role]
        state = call_state(observation, turns, self._prompts.language)
        return self._prompts.customer(observation, state)

    def own(self, turn: Turn) -> str:
        return turn.said

    def utterance(self, text: str) -> str | None:
        return text


class SimulatorAdapter:
    """The prompted customer of the evaluation."""

    name: str = "simulator"

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def system(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        observation = scenario.private[role]
        return self._prompts.simulator(observation, score_trace(observation, turns))

    def own(self, turn: Turn) -> str:
        return turn.text

    def utterance(self, text: str) -> str | None:
        return text


class AgentMessage(BaseModel):
    """What Table 10 asks for; `thinking_content` is for logs alone."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    thinking_content: str
    agent_action: Annotated[
        AgentAction, BeforeValidator(lambda x: AgentAction(x) if isinstance(x, str) else x)
    ]
    agent_message: str


class SellerAdapter:
    """A prompted sales agent: what of its JSON is said is `agent_message`."""

    name: str = "seller"

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts

    def system(self, scenario: Scenario, role: Role, turns: Sequence[Turn]) -> str:
        del role, turns
        return self._prompts.seller_eval(lead_of(scenario))

    def own(self, turn: Turn) -> str:
        return turn.said

    def utterance(self, text: str) -> str | None:
        try:
            return parse_answer(strip_leading_thoughts(text), AgentMessage).agent_message
        except AttemptFailed:
            return None


ADAPTERS: Mapping[str, tuple[Role, Callable[[Prompts], Adapter]]] = {
    "record": (CUSTOMER, RecordAdapter),
    "simulator": (CUSTOMER, SimulatorAdapter),
    "seller": (SALES, SellerAdapter),
}
"""By name: the role that speaks in the form, and what makes the adapter."""


def score_trace(observation: Observation, turns: Sequence[Turn]) -> list[dict[str, float]]:
    """The three scores at the start and after each own turn, by the customer's own records."""
    start = initial_of(observation)
    states = [turn.private[CUSTOMER]["state"] for turn in turns if CUSTOMER in turn.private]
    return [dict(state) for state in states] or [{n: getattr(start, n) for n in SCORES}]


_WORDS: Mapping[str, Mapping[Language, str]] = {
    "none": {"zh": "无", "en": "none"},
    "not_added": {"zh": "未添加", "en": "not added"},
    "agreed": {"zh": "口头同意，尚未添加", "en": "agreed in words, not added yet"},
    "sent": {
        "zh": "已收到申请或邀请，尚未添加",
        "en": "a request came, not added yet",
    },
    Tool.ADD_CONTACT: {"zh": "按手机号添加", "en": "request by phone number"},
    Tool.SEND_INVITATION: {"zh": "短信邀请", "en": "invitation by text message"},
    "explained": {"zh": "有说明", "en": "with words about it"},
    "bare": {"zh": "没有说明", "en": "without a word about it"},
}


def call_state(observation: Observation, turns: Sequence[Turn], language: Language) -> CallState:
    """The state before the customer's next turn, as Table 16's prompt has it.

    Guidance is the agent's last tool call: which it was, and whether anything was said with it.
    """
    state, stage, status = initial_of(observation), Stage.OPENING, "not_added"
    method, quality = "none", "none"
    for turn in turns:
        own = turn.private.get(CUSTOMER)
        if own is not None:
            state = State(**own["state"])
            stage = Stage(own["stage"]) if "stage" in own else stage
            if own["behavior"] == Behaviour.AGREE_WECHAT and status == "not_added":
                status = "agreed"
        elif turn.role == SALES and turn.payload and turn.payload["calls"]:
            status, method = "sent", turn.payload["calls"][-1]["tool"]
            quality = "explained" if turn.payload["words"] else "bare"
    return CallState(
        stage=str(stage),
        willingness_before=str(round(state.willingness, 2)),
        patience_before=str(round(state.patience, 2)),
        wechat_status=_WORDS[status][language],
        guidance_type=_WORDS[method][language],
        guidance_quality=_WORDS[quality][language],
    )
