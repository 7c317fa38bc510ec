"""The loader of the original files: small ones written here, the human figures with the data."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import human_corpus as command
from ibrl_jax.domains.dond.data import (
    format_human_corpus,
    human_corpus,
    human_dialogues,
    load_rows,
)
from ibrl_jax.domains.dond.domain import DealOrNoDeal, DondSettings, TestMode
from ibrl_jax.domains.dond.scenarios import enumerate_ordered, make_scenario
from ibrl_jax.domains.dond.scoring import oracles
from ibrl_jax.errors import UserError

SHARED = Path(os.environ.get("IBRL_SHARED", Path(__file__).parents[2].parent / "shared"))
FOLDER = SHARED / "data" / "dond"
needs_data = pytest.mark.skipif(
    not (FOLDER / "train.txt").is_file(),
    reason="the original Deal-or-No-Deal files are not here (set IBRL_SHARED)",
)


def row(own, partner, output, turns="YOU: hi <eos> THEM: deal <eos> YOU: <selection>"):
    return (
        f"<input> {own} </input> <dialogue> {turns} </dialogue> "
        f"<output> {output} </output> <partner_input> {partner} </partner_input>"
    )


A, B = "2 1 2 3 1 2", "2 4 2 1 1 0"
DEAL = "item0=0 item1=2 item2=1 item0=2 item1=0 item2=0"
MIRROR = "item0=2 item1=0 item2=0 item0=0 item1=2 item2=1"
MIRRORED = "THEM: hi <eos> YOU: deal <eos> THEM: <selection>"
NO_DEAL = " ".join(["<disagree>"] * 6)


def write(folder, *rows, split="train"):
    (folder / f"{split}.txt").write_text("".join(f"{r}\n" for r in rows), encoding="utf-8")
    return folder


def test_a_row_holds_both_sides_the_turns_and_the_output(tmp_path):
    (loaded,) = load_rows(write(tmp_path, row(A, B, DEAL)), "train")
    assert loaded.scenario == make_scenario((2, 2, 1), (1, 3, 2), (4, 1, 0))
    assert loaded.turns == (("YOU", "hi"), ("THEM", "deal"), ("YOU", "<selection>"))
    assert loaded.output == ((0, 2, 1), (2, 0, 0))


def test_dialogues_need_both_perspectives_and_use_each_row_once(tmp_path):
    first, second = row(A, B, DEAL), row(B, A, MIRROR, MIRRORED)
    lonely = row(A, B, NO_DEAL)
    rows = load_rows(write(tmp_path, first, first, lonely, second), "train")
    found = human_dialogues(rows)
    assert [(d.row.line, d.partner.line) for d in found] == [(1, 4)]
    outcome = found[0].outcome
    assert outcome.success
    assert outcome.facts["points"] == {"agent0": 8, "agent1": 8}


def test_outputs_that_share_no_items_or_leave_some_are_no_deal(tmp_path):
    left = "item0=0 item1=2 item2=1 item0=1 item1=0 item2=0"
    mirrored = "item0=1 item1=0 item2=0 item0=0 item1=2 item2=1"
    pairs = [row(A, B, left), row(B, A, mirrored, MIRRORED)]
    pairs += [row(A, B, NO_DEAL), row(B, A, NO_DEAL, MIRRORED)]
    found = human_dialogues(load_rows(write(tmp_path, *pairs), "train"))
    assert [d.outcome.success for d in found] == [False, False]


def test_a_missing_folder_or_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"nowhere is not a folder; name the one"):
        load_rows(tmp_path / "nowhere", "train")
    with pytest.raises(UserError, match=r"val\.txt is missing"):
        load_rows(write(tmp_path, row(A, B, DEAL)), "val")
    with pytest.raises(UserError, match=r"test\.txt holds no rows"):
        load_rows(write(tmp_path, "", split="test"), "test")


@pytest.mark.parametrize(
    "bad, message",
    [
        (row(A, B, DEAL)[:-40], "cut short.*a row is <input>"),
        ("nonsense", "cut short"),
        (row("2 1 2 3 1", B, DEAL), "six numbers"),
        (row("2 1 2 3 1 9", B, DEAL), "worth 10 points"),
        (row("1 1 3 3 1 0", B, DEAL), "same counts"),
        (row(A, B, DEAL + " item0=1"), "<output> must hold"),
        (row(A, B, DEAL.replace("item1", "item2")), "<output> must hold"),
        (row(A, B, DEAL, "ME: hi"), "must start with YOU"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, bad, message):
    with pytest.raises(UserError, match=rf"train\.txt, line 2: .*{message}"):
        load_rows(write(tmp_path, row(A, B, DEAL), bad), "train")


def test_a_file_that_is_no_utf_8_is_named_with_what_is_expected(tmp_path):
    write(tmp_path, row(A, B, DEAL))
    file = tmp_path / "train.txt"
    file.write_bytes(file.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(UserError, match=r"train\.txt is no UTF-8 text .*a row is <input>"):
        load_rows(tmp_path, "train")


def settings(folder, mode: TestMode = "test200x5"):
    return DondSettings(
        horizon_turns=20,
        select_rule="any_try",
        close="either",
        penalty_malformed=0.1,
        prompt="full",
        data_dir=str(folder),
        test_mode=mode,
        max_count=4,
        split_seed=0,
        split_fractions=(0.8, 0.1, 0.1),
    )


def test_files_whose_splits_share_a_scenario_are_refused(tmp_path):
    write(tmp_path, row(A, B, DEAL))
    write(tmp_path, row("1 0 4 2 1 2", "1 4 4 1 1 2", NO_DEAL), split="val")
    write(tmp_path, row(B, A, MIRROR, MIRRORED), split="test")
    with pytest.raises(UserError, match="train and test share 1"):
        DealOrNoDeal(settings(tmp_path))


def test_rows1000_needs_a_thousand_rows(tmp_path):
    for split in ("train", "val", "test"):
        write(tmp_path, row(A, B, DEAL), split=split)
    with pytest.raises(UserError, match="needs 1000 rows .* has 1"):
        DealOrNoDeal(settings(tmp_path, "rows1000"))


def test_the_command_prints_the_table_and_ends_with_what_came_out(tmp_path):
    for split in ("train", "val", "test"):
        write(
            tmp_path, row(A, B, DEAL), row(B, A, MIRROR, MIRRORED), row(A, B, NO_DEAL), split=split
        )
    printed = io.StringIO()
    command.main([f"--data={tmp_path}"], Console(file=printed, width=40))
    *table, last = printed.getvalue().splitlines()
    assert [line.split()[0] for line in table] == ["split", "train", "val", "test"]
    assert last == f"{tmp_path} holds 3 human dialogues from both sides; 3 end in a deal"
    with pytest.raises(UserError, match="--data is needed"):
        command.main([], Console(file=printed))
    with pytest.raises(UserError, match=r"--config\.seed is of a config"):
        command.main([f"--data={tmp_path}", "--config.seed=1"], Console(file=printed))


@needs_data
def test_the_human_corpus_comes_out_to_four_decimals():
    table = human_corpus(FOLDER)
    lines = [" ".join(line.split()) for line in format_human_corpus(table).splitlines()]
    assert lines[1:] == [
        "train 10,095 1,884 4,884 3,941 0.8069 0.7479 0.9502 0.7719 3,042 58,948",
        "val 1,087 200 525 422 0.8038 0.7487 0.9546 0.8128 343 6,319",
        "test 1,052 200 507 402 0.7929 0.7369 0.9416 0.7114 286 5,925",
    ]


@needs_data
def test_the_original_splits_are_covered_by_the_enumeration_and_give_the_known_oracles():
    domain = DealOrNoDeal(settings(FOLDER))
    known = {s.id for s in enumerate_ordered(4)}
    for split in ("train", "val", "test"):
        assert {s.id for s in domain.scenarios(split)} <= known
    found = oracles(domain.scenarios("test"))
    assert found.scenarios == 200
    assert round(found.first_best, 4) == 15.0800
    assert (round(found.joint_value, 4), round(found.pareto, 4)) == (0.6787, 0.2368)
    assert len(domain.scenarios("train")) == 10_095


@needs_data
def test_rows1000_takes_the_first_thousand_rows_in_order():
    domain = DealOrNoDeal(settings(FOLDER, "rows1000"))
    rows = load_rows(FOLDER, "test")
    assert [s.id for s in domain.scenarios("test")] == [r.scenario.id for r in rows[:1000]]


@needs_data
def test_the_openspiel_instances_are_covered_by_counts_up_to_five():
    known = {s.id for s in enumerate_ordered(5)}
    lines = (FOLDER / "openspiel_instances.csv").read_text().splitlines()[1:]
    assert len(lines) == 1000
    for line in lines:
        _, *n = map(int, line.split(","))
        counts, first, second = (tuple(n[k : k + 3]) for k in (0, 3, 6))
        assert make_scenario(counts, first, second).id in known
