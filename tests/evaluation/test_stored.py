"""An evaluation on disk: it goes on where it stopped, and takes nothing that is not its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.endpoints.errors import EndpointError, Kind
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches, store
from ibrl_jax.evaluation.bench import HELD, Bench
from ibrl_jax.evaluation.cells import Cell, Contestant, Local, plan_cell
from ibrl_jax.evaluation.columns import Column, columns_of
from ibrl_jax.evaluation.matches import Games
from ibrl_jax.evaluation.outcomes import (
    OutcomeRow,
    outcome_rows,
    read_outcomes,
    value_names,
    write_outcomes,
)
from ibrl_jax.evaluation.seats import seats_of
from ibrl_jax.evaluation.store import KeptCell, Store, cell_file
from ibrl_jax.evaluation.table import table_of
from tests.evaluation.test_matches import Down, FakeCast, HalfDown, settings

ROW = Contestant(label="row", name="scripted:conceder", role=None, version=0, partners=())
PLAYED_IN_BLOCKS = 10


@pytest.fixture(scope="module")
def cast() -> FakeCast:
    endpoints: Any = {"shaky": HalfDown(), "down": Down()}
    speech: Any = SimpleNamespace(tokenizer=None)
    domain = build_domain(settings())
    return FakeCast(domain=domain, speech=speech, engines={}, endpoints=endpoints, max_new=32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """24 dialogues are two whole blocks and a part."""
    for module in (store, matches):
        monkeypatch.setattr(module, "BLOCK", PLAYED_IN_BLOCKS)


def games(
    cast: FakeCast, config: ConfigDict, folder: Path, version: str = "1"
) -> tuple[Games, list[str]]:
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ibrl_jax.evaluation.keys.__version__", version)
        return Games(config, cast, {}, Store(folder, said.append), said.append), said


def column(config: ConfigDict, index: int = 0) -> Column:
    return columns_of(config)[index]


def csv_of(cast: FakeCast, config: ConfigDict, cell: Cell, folder: Path) -> bytes:
    rows = outcome_rows(cast.domain, "row", column(config), cell)
    write_outcomes(folder / "outcomes.csv", rows, value_names(cast.domain))
    return (folder / "outcomes.csv").read_bytes()


def play(
    cast: FakeCast, config: ConfigDict, folder: Path, version: str = "1"
) -> tuple[bytes, int, list[str]]:
    """The outcomes, how many dialogues were played for them, and what was said."""
    of, said = games(cast, config, folder, version)
    cell = of.cell(ROW, column(config))
    assert cell is not None
    return csv_of(cast, config, cell, folder), of.anew, said


class Killed(BaseException):
    pass


def killed_after(blocks: int, monkeypatch: pytest.MonkeyPatch, part: bytes = b"") -> None:
    """The process ends as it is about to keep a further block; `part` of it is on the disk."""
    append, left = KeptCell.append, [blocks]

    def dying(self: KeptCell, rows: Sequence[Any]) -> None:
        if not left[0]:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(part)
            raise Killed
        left[0] -= 1
        append(self, rows)

    monkeypatch.setattr(KeptCell, "append", dying)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_killed_evaluation_goes_on_and_gives_the_same_file(
    cast: FakeCast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    config = settings(["fair"])
    whole, count, _ = play(cast, config, tmp_path / "whole")
    assert count == 24
    with monkeypatch.context() as patch:
        line = (tmp_path / "whole" / "row-fair.jsonl").read_bytes().splitlines(True)[blocks * 10]
        killed_after(blocks, patch, part=line + line[:100] if blocks else b"")
        with pytest.raises(Killed):
            play(cast, config, tmp_path / "killed")
    after, count, said = play(cast, config, tmp_path / "killed")
    assert after == whole
    assert count == 24 - blocks * PLAYED_IN_BLOCKS
    told = f"row against fair: going on from dialogue {blocks * 10} of 24"
    assert (told in said) == (blocks > 0)
    files = [tmp_path / name / "row-fair.jsonl" for name in ("whole", "killed")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_finished_cell_is_read_and_nothing_is_played(
    cast: FakeCast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(["fair"])
    first, _, _ = play(cast, config, tmp_path)
    monkeypatch.setattr(matches, "play", lambda *args: pytest.fail("a dialogue was played"))
    config.statistics.resamples = 200  # tells of the dialogues, and shapes none
    config.rewards.min_coverage = 0.5
    config.evaluation.counterparts = ("fair", "mirror")
    again, count, said = play(cast, config, tmp_path)
    assert (again, count, said) == (first, 0, [])


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"evaluation__retries": 0},
        {"evaluation__scenarios": 5},
        {"evaluation__split": "val"},
        {"dond__horizon_turns": 6},
        {"dond__prompt": "full"},
        {"version": "2"},
    ],
)
def test_what_was_played_otherwise_is_played_anew(
    cast: FakeCast, tmp_path: Path, changes: dict[str, Any]
) -> None:
    play(cast, settings(["fair"]), tmp_path)
    version = changes.pop("version", "1")
    config = settings(["fair"], **changes)
    other = replace(cast, domain=build_domain(config))
    found, count, said = play(other, config, tmp_path, version)
    assert count == config.evaluation.scenarios * 4
    assert "was played otherwise" in said[0]
    assert found == play(other, config, tmp_path / "fresh", version)[0]


def test_a_row_of_another_policy_is_not_taken(cast: FakeCast, tmp_path: Path) -> None:
    config = settings(["fair"])
    play(cast, config, tmp_path)
    of, _ = games(cast, config, tmp_path)
    of.cell(replace(ROW, name="scripted:splitter"), column(config))
    assert of.anew == 24


def test_dialogues_that_are_read_make_the_table_that_played_ones_made(
    cast: FakeCast, tmp_path: Path
) -> None:
    config = settings(["A=fair+mirror", "lexi"])
    columns = columns_of(config)
    tables = []
    for _ in range(2):
        of, _ = games(cast, config, tmp_path)
        cells = of.cells([ROW], columns)
        tables.append(json.dumps(table_of(config, cast, [ROW], columns, cells)))
        assert of.anew == (0 if len(tables) == 2 else 24 * 4)
    assert tables[0] == tables[1]


def test_lines_whose_views_stand_elsewhere_are_read_too(cast: FakeCast, tmp_path: Path) -> None:
    config = settings(["fair"])
    first, _, _ = play(cast, config, tmp_path)
    file = tmp_path / "row-fair.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert list(rows[0])[-1] == "views"
    order = ("views", *(key for key in rows[0] if key != "views"))
    text = ', "views": {'
    rows[3]["turns"][0]["text"] = text  # words that look like the place where views begin
    rows[4]["scenario"]["public"]["views"] = {"a": 1, "views": {"b": 2}}
    file.write_text("".join(json.dumps({key: row[key] for key in order}) + "\n" for row in rows))
    assert play(cast, config, tmp_path) == (first, 0, [])


# ------------------------------------------------------------------------- broken off


class Recovering(HalfDown):
    """Cannot be reached in the conversations that `lost` says; else it walks away."""

    def __init__(self, lost: Callable[[int], bool]) -> None:
        self.lost, self.asked = lost, 0

    async def chat(self, messages: Sequence[Any], *, sample_index: int) -> Any:
        await asyncio.sleep(0)
        self.asked += 1
        if self.lost(sample_index):
            raise EndpointError(Kind.TIMEOUT, "shaky", "no answer", 1)
        return SimpleNamespace(text="<disagree>", finish="stop")


def lines_of(folder: Path) -> list[str]:
    return (folder / "row-shaky.jsonl").read_text().splitlines()


def reached(line: str) -> bool:
    return json.loads(line)["outcome"]["end_reason"] != "aborted"


def test_what_an_endpoint_broke_off_is_played_again_and_nothing_else(
    cast: FakeCast, tmp_path: Path
) -> None:
    config = settings(["api:shaky"])
    config.rewards.min_coverage = 0.0
    endpoints: dict[str, Any] = dict(cast.endpoints)
    lately = replace(cast, endpoints=endpoints)
    coverage = []
    for lost, anew in (
        (lambda index: index % 2 == 1, 24),
        (lambda index: index % 4 == 1, None),  # half of the rest come to an end now
        (lambda index: True, None),  # down again: what was finished stays
        (lambda index: False, None),
        (lambda index: True, 0),
    ):
        before = lines_of(tmp_path) if coverage else []
        broken = [i for i, line in enumerate(before) if not reached(line)]
        endpoints["shaky"] = Recovering(lost)
        of, said = games(lately, config, tmp_path)
        cell = of.cell(ROW, column(config))
        assert cell is not None
        assert of.anew == (len(broken) if anew is None else anew)
        after = lines_of(tmp_path)
        assert all(old == new for old, new in zip(before, after, strict=False) if reached(old))
        assert [json.loads(line)["index"] for line in after] == list(range(24))
        assert [reached(line) for line in after] == [p.failed is None for p in cell.played]
        told = f"row against shaky: playing {len(broken)} dialogues again that were broken off"
        assert (told in said) == bool(broken)
        row = table_of(config, lately, [ROW], [column(config)], {"row": {"shaky": cell}})["rows"][0]
        coverage.append(row["cells"]["shaky"]["coverage"])
        assert coverage[-1] == sum(map(reached, after)) / 24
    assert 0 < coverage[0] < coverage[1] == coverage[2] < coverage[3] == coverage[4] == 1.0
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".row")]


def test_broken_off_dialogues_of_a_stopped_cell_come_first(
    cast: FakeCast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(["api:shaky"])
    config.rewards.min_coverage = 0.0
    with monkeypatch.context() as patch:
        killed_after(1, patch)
        with pytest.raises(Killed):
            games(cast, config, tmp_path)[0].cell(ROW, column(config))
    broken = [not reached(line) for line in lines_of(tmp_path)]
    assert len(broken) == 10
    assert any(broken)
    early = len((tmp_path / "row-shaky.jsonl.part").read_text().splitlines())
    assert 0 < early < 10, "of the block that was played and not kept whole"
    well = replace(cast, endpoints={**cast.endpoints, "shaky": Recovering(lambda index: False)})  # type: ignore[dict-item]
    of, said = games(well, config, tmp_path)
    assert of.cell(ROW, column(config)) is not None
    assert of.anew == sum(broken) + 14 - early
    assert [" ".join(text.split()[3:5]) for text in said] == [f"playing {sum(broken)}", "going on"]
    assert all(map(reached, lines_of(tmp_path)))


def test_what_would_be_broken_off_again_stays(cast: FakeCast, tmp_path: Path) -> None:
    """A view that is too short for what was said is no failure of an endpoint."""
    config = settings(["fair"])
    play(cast, config, tmp_path)
    file = tmp_path / "row-fair.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[5]["rewards"]["agent0"] = {"failed": "agent0's view of 900 tokens leaves no room"}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, count, said = play(cast, config, tmp_path)
    assert (count, said) == (0, [])


def test_a_block_of_which_too_little_came_is_not_kept(cast: FakeCast, tmp_path: Path) -> None:
    """The endpoint is up again another day."""
    config = settings(["api:down"])
    of, _ = games(cast, config, tmp_path)
    with pytest.raises(UserError, match="only 0% of the dialogues of row against down"):
        of.cell(ROW, column(config))
    assert not list(tmp_path.iterdir())


def test_two_cells_of_one_file_are_refused(cast: FakeCast, tmp_path: Path) -> None:
    kept = Store(tmp_path, print)
    kept.open("a b", "c", "key", 1)
    kept.open("a b", "c", "key", 1, folder="other")
    with pytest.raises(UserError, match="would both lie in a-b-c.jsonl"):
        kept.open("a-b", "c", "key", 1)
    assert "/" not in cell_file("runs/a:b", "c" * 300)


# ------------------------------------------------------------------------- pooled columns


def test_in_a_pooled_column_every_scenario_meets_every_counterpart(
    cast: FakeCast, tmp_path: Path
) -> None:
    config = settings(["A=fair+mirror", "fair", "mirror"])
    of, _ = games(cast, config, tmp_path)
    both, fair, mirror = (of.cell(ROW, c) for c in columns_of(config)[:3])
    assert both is not None
    assert fair is not None
    assert mirror is not None
    assert both.planned == 48
    apart = {
        name: [p for p in both.played if p.plan.counterpart == f"scripted:{name}"]
        for name in ("fair", "mirror")
    }
    for name, alone in (("fair", fair), ("mirror", mirror)):  # the same dialogues, pooled
        assert [p.outcome for p in apart[name]] == [p.outcome for p in alone.played]
        assert [p.plan for p in apart[name]] == [p.plan for p in alone.played]
    row = table_of(config, cast, [ROW], columns_of(config)[:1], {"row": {"A": both}})["rows"][0]
    assert row["cells"]["A"]["clusters"] == 6
    assert row["cells"]["A"]["planned"] == 48


# ------------------------------------------------------------------------- outcomes.csv


def test_outcomes_come_back_as_they_were(cast: FakeCast, tmp_path: Path) -> None:
    config = settings(["api:shaky"])
    config.rewards.min_coverage = 0.0
    of, _ = games(cast, config, tmp_path)
    first, second = column(config), columns_of(settings(["fair"]))[0]
    rows = []
    for c in (first, second):
        cell = of.cell(ROW, c)
        assert cell is not None
        rows += outcome_rows(cast.domain, "row", c, cell)
    file = tmp_path / "outcomes.csv"
    write_outcomes(file, rows, value_names(cast.domain))
    assert read_outcomes(file) == rows
    aborted = [row for row in rows if row.aborted]
    assert 0 < len(aborted) < 24
    assert {(row.end_reason, len(row.values)) for row in aborted} == {("aborted", 0)}


def test_a_row_says_what_the_dialogue_says(cast: FakeCast, tmp_path: Path) -> None:
    config = settings(["fair"])
    of, _ = games(cast, config, tmp_path)
    cell = of.cell(ROW, column(config))
    assert cell is not None
    rows = outcome_rows(cast.domain, "row", column(config), cell)
    lines = [json.loads(x) for x in (tmp_path / "row-fair.jsonl").read_text().splitlines()]
    assert len(rows) == len(lines) == 24
    for row, line in zip(rows, lines, strict=True):
        assert row.counterpart == "scripted:fair"
        assert (row.policy, row.column, row.kind) == ("row", "fair", "held-out")
        assert line["speakers"][row.seat] == "scripted:conceder"
        assert (row.first, row.seed) == (line["first"], line["seed"])
        facts = line["outcome"]["facts"]
        deal = line["outcome"]["success"]
        share = facts["points"][row.seat] / facts["total"][row.seat]
        assert row.values["agreement"] == deal
        assert row.values["expected_utility"] == (share if deal else 0.0)
        assert ("joint_value" in row.values) == ("own_utility" in row.values) == deal
        if deal:
            joint = sum(facts["points"].values()) / facts["first_best"]
            assert row.values["joint_value"] == pytest.approx(joint)
        assert row.values["turns"] == facts["turns"]


def test_the_first_value_is_the_success(cast: FakeCast) -> None:
    names = value_names(cast.domain)
    assert names[:1] == ("agreement",)
    assert len(set(names)) == len(names)
    assert {"first_try_agreement", "own_utility", "joint_value"} <= set(names)


ONE = OutcomeRow(
    policy="a, b",
    column='the "A"',
    kind="held-out",
    counterpart="scripted:fair",
    seat="agent0",
    first="agent1",
    scenario="s",
    cluster="c",
    seed=2,
    end_reason="deal",
    aborted=False,
    retries=1,
    values={"x": 0.1 + 0.2},
)


def test_a_file_that_holds_no_outcomes_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "outcomes.csv"
    write_outcomes(file, [ONE], ["x"])
    assert read_outcomes(file) == [ONE]
    text = file.read_text()
    for damaged in ("", "a,b\n1,2\n", text[:-25], text.replace(",2,deal", ",two,deal")):
        file.write_text(damaged)
        with pytest.raises(UserError, match="cannot be read as the outcomes of an evaluation"):
            read_outcomes(file)
    with pytest.raises(UserError, match="No such file"):
        read_outcomes(tmp_path / "none.csv")


# ------------------------------------------------------------------------- what is held


def test_parameters_make_room_for_others_but_not_within_a_block(cast: FakeCast) -> None:
    config = settings(["pool=" + "+".join(f"frozen:{i}" for i in range(HELD + 2))])
    config.evaluation.scenarios = 1
    own = replace(cast, held={})
    locals_ = {
        f"frozen:{i}": Local(
            id=str(i),
            role=None,
            version=i,
            fingerprint="",
            params=lambda i=i: f"family{i}",  # type: ignore[misc]
        )
        for i in range(2 * HELD + 2)
    }
    bench = Bench(own, locals_, dict.fromkeys(own.domain.roles, 1.0), lambda _: None)
    (pool,) = columns_of(config)[:1]
    planned = plan_cell(config, cast.domain, ROW, pool, bench.role_of)
    seen = set()
    for match in bench.matches(planned):
        for speaker in match.speakers.values():
            inner: Any = speaker
            if inner.name != ROW.name:
                assert inner.speaker.family == f"family{inner.ref.id}"
                seen.add(inner.ref.id)
    assert seen == {str(i) for i in range(HELD + 2)}
    assert len({key for role, key in own.held if role == "agent0"}) == HELD + 2
    late = replace(ROW, name=f"frozen:{2 * HELD + 1}")
    for match in bench.matches(plan_cell(config, cast.domain, late, pool, bench.role_of)):
        for speaker in match.speakers.values():
            inner = speaker
            assert inner.speaker.family == f"family{inner.ref.id}"
    assert len({key for role, key in own.held if role == "agent0"}) <= HELD + 3


def test_a_policy_of_one_role_sits_in_its_own_seat_where_seats_differ() -> None:
    file = Path(__file__).parents[2] / "configs" / "telesales" / "smoke.py"
    domain = build_domain(load(str(file)))

    def seats(name: str, role: str | None, *others: str, role_of: str | None = None) -> Any:
        c = Column(name="c", kind="held-out", counterparts=others)
        return seats_of(domain, name, role, c, lambda _: role_of)

    assert seats("frozen:x", "sales", "scripted:rule_v1") == ("sales",)
    assert seats("frozen:x", "customer", "scripted:rule_v1") == ()
    assert seats("frozen:x", None, "scripted:competent") == ("customer",)
    assert seats("scripted:competent", None, "scripted:rule_v1") == ("sales",)
    assert seats("scripted:rule_v1", None, "scripted:rule_v1") == ()
    assert seats("frozen:x", "sales", "frozen:y", role_of="customer") == ("sales",)
    assert seats("frozen:x", "sales", "frozen:y", role_of="sales") == ()
    assert seats("frozen:x", "sales", "scripted:rule_v1", "scripted:competent") == ()
