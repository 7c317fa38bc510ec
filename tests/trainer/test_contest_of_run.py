"""A run's own evaluation: the contest of its policies, in its folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ibrl_jax.contests.contest import contest, contest_of_run
from ibrl_jax.contests.entries import entries_of
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches
from ibrl_jax.evaluation.outcomes import read_outcomes
from ibrl_jax.trainer.frozen import find_frozen, run_config
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train
from tests.trainer.conftest import House, Scene

ROLES = ("agent0", "agent1")


def test_a_runs_own_evaluation_seats_frozen_counterparts(scene: Scene, house: House) -> None:
    config = scene.both.config()
    alone = f"frozen:{scene.alone.path}:agent0"
    config.evaluation.counterparts = (
        f"others={alone}+fair",
        "start=frozen:start",
        f"own={scene.name('agent1@2')}",
    )
    config.evaluation.scenarios = 2
    with house.at_home():
        table = contest_of_run(scene.both, config, lambda _: None)
    kinds = {c["name"]: c["kind"] for c in table["columns"]}
    assert (kinds["others"], kinds["start"], kinds["own"]) == (
        "held-out",
        "development",
        "development",
    )
    assert [row["cells"]["others"]["planned"] for row in table["rows"]] == [8, 8, 8]
    assert {o["kind"] for o in table["leakage"]["overlaps"]} >= {"prompt"}  # the rules are shared
    assert table["leakage"]["stops"] == []
    met = {policy["label"]: policy for policy in table["policies"]}
    assert met["agent1"]["fingerprint"] == find_frozen(scene.name("agent1"), ROLES).fingerprint
    assert met["agent1"]["in_system"] == ["frozen:agent0"]
    rows = (scene.both.path / "evaluation" / "agent0-others.jsonl").read_text().splitlines()
    names = Counter(name for row in rows for name in json.loads(row)["speakers"].values())
    updates = find_frozen(alone, ROLES).updates
    assert names[f"{alone}@{updates}"] == names["scripted:fair"] == 4


class Killed(BaseException):
    pass


def test_a_runs_own_evaluation_goes_on_where_it_stopped(
    house: House, quiet: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in its second cell; told again, nothing is played; trained on, what has changed."""
    settings = {"name": "stopped-evaluation", "evaluation__counterparts": "fair"}
    with house.at_home():
        folder = train(house.config(iterations=1, **settings), quiet)
        config = folder.config()
        config.evaluation.scenarios = 2
        played: list[int] = []
        play, kill = matches.play, 1

        def counted(hall: Any, planned: Any, watch: Any) -> Any:
            played.append(len(planned) if len(played) != kill else 0)
            if not played[-1]:
                raise Killed
            return play(hall, planned, watch)

        monkeypatch.setattr(matches, "play", counted)
        with pytest.raises(Killed):
            contest_of_run(folder, config, lambda _: None)
        assert not (folder.path / "evaluation.json").exists()
        kill = -1
        first = contest_of_run(folder, config, lambda _: None)
        assert played == [4, 0, *[4] * 8]  # nine cells, the first of them played before
        played.clear()
        again = contest_of_run(folder, config, lambda _: None)
        assert {**again, "date": ""} == {**first, "date": ""}
        assert played == []
        of_run = read_outcomes(folder.path / "outcomes.csv")
        folder = train(house.config(iterations=2, **settings), quiet)
        said: list[str] = []
        contest_of_run(folder, config, said.append)
    # The start against the family, the start in-system and alone: as they were.
    assert len(played) == 6
    assert sum("was played otherwise" in text for text in said) == 6
    assert read_outcomes(folder.path / "outcomes.csv") != of_run


def test_a_runs_own_evaluation_is_the_contest_of_its_policies(
    scene: Scene, house: House, tmp_path: Path
) -> None:
    """Wherever it lies: the names of its own policies do not hold its folder."""
    run = tmp_path / "copied"
    run.mkdir()
    for name in ("config.json", "policies"):
        (run / name).symlink_to((scene.both.path / name).resolve())
    config = scene.both.config()
    config.evaluation.counterparts = ("fair",)
    config.evaluation.scenarios = 2
    config.statistics.resamples = 100
    with house.at_home():
        own = contest_of_run(RunFolder(run), config, lambda _: None)
        (tmp_path / "copied").rename(tmp_path / "moved")
        said: list[str] = []
        moved = contest_of_run(RunFolder(tmp_path / "moved"), config, said.append)
        names = {"SFT start": "start", "agent0": "agent0", "agent1": "agent1"}
        labelled = [f"{label}={scene.name(which)}" for label, which in names.items()]
        config.evaluation.policies = tuple(labelled)
        other = contest(config, tmp_path / "other", lambda _: None)
    assert "0 dialogues were played; statistics of all" in said
    assert own["rows"] == moved["rows"] == other["rows"]
    assert own["comparisons"] == other["comparisons"]
    assert set(own) == set(other)
    files = [p / "outcomes.csv" for p in (tmp_path / "moved", tmp_path / "other")]
    one, two = (
        [
            {k: v for k, v in asdict(row).items() if k != "counterpart"}
            for row in read_outcomes(file)
        ]
        for file in files
    )
    assert one == two
    summary = json.loads((tmp_path / "moved" / "summary.json").read_text())
    assert set(summary["evaluation"]) == set(names)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda values: values["dond"].pop("select_rule"), "lacks dond.select_rule,"),
        (lambda values: values["dond"].update(colour="red"), "has dond.colour, which is no more,"),
        (lambda values: values["sft"].pop("families"), "lacks sft.families,"),
        (lambda values: values["roles"]["agent1"].pop("judge"), "lacks roles.agent1.judge,"),
        (lambda values: values.update(roles=3), "lacks roles.agent0.train,"),
        (lambda values: values.update(domain="chess"), "names the domain 'chess',"),
        (lambda values: values.update(endpoints={"e": {}}), "lacks endpoints.e.model,"),
    ],
)
def test_a_run_of_another_version_is_one_sentence(
    scene: Scene, tmp_path: Path, change: Callable[[Any], Any], why: str
) -> None:
    (tmp_path / "policies").symlink_to((scene.alone.path / "policies").resolve())
    values = json.loads((scene.alone.path / "config.json").read_text())
    values["engine"].pop("block")  # of no matter to whom it met
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = scene.config(f"frozen:{tmp_path}:agent0")
    domain = build_domain(config)
    assert run_config(str(tmp_path)).roles.agent0.train
    entries_of(config, domain)
    change(values)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(UserError, match=f"{tmp_path} is of another version, .*{why}") as caught:
        entries_of(config, domain)
    assert "\n" not in str(caught.value)
