"""What one does with a config or a run by the commands themselves, each once and small."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import evaluate, export, report, serve, sft
from ibrl_jax.config import load
from ibrl_jax.dialogue import build as dialogue_build
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from ibrl_jax.dialogue.trajectory import Trajectory
from ibrl_jax.errors import UserError
from ibrl_jax.rewards.types import Failed, Scored
from ibrl_jax.trainer import tokenizer, transcripts
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train
from tests.trainer.conftest import SMOKE, House

ROOT = Path(__file__).parents[2]
Command = Callable[..., str]


@pytest.fixture(scope="module")
def made(house: House, quiet: Console) -> RunFolder:
    """One iteration of IB-RL."""
    with house.at_home():
        return train(house.config(name="jobs", iterations=1), quiet)


@pytest.fixture
def said() -> Command:
    """`said(module, *options)`: what the command prints."""

    def run(module, *options: str) -> str:
        out = io.StringIO()
        module.main(options, Console(file=out, width=200))
        return out.getvalue()

    return run


def test_sft_says_where_the_start_is(house: House, smoke_root: Path, said: Command) -> None:
    out = said(sft, f"--config={SMOKE}", f"--config.run.root={smoke_root}")
    found = re.search(r"the start is (\S+): loss", out)
    assert found is not None
    folder = Path(found[1])
    assert folder.is_relative_to(smoke_root / "starts")
    assert json.loads((folder / "summary.json").read_text())["steps"] == 3
    assert f"--config.policy.start={folder} takes it from there" in out


def test_evaluate_then_report(made: RunFolder, house: House, said: Command) -> None:
    few = ("--config.evaluation.scenarios=2", "--config.statistics.resamples=100")
    with house.at_home():
        out = said(evaluate, f"--run={made.path}", *few)
    assert f"make report RUN={made.path} shows it" in out
    lines = out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("policy  "))
    assert lines[head].split()[:3] == ["policy", "against", "agreement"]
    assert lines[head + 1].startswith("SFT start  all held-out  ")
    table = json.loads((made.path / "evaluation.json").read_text())
    assert {row["policy"] for row in table["rows"]} >= {"agent0", "agent1"}
    assert said(report, f"--run={made.path}") == f"the report is {made.path / 'report.html'}\n"
    assert "agent0" in (made.path / "report.html").read_text()


def test_export_writes_a_folder(made: RunFolder, said: Command, tmp_path: Path) -> None:
    said(export, f"--run={made.path}", "--role=agent1", f"--to={tmp_path / 'policy'}")
    assert (tmp_path / "policy" / "model.safetensors").is_file()
    assert json.loads((tmp_path / "policy" / "config.json").read_text())["model_type"] == "qwen3"


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Somebody says hello once and leaves."""
    (tmp_path / "typed").write_text("hello\n")
    with (tmp_path / "typed").open() as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        yield


def test_play_is_a_dialogue_with_a_policy(
    made: RunFolder,
    house: House,
    said: Command,
    keyboard: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(dialogue_build, "build_cast", lambda *args, **kw: house.cast)
    out = said(serve, f"--run={made.path}", "--seat=agent0")
    assert out.startswith("agent1 is the policy that this run trained\n")
    told = capsys.readouterr().out
    assert told.startswith("Deal-or-No-Deal. You are agent0.")
    assert "(end of input, Ctrl-D, leaves)" in told
    sentence = json.loads((made.path / "summary.json").read_text())["sentence"]
    assert out.endswith(f"{sentence}\n")
    assert sentence.startswith(("you left", "no deal", "a deal"))


def test_play_without_anybody_at_the_keyboard_is_one_sentence(
    made: RunFolder, said: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # as it is where standard input is closed
    with pytest.raises(UserError, match="nobody is there to type"):
        said(serve, f"--run={made.path}")


def test_the_seat_of_a_role_that_did_not_train_goes_to_who_held_it_in_training() -> None:
    config = load(str(ROOT / "configs" / "telesales" / "unilateral-scripted.py"))
    domain = build_domain(config)
    assert serve.opposite(config, domain) == "customer"  # from where one meets the agent
    assert serve.partners(config, domain, "sales") == ["frozen:sales"]
    assert serve.partners(config, domain, "customer") == config.roles.customer.counterpart
    config = load(str(ROOT / "configs" / "dond" / "unilateral-scripted.py"))
    domain = build_domain(config)
    assert serve.opposite(config, domain) == "agent1"
    for role in domain.roles:  # one game: the one that trained can hold either seat
        assert serve.partners(config, domain, role) == ["frozen:agent0"]


def test_the_ending_says_what_each_side_is_paid(house: House) -> None:
    domain = house.cast.domain
    scenario = domain.scenarios("test")[0]
    referee = domain.referee(scenario, "agent0")
    referee.play(referee.check("agent0", "<disagree>", "stop"))
    assert referee.outcome is not None
    played = Trajectory(
        scenario=scenario,
        draw="0",
        rollout=0,
        first="agent0",
        matchup=frozenset(),
        speakers={},
        turns=tuple(referee.turns),
        views={},
        outcome=referee.outcome,
        rewards={"agent0": Scored(value=0.25), "agent1": Failed(reason="no network")},
        retries={},
    )
    assert serve.ending(domain, played, "agent0") == (
        "no deal, for one side said <disagree>; reward by rule: you 0.25"
    )


def test_transcripts_are_written_and_read_back(said: Command, tmp_path: Path) -> None:
    file = tmp_path / "dialogues.jsonl"
    assert f"4 transcripts are in {file}" in said(
        transcripts, f"--config={SMOKE}", f"--to={file}", "--count=4"
    )
    found = transcripts.read_transcripts(str(file), build_domain(load(SMOKE)))
    assert len(found) == 4
    assert all(transcript.turns for transcript in found)


def test_tokenizer_writes_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "OUTPUT", tmp_path)
    monkeypatch.setattr(tokenizer, "DIALOGUES", 40)
    assert tokenizer.main() == 0
    for name in ("tokenizer.model", "tokenizer-telesales.model"):
        made = load_tokenizer(str(tmp_path / name))
        assert made.decode(made.encode("i take item0=2")) == "i take item0=2"
        assert len({made.control(token) for token in tokenizer.CONTROL}) == 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_plans_without_a_device() -> None:
    command = [sys.executable, "-m", "ibrl_jax.memory", f"--config={SMOKE}", "--device-gb=80"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "| on each device | GB |" in done.stdout
    assert "It fits on devices of 80 GB." in done.stdout
