"""Any policies, of one run or of many, side by side: found by name, met, kept and told."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ml_collections import ConfigDict
from rich.console import Console
from safetensors.numpy import load_file

from ibrl_jax.config import endpoint, load
from ibrl_jax.contests.contest import contest, contest_sentence, table_lines
from ibrl_jax.contests.entries import entries_of
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches
from ibrl_jax.evaluation.outcomes import OutcomeRow, read_outcomes
from ibrl_jax.evaluation.store import Store
from ibrl_jax.trainer import seating
from ibrl_jax.trainer.frozen import find_frozen
from ibrl_jax.trainer.session import train
from tests.trainer.conftest import House, Scene

ROOT = Path(__file__).parents[2]
ROLES = ("agent0", "agent1")


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
    files = (to / "dialogues").rglob("*.jsonl")
    count = sum(len(file.read_text().splitlines()) for file in files)
    assert written["unfinished"] == {"dialogues": count, "broken_off": 0}, "with cross-play"
    assert "5 policies, 136 of 136 dialogues" in contest_sentence(table, to)
    files = "evaluation.json, outcomes.csv, crossplay.svg and dialogues/ lie there"
    assert files in contest_sentence(table, to)
    assert "goes on" not in contest_sentence(table, to)
    left = {"dialogues": count, "broken_off": 2}
    assert contest_sentence(table | {"unfinished": left}, to).endswith(
        f"; 2 of {count} dialogues were broken off: the same command goes on with these"
    )


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


def test_a_runs_folder_is_no_place_for_another_evaluation(scene: Scene) -> None:
    to = scene.alone.path
    before = sorted(p.name for p in to.iterdir())
    with pytest.raises(UserError, match=f"{to} is the folder of a run, .* make evaluate RUN={to}"):
        contest(scene.config("fair", counterparts=("fair",)), to, lambda _: None)
    assert sorted(p.name for p in to.iterdir()) == before


@pytest.mark.parametrize(
    ("which", "kept"), [("agent1", ["agent0-fair"]), ("agent0", ["agent0-fair", "agent1-fair"])]
)
def test_weights_that_change_while_they_are_measured_are_told(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, kept: list[str]
) -> None:
    """Before they were read, when nothing may be kept under the old ones, and after."""
    for role in ROLES:
        shutil.copytree(scene.both.policy(role), tmp_path / role)
    names = [f"frozen:{tmp_path / role}" for role in ROLES]
    config = scene.config(*names, counterparts=("fair",), self_play=False)
    play, of = matches.play, "params.safetensors"

    def replaced(*args: Any) -> Any:
        shutil.copy(scene.both.policy("start") / of, tmp_path / which / of)
        return play(*args)

    to = tmp_path / "to"
    monkeypatch.setattr(matches, "play", replaced)
    with scene.house.at_home(), pytest.raises(UserError, match=f"{which} changed while"):
        contest(config, to, lambda _: None)
    assert sorted(file.stem for file in (to / "dialogues").glob("*.jsonl")) == kept
    assert [p.name for p in to.iterdir()] == ["dialogues"]


def test_a_matrix_of_an_earlier_evaluation_does_not_stay(scene: Scene, tmp_path: Path) -> None:
    for end in ("csv", "json", "svg", "png"):
        (tmp_path / f"crossplay.{end}").touch()
    config = scene.config("fair", counterparts=("greedy",), self_play=False)
    table = contest(config, tmp_path, lambda _: None)
    assert not list(tmp_path.glob("crossplay.*"))
    assert "crossplay" not in contest_sentence(table, tmp_path)


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
    lines = table_lines(whole[1], to)[-26:]
    assert lines[0].split()[:5] == ["first", "seat", "second", "seat", "agreement"]
    assert [line.split()[:2] for line in lines[1:]] == [[a, b] for a in labels for b in labels]
    svg = (to / "crossplay.svg").read_text()
    assert all(f">{label}<" in svg for label in labels)
    assert (to / "crossplay.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------- on the phone


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
    assert table_lines(table, tmp_path)[-1] == f"({table['remark']})"
    matrix = json.loads((tmp_path / "crossplay.json").read_text())
    assert (matrix["first"], matrix["second"]) == (["competent", "polite"], ["customer"])
    assert len(matrix["entries"]) == 2
    assert "value_second" not in matrix["entries"][0]
