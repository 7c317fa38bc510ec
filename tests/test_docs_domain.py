"""docs/adding-a-domain.md is true: its game plays, and its changes make the package know it."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ibrl_jax.dialogue.agents import ScriptedSpeaker
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.loop import Hall, Match, play
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.domains.base import Domain, Outcome
from ibrl_jax.domains.dond import domain as dond
from ibrl_jax.domains.dond.grammar import Items
from ibrl_jax.domains.dond.scripted import Negotiator, Phrases, Position
from ibrl_jax.identity import generator
from ibrl_jax.rewards.rules import RuleJudge
from ibrl_jax.rewards.types import Case, Failed, Scored
from ibrl_jax.trainer.teachers import examples

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "adding-a-domain.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
GAME, CONFIG, LOOK = "ibrl_jax/domains/split.py", "configs/split/mini.py", "a look,"
FAMILIES = ("easy", "half", "firm")
ALL_PAIRS = list(product(FAMILIES, FAMILIES))


def written(file: str) -> str:
    """The Python of the page that belongs in a file, its blocks in order."""
    found = [text for kind, text in BLOCKS if kind == "python" and text.startswith(f"# {file}")]
    assert found, f"the page has no block of {file}"
    return "\n\n".join(text.split("\n", 1)[1] for text in found)


@pytest.fixture(scope="module")
def game() -> Iterator[Any]:
    """The page's module, under the name that it would have."""
    with pytest.MonkeyPatch.context() as patch:
        module = ModuleType("ibrl_jax.domains.split")
        patch.setitem(sys.modules, module.__name__, module)
        exec(compile(written(GAME), GAME, "exec"), module.__dict__)
        yield module


@pytest.fixture(scope="module")
def domain(game: Any) -> Any:
    return game.Split(game.SplitSettings(largest=12, horizon=8, penalty=0.2))


def played(domain: Any, split: str, *pairs: tuple[str, str]) -> list[Trajectory]:
    """Every scenario of a split, opened by either side, between every pair of families."""
    judges = {role: RuleJudge(reward=domain.reward) for role in domain.roles}
    hall = Hall(domain=domain, judges=judges, seed=0, retries=0, concurrency=8)
    matches = [
        Match(
            stage=("test", *pair),
            draw=scenario.id,
            rollout=0,
            scenario=scenario,
            first=first,
            matchup=frozenset(),
            speakers={
                role: ScriptedSpeaker(domain=domain, family=family)
                for role, family in zip(domain.roles, pair, strict=True)
            },
        )
        for scenario in domain.scenarios(split)
        for first in domain.roles
        for pair in pairs
    ]
    return play(hall, matches)


def test_the_page_prints_what_it_says(game: Any) -> None:
    out = io.StringIO()
    with redirect_stdout(out):
        exec(written(LOOK), {})
    shown = next(text for kind, text in BLOCKS if not kind)
    assert out.getvalue() == shown


def test_every_pair_of_families_comes_to_a_result_by_the_rules(domain: Any) -> None:
    for t in played(domain, "val", *ALL_PAIRS):
        coins, facts = t.scenario.public["coins"], t.outcome.facts
        assert all(turn.valid for turn in t.turns), t.turns
        assert t.outcome.end_reason in ("deal", "no_deal")
        assert t.outcome.success == (sum(facts["taken"].values()) > 0)
        assert sum(facts["taken"].values()) <= coins
        for role in domain.roles:
            home = t.scenario.private[role]["home"]
            gain = (facts["taken"][role] - home) / coins if t.outcome.success else 0.0
            assert facts["gain"][role] == pytest.approx(gain)
            assert t.rewards[role] == Scored(value=facts["gain"][role])
    assert any(t.outcome.success for t in played(domain, "test", ("easy", "easy")))


def test_the_claims_of_a_deal_are_the_last_two(domain: Any) -> None:
    scenario = domain.scenarios("train")[0]
    coins = scenario.public["coins"]
    referee: Any = domain.referee(scenario, "left")
    for role, claim in (("left", coins), ("right", 3), ("left", coins - 3)):
        assert referee.to_move == role
        referee.play(referee.check(role, f"i take {claim}", "stop"))
    assert referee.outcome.facts["taken"] == {"left": coins - 3, "right": 3}


@pytest.mark.parametrize(
    ("text", "end", "code"),
    [
        ("i take all", "stop", "no_claim"),
        ("", "error", "cut_off"),
        ("i take 1", "length", "cut_off"),
        ("i take 999", "stop", "too_much"),
    ],
)
def test_a_malformed_turn_costs_its_role_and_no_other(
    domain: Any, text: str, end: Any, code: str
) -> None:
    referee = domain.referee(domain.scenarios("train")[0], "right")
    turn = referee.check("right", text, end)
    assert (turn.valid, turn.error_code, list(referee.turns)) == (False, code, [])
    referee.play(turn)
    assert (referee.to_move, referee.outcome.offender) == (None, "right")
    assert [domain.reward(referee.outcome, role) for role in ("left", "right")] == [0.0, -0.2]


def test_a_thought_does_not_become_public(domain: Any) -> None:
    referee = domain.referee(domain.scenarios("train")[0], "left")
    turn = referee.check("left", "<think>home is 2</think> i take 3", "stop")
    assert turn.valid
    assert turn.text == "i take 3"


def test_an_aborted_dialogue_has_no_number(domain: Any) -> None:
    scenario = domain.scenarios("train")[0]
    referee = domain.referee(scenario, "left")
    referee.abort("the endpoint is gone")
    outcome: Outcome = referee.outcome
    assert domain.measures(scenario, outcome, "left") is None
    cell = domain.tabulate([(scenario, outcome, "left")], 1)
    assert (cell["n"], cell["planned"], cell["coverage"], cell["agreement"]) == (0, 1, 0.0, None)
    case = Case.of(scenario, "left", referee.turns, outcome)
    assert isinstance(asyncio.run(RuleJudge(reward=domain.reward).score(case)), Failed)


def test_a_role_is_told_and_judged_by_its_own_side_alone(domain: Any) -> None:
    scenario = next(s for s in domain.scenarios("train") if s.id == "9:3-4")
    assert domain.prompt(scenario, "left").endswith("coins 9; home 3")
    assert domain.prompt(scenario, "right").endswith("coins 9; home 4")
    (t, *_) = [t for t in played(domain, "val", ("easy", "easy")) if t.outcome.success]
    case = Case.of(t.scenario, "right", t.turns, t.outcome)
    assert case.observation == t.scenario.private["right"]
    assert set(case.outcome.facts) == {"taken", "gain"}
    assert set(case.outcome.facts["gain"]) == {"right"}


def test_splits_share_no_cluster_and_are_all_there(domain: Any) -> None:
    clusters = [{s.cluster for s in domain.scenarios(split)} for split in ("train", "val", "test")]
    assert all(clusters)
    assert sum(map(len, clusters)) == len(set.union(*clusters))


def test_measures_have_the_compared_keys_and_agree_with_the_cell(domain: Any) -> None:
    done = played(domain, "val", ("easy", "firm"), ("half", "firm"))
    compared = {measure.key for measure in domain.measured if measure.compared}
    values = [domain.measures(t.scenario, t.outcome, "left") for t in done]
    assert all(set(value) == compared for value in values)
    cell = domain.tabulate([(t.scenario, t.outcome, "left") for t in done], len(done))
    assert {measure.key for measure in domain.measured} <= set(cell)
    for key in compared:
        assert cell[key] == pytest.approx(np.mean([value[key] for value in values]))
    assert sum(cell["end_reasons"].values()) == cell["n"] == len(done)


def test_it_is_a_domain_that_teachers_can_teach(domain: Any) -> None:
    as_domain: Domain = domain
    tokenizer = load_tokenizer("embedded")
    model: Any = None  # nobody samples
    speech = Speech(model=model, tokenizer=tokenizer, chat=ChatML(tokenizer))
    found = examples(
        as_domain,
        speech,
        families=("easy", "half"),
        count=6,
        seed=0,
        number_weight=3.0,
        deals_only=True,
    )
    assert found
    for example in found:
        assert len(example.ids) == len(example.weight)
        assert {0.0, 1.0, 3.0} == set(example.weight.tolist()), "claims' numbers weigh 3"
        assert len(example.ids) <= 384, "longer than the config's views"
    player = domain.scripted("easy", domain.scenarios("train")[0], "left", generator(0, "x"))
    assert player.reply(()).startswith("i take ")


def test_the_scripted_counterpart_of_the_other_page_plays_as_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (ROOT / "docs" / "counterparts.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    family = next(text for _, text in blocks if "class Stubborn(" in text)
    at = next(i for i, (_, text) in enumerate(blocks) if "format_matrix(matrix)" in text)
    found = {"Negotiator": Negotiator, "Phrases": Phrases, "Position": Position, "Items": Items}
    monkeypatch.setattr(dond, "FAMILIES", dict(dond.FAMILIES))
    monkeypatch.chdir(ROOT)
    out = io.StringIO()
    with redirect_stdout(out):
        exec(family, found)
        exec(blocks[at][1], found)
    assert out.getvalue() == blocks[at + 1][1]


# ------------------------------------------------------------------ the changes of shared files


def changed(text: str, hunk: list[str], file: str) -> str:
    """A file's text with one hunk applied; its context must be there once."""
    old = "".join(f"{line[1:]}\n" for line in hunk if line[:1] != "+")
    new = "".join(f"{line[1:]}\n" for line in hunk if line[:1] != "-")
    assert text.count(old) == 1, f"{file}: the page's context is there {text.count(old)} times"
    return text.replace(old, new)


def hunks() -> Iterator[tuple[str, list[str]]]:
    """File and lines of every change that the page shows."""
    for kind, block in BLOCKS:
        file, lines = "", []
        for line in [*block.splitlines(), "@@"] if kind == "diff" else ():
            if line.startswith("--- ") or line == "@@":
                if lines:
                    yield file, lines
                file, lines = line.removeprefix("--- ") if line != "@@" else file, []
            else:
                lines.append(line)


KNOWN = """
import json
from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_domain, build_judges, build_speech
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import columns_of
from ibrl_jax.evaluation.leakage import check
from ibrl_jax.trainer.start import start_key

config = load("configs/split/mini.py")
domain, speech = build_domain(config), build_speech(config)
judges = build_judges(config, domain, None)
leakage = check({"runs/split-mini/seed0": config}, config)
try:
    load("configs/split/mini.py", ["--config.roles.left.judge=somebody"])
except UserError as error:
    refused = str(error)
print(json.dumps({
    "domain": domain.name,
    "train": list(config.roles),
    "families": list(config.sft.families),
    "judges": {role: type(judge).__name__ for role, judge in judges.items()},
    "columns": {column.name: column.kind for column in columns_of(config)},
    "stops": list(leakage.stops),
    "prompts": [found.what for found in leakage.overlaps if found.kind == "prompt"],
    "key": len(start_key(config, domain, speech, 0)) > 8,
    "refused": refused,
}))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with the page's files and changes."""
    shutil.copytree(ROOT / "ibrl_jax", tmp_path / "ibrl_jax")  # with what is compiled, and its time
    files = set()
    for file, hunk in hunks():
        path = tmp_path / file
        path.write_text(changed(path.read_text(encoding="utf-8"), hunk, file), encoding="utf-8")
        files.add(file)
    assert len(files) == 6
    for file in (GAME, CONFIG):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(written(file), encoding="utf-8")
    return tmp_path


def python(folder: Path, *arguments: str) -> str:
    """What Python prints there, with that folder's package."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_the_changes_make_the_package_know_it(copy: Path) -> None:
    """The config loads, and all that training needs is made of it."""
    found = json.loads(python(copy, "-c", KNOWN))
    assert found["domain"] == "split"
    assert found["train"] == ["left", "right"]
    assert found["families"] == ["easy", "half"]
    assert found["judges"] == dict.fromkeys(("left", "right"), "RuleJudge")
    assert found["columns"]["firm"] == "held-out"
    assert found["stops"] == []
    assert len(found["prompts"]) == 2
    assert all("(ibrl_jax/domains/split.py)" in text for text in found["prompts"])
    assert found["key"]
    assert "the rules of split pay its roles" in found["refused"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_is_trained_evaluated_and_reported(copy: Path) -> None:
    small = {
        "iterations": 2,
        "policy.preset": "qwen3_micro",
        "sft.dialogues": 40,
        "sft.steps": 3,
        "sft.batch": 4,
        "rollout.draws": 2,
        "engine.rows": 8,
        "optimiser.micro_batch": 8,
        "evaluation.scenarios": 2,
    }
    options = [f"--config.{key}={value}" for key, value in small.items()]
    python(copy, "-m", "ibrl_jax.train", f"--config={CONFIG}", "--quickstart", *options)
    run = copy / "runs" / "split-mini" / "seed0"
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert [measure["key"] for measure in evaluation["measures"][:3]] == [
        "agreement",
        "gain",
        "surplus",
    ]
    assert {"firm", "in-system", "self-play"} <= {c["name"] for c in evaluation["columns"]}
    assert {row["policy"] for row in evaluation["rows"]} >= {"left", "right"}
    assert "Surplus taken" in (run / "report.html").read_text()
