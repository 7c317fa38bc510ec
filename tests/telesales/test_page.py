"""The page says what the code does: characters of prompts and their cost, and what we chose."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ibrl_jax.dialogue.agents import ApiSpeaker
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.domains.base import Role, Scenario, Turn
from ibrl_jax.domains.telesales.domain import TeleSales
from ibrl_jax.domains.telesales.labels import LANGUAGES, Language
from ibrl_jax.domains.telesales.profiles import scoring
from ibrl_jax.domains.telesales.profiles.schema import MAX_AGENT_TURNS
from ibrl_jax.domains.telesales.scenarios import CUSTOMER, SALES, lead_of
from ibrl_jax.rewards import telesales_rules as rules
from ibrl_jax.trainer.teachers import converse
from tests.telesales.smoke import smoke

PAGE = (Path(__file__).parents[2] / "docs" / "telesales.md").read_text(encoding="utf-8")
PROFILES = 60


def number(cell: str) -> float:
    return float(cell.replace(",", "").removesuffix(" M")) * (1e6 if cell.endswith("M") else 1)


def rows(head: str, under: str) -> dict[str, list[str]]:
    """The table of the page that begins so under a heading: the other cells by the first."""
    body = PAGE.split(f"\n{under}\n")[1].split(f"| {head} |")[1].split("\n\n")[0]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in body.split("\n")[2:]]
    return {name: rest for name, *rest in cells}


ENDPOINTS = "## Endpoints, and what they cost"
ASKED, COSTS = rows("asked", ENDPOINTS), rows("what", ENDPOINTS)


class Told:
    """A conductor and an endpoint in one, which notes how much it is told and says nothing."""

    settings = SimpleNamespace(name="any")

    def __init__(self) -> None:
        self.characters: list[int] = []

    async def elsewhere(self, answer: Awaitable[Any]) -> Any:
        return await answer

    async def chat(self, messages: Sequence[dict[str, str]], **_: Any) -> Any:
        self.characters.append(sum(len(message["content"]) for message in messages))
        return SimpleNamespace(text="", finish="stop")


def seated(
    domain: TeleSales, scenario: Scenario, role: Role, form: str, turns: Sequence[Turn]
) -> list[int]:
    """What a model in a seat is sent before each turn of a finished call."""
    told: Any = Told()
    seat: Any = SimpleNamespace(
        role=role, scenario=scenario.seen_by(role), key_of=lambda turn, attempt: (0, 0)
    )
    agent = ApiSpeaker(endpoint=told, adapter=domain.adapter(form, role)).sit(seat, told)
    for index, turn in enumerate(turns):
        if turn.role == role and "scripted" not in turn.flags:
            asyncio.run(agent.reply(turns[:index], 0))
    return told.characters


@pytest.fixture(scope="module", params=LANGUAGES)
def measured(request: pytest.FixtureRequest) -> tuple[Language, dict[str, float], list[int]]:
    """Mean characters by what is asked, and the agent's turns of the calls."""
    options = ("prompt_length=full", "stories=offline", "max_agent_turns=15", "score_step=0.01")
    domain = build_domain(
        smoke(
            *(f"telesales.{option}" for option in options),
            f"telesales.language={request.param}",
            f"telesales.test_profiles={PROFILES}",
        )
    )
    assert isinstance(domain, TeleSales)
    sizes: dict[str, list[int]] = {name: [] for name in ASKED}
    agent_turns = []
    pair = {SALES: "competent", CUSTOMER: "rule_v1"}
    for index, scenario in enumerate(domain.scenarios("test")):
        turns = converse(domain, scenario, pair, SALES, 0, index).turns
        prompts, lead = domain.prompts, lead_of(scenario)
        judge = {r: prompts.judge(r, scenario.private[r], turns) for r in domain.roles}
        found = {
            "judge of the agent": [len(judge[SALES])],
            "judge of the customer": [len(judge[CUSTOMER])],
            "auditor: audit": [len(prompts.audit(lead, turns))],
            "auditor: hallucinations": [len(prompts.hallucination(lead, turns))],
            "auditor: labels": [len(prompts.label_audit(turns))],
        }
        for name, role, form in (
            ("simulator, with the call so far", CUSTOMER, "simulator"),
            ("a model as `record`, with the call so far", CUSTOMER, "record"),
            ("a model as `seller`, with the call so far", SALES, "seller"),
        ):
            found[name] = seated(domain, scenario, role, form, turns)
        for name, characters in found.items():
            sizes[name] += characters
        agent_turns.append(sum(turn.role == SALES for turn in turns))
    return request.param, {name: float(np.mean(of)) for name, of in sizes.items()}, agent_turns


def test_prompts_are_as_long_as_the_page_says(measured: Any) -> None:
    language, found, agent_turns = measured
    column = {"zh": 0, "en": 1}[language]
    documented = {name: number(cells[column]) for name, cells in ASKED.items()}
    assert found == pytest.approx(documented, rel=0.05)
    assert 7 <= np.mean(agent_turns) < 8
    assert max(agent_turns) == 14


def test_tokens_and_cost_follow_from_the_characters() -> None:
    """Chinese at .6 tokens a character, answers, which are JSON, at half that."""
    asked = {name: (number(c[0]), number(c[2])) for name, c in ASKED.items()}
    both = [asked[f"judge of the {who}"] for who in ("agent", "customer")]
    audits = [size for name, size in asked.items() if name.startswith("auditor")]
    record = asked["a model as `record`, with the call so far"]
    simulator = asked["simulator, with the call so far"]
    made = [
        (both, 90 * 64),
        ([record], round(90 * 64 * 6.7)),
        ([simulator], round(500 * 3 * 6.7)),
        (audits, 500 * 3),
    ]
    for (sizes, times), (calls, into, out, cost) in zip(made, COSTS.values(), strict=True):
        assert number(calls) == times * len(sizes)
        read = 0.6 * times * sum(prompt for prompt, _ in sizes)
        written = 0.3 * times * sum(answer for _, answer in sizes)
        assert number(into) == pytest.approx(read, abs=0.06e6)
        assert number(out) == pytest.approx(written, abs=0.06e6)
        assert float(cost) == pytest.approx((0.3 * read + 0.5 * written) / 1e6, abs=0.06)


def short(value: float) -> str:
    """As the page writes shares: without the zero before the point."""
    return f"{value:.10g}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.10g}"


def test_what_was_chosen_where_the_paper_is_silent_is_the_codes() -> None:
    chosen = {name: rest[0] for name, rest in rows("what", "## Where the paper is silent").items()}
    reward = smoke().rewards
    assert len(chosen) == 8
    assert f"{MAX_AGENT_TURNS} turns" in chosen
    willingness = " / ".join(short(value) for value in scoring._W_INTENT.values())
    assert f"willingness {willingness} by intent" in chosen["scores at the start"]
    assert f"trust from {short(scoring._T_BASE)} " in chosen["scores at the start"]
    assert f"patience from {short(scoring._P_BASE)} " in chosen["scores at the start"]
    assert f"noise of {short(scoring.NOISE)} " in chosen["scores at the start"]
    difficulty = chosen["difficulty, of willingness w, trust t and patience p"]
    easy, medium, hard = scoring.CUTS.values()
    assert f"easy up to {easy}, medium {medium}, hard {hard}, above" in difficulty
    assert scoring.__doc__ is not None
    weights = re.findall(r"\.\d\d", scoring.__doc__)
    assert re.findall(r"(?<!\d)\.\d\d", difficulty) == weights
    score = chosen["turn score S, reward R"]
    assert f"sum of {short(reward.gamma)}^k s_k / sum of {short(reward.gamma)}^k" in score
    assert f"R = {short(reward.turn)} S + {short(reward.episode)} E" in score
    agent = chosen["judge of the agent"]
    worth = [short(value) for value in (rules.CONFIRMED, rules.VERBAL, rules.DEFERRED)]
    assert re.findall(r"(\S+) for (?:a|an) (?:confirmed|yes|informed)", agent) == worth
    assert f"{short(-rules.FABRICATED)} less for a fabrication" in agent
