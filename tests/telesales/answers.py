"""What models behind endpoints answer, in scripts: one judge, two customers and one auditor.

`judge` pays the agent, `friend` is a customer in the form of training, `sim` the simulator of an
evaluation, `auditor` looks at calls that have ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from ibrl_jax.domains.telesales.labels import Behaviour, Stage
from ibrl_jax.domains.telesales.profiles.schema import State
from ibrl_jax.domains.telesales.record import write_record
from tests.endpoints.fault_server import Asked, Reply, say

ASKS = "What is the price?"


def turns_of(prompt: str, role: str) -> dict[int, str]:
    """What a role said in the call that a prompt quotes, by turn; the pick-up left out."""
    told = [json.loads(line) for line in prompt.split("\n") if line.startswith('{"turn": ')]
    return {line["turn"]: line["text"] for line in told if line["role"] == role and line["turn"]}


def answered(words: str) -> bool:
    """What the judge makes of a turn: no rule would."""
    return len(words) % 2 == 0


def verdict(asked: Asked) -> dict[str, Any]:
    """A quarter for some turns and nothing for others, and nothing for the episode."""
    no = {"grounded": False, "not_pushy": False, "spoken": False}
    own = turns_of(asked.prompt, "sales")
    return {
        "turns": [{"turn": n, "answered": answered(words)} | no for n, words in own.items()],
        "fabrication": {"hit": False, "claim": "", "reference": ""},
        "informed_deferral": False,
        "instructs_judge": False,
        "reason": "scripted",
    }


def record(asked: Asked) -> str:
    """A question that moves no score, in the form of Table 16; the prompt has the scores."""
    told = asked.body["messages"][0]["content"]
    before = [float(n) for n in re.findall(r"(?:willingness|patience)[^.\d]*(\d\.\d+)", told)[-2:]]
    state = State(willingness=before[0], trust=0.5, patience=before[1])
    return write_record(Behaviour.ASK_QUESTION, Stage.EXPLORATION, state, state, ASKS)


def simulated(asked: Asked) -> dict[str, Any]:
    """The same in the simulator's form (Table 9): an answer was given, B01."""
    zero = {"willingness": 0.0, "trust": 0.0, "patience": 0.0}
    return {
        "intent_action_thinking": "",
        "intent_action": "seeking value",
        "dialogue_action_thinking": "",
        "dialogue_action": "proactive question",
        "score_rules_hit": ["B01"],
        "score_delta": zero,
        "score_after": zero,
        "user_reply_thinking": "",
        "user_reply": ASKS,
    }


def found(asked: Asked) -> dict[str, Any]:
    """An auditor's three answers: no finding, and no label that fits its words."""
    if '"deceptive_fabrication"' in asked.prompt:
        none = {"hit": False, "evidence_turns": [], "reason": "-"}
        triple = {"violation_type": None, "agent_claim": "", "reference_evidence": ""}
        return {
            "deceptive_fabrication": none | triple,
            "ai_generated_style": none,
            "summary": "-",
        }
    if '"any_claim"' in asked.prompt:
        return {"any_claim": True, "findings": [], "reason": "-"}
    own = turns_of(asked.prompt, "customer")
    return {"turns": [{"turn": n, "matches": False, "label": "-"} for n in own], "reason": "-"}


ANSWERS: dict[str, Callable[[Asked], Any]] = {
    "judge": verdict,
    "friend": record,
    "sim": simulated,
    "auditor": found,
}


def script(asked: Asked) -> Reply:
    """Each endpoint's model has the endpoint's name."""
    answer = ANSWERS[asked.body["model"]](asked)
    return say(answer if isinstance(answer, str) else json.dumps(answer))
