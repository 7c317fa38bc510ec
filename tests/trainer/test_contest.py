"""Any policies, of one run or of many, side by side: found by name, met, kept and told."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict
from rich.console import Console
from safetensors.numpy import load_file

from ibrl_jax.config import endpoint, load
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches
from ibrl_jax.evaluation.outcomes import OutcomeRow, read_outcomes
from ibrl_jax.evaluation.store import Store
from ibrl_jax.trainer import seating
from ibrl_jax.trainer.contest import contest, contest_of_run, contest_sentence
from ibrl_jax.trainer.entries import entries_of
from ibrl_jax.trainer.frozen import find_frozen, run_config
from ibrl_jax.trainer.run import RunFolder
from ibrl_jax.trainer.session import train
from tests.trainer.conftest import House

ROOT = Path(__file__).parents[2]
ROLES = ("agent0", "agent1")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A run of both roles with snapshots, and one of agent0 alone against a family."""

    house: House
    both: RunFolder
    alone: RunFolder

    def config(self, *policies: str, **changes: Any) -> ConfigDict:
        config = self.house.config(name="contest")
        config.evaluation.scenarios = 2
        config.evaluation.policies = policies
        config.statistics.resamples = 100
        for key, value in changes.items():
            config.evaluation[key] = value
        return config

    def name(self, which: str) -> str:
        return f"frozen:{self.both.path}:{which}"


@pytest.fixture(scope="module")
def scene(house: House, quiet: Console) -> Scene:
    lone: dict[str, Any] = {
        "roles__agent1__train": False,
        "roles__agent1__counterpart": "scripted:greedy,frozen:start",
    }
    with house.at_home():
        both = train(house.config(name="both", iterations=3, run__snapshots_every=2), quiet)
        alone = train(house.config(name="alone", iterations=1, **lone), quiet)
    return Scene(house=house, both=both, alone=alone)


@pytest.fixture(scope="module")
def whole(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Policies of two runs, a snapshot, a start, a family; pooled and frozen columns."""
    to = tmp_path_factory.mktemp("whole")
    config = scene.config(
        f"start={scene.name('start')}",
        scene.name("agent0"),
        f"early={scene.name('agent1@2')}",
        f"alone=frozen:{scene.alone.path}:agent0",
        "fair",
        counterparts=(
            "A=fair+mirror",
            "greedy",
            f"own={scene.name('agent1')}",
            f"folder=frozen:{scene.both.path / 'policies' / 'agent0'}",
        ),
        reference="early",
        crossplay=True,
    )
    with scene.house.at_home():
        return to, contest(config, to, lambda _: None)


def by_cell(rows: Sequence[OutcomeRow]) -> Mapping[tuple[str, str], list[OutcomeRow]]:
    found: dict[tuple[str, str], list[OutcomeRow]] = {}
    for row in rows:
        found.setdefault((row.policy, row.column), []).append(row)
    return found


# ------------------------------------------------------------------------- snapshots


def test_a_run_keeps_the_policies_of_every_nth_iteration_and_of_the_last(scene: Scene) -> None:
    kept = sorted(p.name for p in (scene.both.path / "policies").iterdir())
    named = [f"{role}{at}" for role in ROLES for at in ("", "@000002", "@000003")]
    assert kept == [*named, "start"]
    assert not list((scene.alone.path / "policies").glob("*@*"))
    for role in ROLES:
        last, final = (
            load_file(scene.both.policy(name) / "params.safetensors")
            for name in (f"{role}@000003", role)
        )
        assert all((last[key] == final[key]).all() for key in final)
        early = load_file(scene.both.policy(f"{role}@000002") / "params.safetensors")
        assert any((early[key] != final[key]).any() for key in final)


def test_a_run_that_goes_on_writes_the_same_snapshots(
    scene: Scene, house: House, quiet: Console
) -> None:
    """Stopped after iteration 1, it goes on from there."""
    with house.at_home():
        settings = {"name": "stopped-with-snapshots", "run__snapshots_every": 2}
        train(house.config(iterations=1, **settings), quiet)
        folder = train(house.config(iterations=3, **settings), quiet)
    assert not folder.policy("agent0@000004").exists()
    for name in ("agent0@000002", "agent1@000002", "agent0@000003"):
        one, other = (f.policy(name) / "params.safetensors" for f in (scene.both, folder))
        assert one.read_bytes() == other.read_bytes()


# ------------------------------------------------------------------------- names


def test_every_form_of_a_name_finds_its_policy(scene: Scene) -> None:
    run = str(scene.both.path)
    for which, role, iteration, folder in (
        ("agent1", "agent1", None, "agent1"),
        ("agent0@2", "agent0", 2, "agent0@000002"),
        ("agent0@000002", "agent0", 2, "agent0@000002"),
        ("start", None, None, "start"),
    ):
        found = find_frozen(f"frozen:{run}:{which}", ROLES)
        assert (found.role, found.iteration, found.run) == (role, iteration, run)
        assert found.folder == scene.both.policy(folder)
        again = find_frozen(f"frozen:{found.folder}", ROLES)
        assert (again.role, again.iteration, again.run) == (role, iteration, run)
        assert again.fingerprint == found.fingerprint
    prints = {find_frozen(scene.name(w), ROLES).fingerprint for w in ("agent0", "agent1", "start")}
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("frozen:nowhere", "names no policy: it is frozen:<run folder>:<role>"),
        ("frozen:start", "names no policy"),
        ("frozen:nowhere:agent0", "nowhere is not a run folder"),
        ("frozen:RUN:agent2", "names no policy of a run, which has start and agent0, agent1"),
        ("frozen:RUN:agent0@x", "a snapshot is <role>@<iteration>"),
        ("frozen:RUN:agent0@7", "there are agent0@000002, agent0@000003, agent1@000002"),
        ("frozen:ALONE:agent1", "has no such policy"),
        ("frozen:ALONE:agent0@1", "there is none; a run writes snapshots where"),
        ("nobody", "there is no scripted family 'nobody' in dond; there are "),
    ],
)
def test_a_name_of_nobody_is_one_sentence(scene: Scene, name: str, why: str) -> None:
    name = name.replace("RUN", str(scene.both.path)).replace("ALONE", str(scene.alone.path))
    domain = build_domain(scene.config())
    for config in (scene.config(name), scene.config("fair", counterparts=(name,))):
        with pytest.raises(UserError, match=why) as caught:
            entries_of(config, domain)
        assert "\n" not in str(caught.value)


def test_labels_must_tell_policies_apart(scene: Scene) -> None:
    domain = build_domain(scene.config())
    with pytest.raises(UserError, match="two policies called 'agent0'; give them labels"):
        entries_of(scene.config(scene.name("agent0"), f"frozen:{scene.alone.path}:agent0"), domain)
    with pytest.raises(UserError, match="reference is 'x', which is no label of .*agent0, fair"):
        entries_of(scene.config(scene.name("agent0"), "fair", reference="x"), domain)
    with pytest.raises(UserError, match="policies names no policy; it is a list of label=name"):
        entries_of(scene.config(), domain)


def test_a_policy_of_another_network_is_one_sentence(scene: Scene, tmp_path: Path) -> None:
    other = tmp_path / "policies" / "agent0"
    other.mkdir(parents=True)
    for file in scene.both.policy("agent0").iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    about = json.loads((other / "policy.json").read_text())
    about["model"]["mlp"] = 7
    (other / "policy.json").write_text(json.dumps(about))
    config = scene.config(f"other=frozen:{other}", counterparts=("fair",))
    with scene.house.at_home(), pytest.raises(UserError, match="holds another network"):
        contest(config, tmp_path / "to", lambda _: None)


def test_a_view_without_room_for_a_turn_is_one_sentence(scene: Scene, tmp_path: Path) -> None:
    config = scene.config(scene.name("agent0"), counterparts=("fair",))
    config.rollout.max_view_tokens = 40
    with scene.house.at_home(), pytest.raises(UserError, match="is 40, and agent0's prompt takes"):
        contest(config, tmp_path, lambda _: None)


# ------------------------------------------------------------------------- who meets whom


def test_every_row_meets_every_column_and_who_it_trained_with(
    scene: Scene, whole: tuple[Path, dict[str, Any]]
) -> None:
    to, table = whole
    cells = by_cell(read_outcomes(to / "outcomes.csv"))
    rows = ("start", "agent0", "early", "alone", "fair")
    for row in rows:
        for column, planned in (("A", 8), ("greedy", 4), ("own", 4), ("folder", 4)):
            assert len(cells[row, column]) == planned
            assert Counter(r.seat for r in cells[row, column]) == dict.fromkeys(ROLES, planned // 2)
        assert len(cells[row, "self-play"]) == 4
    met = {row: {r.counterpart for r in cells.get((row, "in-system"), [])} for row in rows}
    assert met == {
        "start": {scene.name("start")},
        "agent0": {scene.name("agent1")},
        "early": {scene.name("agent0@2")},
        "alone": {"scripted:greedy", f"frozen:{scene.alone.path}:start"},
        "fair": set(),
    }
    assert {r.counterpart for r in cells["fair", "self-play"]} == {"scripted:fair"}
    assert table["coverage"] == {"planned": 136, "scored": 136}


def test_a_counterpart_that_any_run_has_met_is_no_held_out_one(
    whole: tuple[Path, dict[str, Any]], scene: Scene
) -> None:
    kinds = {c["name"]: c["kind"] for c in whole[1]["columns"]}
    assert kinds["A"] == "held-out"
    assert kinds["greedy"] == "development"  # agent0 of the run `alone` trained with it
    assert kinds["own"] == kinds["folder"] == "development"
    domain = build_domain(scene.config())
    alone = f"alone=frozen:{scene.alone.path}:agent0"
    other = ("conceder", "fair", scene.name("agent1"), f"s={scene.name('start')}")
    columns = entries_of(scene.config(alone, counterparts=other), domain).columns
    # The same start by its weights, though it lies in another run's folder.
    assert [c.kind for c in columns[:4]] == ["development", "held-out", "held-out", "development"]
    nobody = entries_of(scene.config("fair", counterparts=("conceder",)), domain)
    assert nobody.columns[0].kind == "held-out"


def test_comparisons_are_against_the_reference(whole: tuple[Path, dict[str, Any]]) -> None:
    found = whole[1]["comparisons"]
    assert {c["reference"] for c in found} == {"early"}
    assert {c["policy"] for c in found if c["column"] == "A"} == {
        "start",
        "agent0",
        "alone",
        "fair",
    }


def test_the_result_names_what_made_it(scene: Scene, whole: tuple[Path, dict[str, Any]]) -> None:
    to, table = whole
    written = json.loads((to / "evaluation.json").read_text())
    assert written == json.loads(json.dumps(table))
    assert set(written["versions"]) == {"ibrl_jax", "jax"}
    assert written["config"]["evaluation"]["scenarios"] == 2
    assert written["settings"]["advantage"] == {"ddof": 1, "eps": 1e-6}
    assert written["scenarios"]["count"] == 2
    about = {policy["label"]: policy for policy in written["policies"]}
    early = find_frozen(scene.name("agent1@2"), ROLES)
    assert about["early"]["fingerprint"] == early.fingerprint
    assert (about["early"]["iteration"], about["early"]["updates"]) == (2, early.updates)
    assert about["fair"] == {
        "label": "fair",
        "name": "scripted:fair",
        "kind": "scripted",
        "in_system": [],
    }
    assert written["counterparts"][scene.name("agent1")]["fingerprint"]
    assert "5 policies, 136 of 136 dialogues" in contest_sentence(table, to)


def test_a_cell_is_what_its_rows_say(whole: tuple[Path, dict[str, Any]]) -> None:
    to, table = whole
    cells = by_cell(read_outcomes(to / "outcomes.csv"))
    for row in table["rows"]:
        for column, cell in row["cells"].items():
            if column == "all held-out":
                continue
            values = [r.values for r in cells[row["policy"], column]]
            for key in ("agreement", "expected_utility", "first_try_agreement"):
                assert cell[key] == pytest.approx(sum(v[key] for v in values) / len(values))
            lines = (to / "dialogues" / f"{row['policy']}-{column}.jsonl").read_text().splitlines()
            assert len(lines) == len(values)


# ------------------------------------------------------------------------- again


def test_a_second_start_plays_nothing_and_tells_the_same(
    scene: Scene, whole: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    to, table = whole
    before = {p.name: p.read_bytes() for p in to.iterdir() if p.is_file() and p.suffix != ".json"}
    monkeypatch.setattr(
        "ibrl_jax.evaluation.matches.play", lambda *args: pytest.fail("a dialogue was played")
    )
    config = scene.config()
    with config.unlocked():
        config.evaluation = ConfigDict(
            {
                k: tuple(v) if isinstance(v, list) else v
                for k, v in table["config"]["evaluation"].items()
            }
        )
    with scene.house.at_home():
        again = contest(config, to, lambda _: None)
    assert {p.name: p.read_bytes() for p in to.iterdir() if p.name in before} == before
    assert {k: v for k, v in again.items() if k != "date"} == {
        k: v for k, v in table.items() if k != "date"
    }


def test_a_folder_is_one_process_at_a_time(scene: Scene, tmp_path: Path) -> None:
    held = Store(tmp_path / "dialogues", lambda _: None).alone()
    with held, pytest.raises(UserError, match="another process is evaluating"):
        contest(scene.config("fair", counterparts=("fair",)), tmp_path, lambda _: None)


def test_scripted_rows_need_no_engine(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seating, "build_cast", lambda *args: pytest.fail("engines were built"))
    config = scene.config("fair", "mirror", counterparts=("greedy",))
    config.policy.folder = "no/such/folder"
    table = contest(config, tmp_path, lambda _: None)
    assert [row["cells"]["greedy"]["n"] for row in table["rows"]] == [4, 4]
    assert all("in-system" not in row["cells"] for row in table["rows"])


def test_who_a_policy_trained_with_must_be_reachable(scene: Scene, tmp_path: Path) -> None:
    """A run against an endpoint, told by its config alone."""
    for name in ("config.json", "policies"):
        (tmp_path / name).symlink_to((scene.alone.path / name).resolve())
    (tmp_path / "config.json").unlink()
    values = json.loads((scene.alone.path / "config.json").read_text())
    values["roles"]["agent1"]["counterpart"] = ["api:friend"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = scene.config(f"frozen:{tmp_path}:agent0")
    domain = build_domain(config)
    with pytest.raises(UserError, match="trained with api:friend, and config.endpoints has no"):
        entries_of(config, domain)
    config.evaluation.in_system = False
    assert entries_of(config, domain).rows[0].partners == ()
    config.evaluation.in_system = True
    with config.unlocked():
        config.endpoints.friend = endpoint(base_url="http://127.0.0.1:9/v1")
    assert entries_of(config, domain).rows[0].partners == ("api:friend",)


# ------------------------------------------------------------------------- cross-play


def test_cross_play_has_an_entry_for_every_pair(whole: tuple[Path, dict[str, Any]]) -> None:
    to, _ = whole
    matrix = json.loads((to / "crossplay.json").read_text())
    labels = ["start", "agent0", "early", "alone", "fair"]
    assert matrix["first"] == matrix["second"] == labels
    assert [(e["first"], e["second"]) for e in matrix["entries"]] == [
        (a, b) for a in labels for b in labels
    ]
    for entry in matrix["entries"]:
        assert (entry["planned"], entry["n"], entry["clusters"]) == (2, 2, 2)
        file = to / "dialogues" / "crossplay" / f"{entry['first']}-{entry['second']}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert {line["seat"] for line in lines} == {"agent0"}
        shares = [
            [x["outcome"]["facts"]["points"][r] / x["outcome"]["facts"]["total"][r] for x in lines]
            for r in ROLES
        ]
        deals = [line["outcome"]["success"] for line in lines]
        assert entry["success"] == sum(deals) / 2
        for key, found in zip(("value", "value_second"), shares, strict=True):
            mean = sum(s for s, deal in zip(found, deals, strict=True) if deal) / 2
            assert entry[key] == pytest.approx(mean)
    with (to / "crossplay.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 25
    assert {"success_low", "value_high", "value_second"} <= set(rows[0])
    svg = (to / "crossplay.svg").read_text()
    assert all(f">{label}<" in svg for label in labels)
    assert (to / "crossplay.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------- make evaluate


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
    settings = {"name": "measured", "evaluation__counterparts": "fair"}
    with house.at_home():
        folder = train(house.config(iterations=1, **settings), quiet)
        config = folder.config()
        config.evaluation.scenarios = 2
        played: list[int] = []
        play, kill = matches.play, 1

        def counted(hall: Any, planned: Any) -> Any:
            played.append(len(planned) if len(played) != kill else 0)
            if not played[-1]:
                raise Killed
            return play(hall, planned)

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


def test_a_contest_of_scripted_sellers_on_the_phone(tmp_path: Path) -> None:
    """Seats that are not interchangeable: who has none in a column has no cell there."""
    config = load(str(ROOT / "configs" / "telesales" / "smoke.py"))
    config.evaluation.policies = ("competent", "polite", "customer=rule_v1")
    config.evaluation.counterparts = ("rule_v1", "rule_v2", "both=rule_v1+rule_v2", "liar")
    config.evaluation.crossplay = True
    table = contest(config, tmp_path, lambda _: None)
    cells = {row["policy"]: row["cells"] for row in table["rows"]}
    sellers = {"all held-out", "rule_v1", "rule_v2", "both"}
    assert set(cells["competent"]) == set(cells["polite"]) == sellers
    assert set(cells["customer"]) == {"all held-out", "liar"}
    both = cells["competent"]["both"]
    assert (both["planned"], both["clusters"]) == (8, 2)
    assert both["success@1"] is not None
    rows = by_cell(read_outcomes(tmp_path / "outcomes.csv"))["competent", "both"]
    assert {row.seat for row in rows} == {"sales"}
    assert sum(row.values["success"] for row in rows) / 8 == both["success"]
    assert table["remark"]
    matrix = json.loads((tmp_path / "crossplay.json").read_text())
    assert (matrix["first"], matrix["second"]) == (["competent", "polite"], ["customer"])
    assert len(matrix["entries"]) == 2
    assert "value_second" not in matrix["entries"][0]
