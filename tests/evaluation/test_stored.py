"""An evaluation on disk: it goes on where it stopped, and takes nothing that is not its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_domain
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import matches, store
from ibrl_jax.evaluation.bench import HELD, Bench
from ibrl_jax.evaluation.cells import Cell, Contestant, Local, plan_cell
from ibrl_jax.evaluation.columns import Column, columns_of
from ibrl_jax.evaluation.keys import Keys
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

ROW = Contestant(
    label="row", role=None, params=None, version=0, partners=(), name="scripted:conceder"
)
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
        keys = Keys(config, cast, {})
    bench = Bench(cast, {}, 1.0, said.append)
    return Games(config, bench, said.append, Store(folder, said.append), keys.of), said


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

    def dying(self: KeptCell, rows: Sequence[Any]) -> Any:
        if not left[0]:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(part)
            raise Killed
        left[0] -= 1
        return append(self, rows)

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


def test_stored_dialogues_make_the_table_that_unstored_ones_make(
    cast: FakeCast, tmp_path: Path
) -> None:
    config = settings(["A=fair+mirror", "api:shaky"])
    config.rewards.min_coverage = 0.0
    columns = columns_of(config)
    tables = []
    stored, _ = games(cast, config, tmp_path)
    unstored = Games(config, Bench(cast, {}, 1.0, print), print)
    for of in (stored, unstored, games(cast, config, tmp_path)[0]):
        cells = {c.name: cell for c in columns if (cell := of.cell(ROW, c)) is not None}
        tables.append(json.dumps(table_of(config, cast, [ROW], columns, {"row": cells})))
    assert tables[0] == tables[1] == tables[2]


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
        f"frozen:{i}": Local(id=str(i), role=None, version=i, params=lambda i=i: f"family{i}")  # type: ignore[misc]
        for i in range(2 * HELD + 2)
    }
    bench = Bench(own, locals_, 1.0, lambda _: None)
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
