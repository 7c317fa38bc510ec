"""The sheet for annotators hides what it must, and what comes back is checked line by line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ibrl_jax.domains.telesales import annotation
from ibrl_jax.domains.telesales.annotation import (
    FinishedCall,
    export,
    read_calls,
    read_decisions,
)
from ibrl_jax.errors import UserError

CALLS = [
    FinishedCall(
        id=f"runs/ib-rl/seed0/{n}",
        language="en",
        lines=(("customer", "Hello?"), ("sales", f"Number {n}, one\ntwo."), ("customer", "Yes.")),
        added=n % 3 == 0,
    )
    for n in range(12)
]


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8-sig", newline="") as opened:
        return list(csv.DictReader(opened))


HEADER = "item,consent,annotator"


def fill(folder: Path, name: str, decisions: dict[str, str], header: str = HEADER) -> Path:
    """A sheet by an annotator who is called like the file; items are given by their numbers."""
    mark = json.loads((folder / "key.json").read_text("utf-8")).get("export", "")
    file, by = folder / name, name.partition(".")[0]
    lines = [header, *(f"{mark}-{item},{said},{by}" for item, said in decisions.items())]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return file


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    export(CALLS, tmp_path, count=6, seed=3)
    return tmp_path


def everything(folder: Path, decision: str) -> dict[str, str]:
    return {row["item"].partition("-")[2]: decision for row in rows(folder / "sheet.csv")}


def test_a_row_is_a_call_and_holds_its_words_alone(exported):
    sheet = rows(exported / "sheet.csv")
    key = json.loads((exported / "key.json").read_text("utf-8"))
    assert [row["item"] for row in sheet] == [f"{key['export']}-00{n}" for n in range(1, 7)]
    assert list(sheet[0]) == ["item", "call", "consent", "annotator"]
    text = (exported / "sheet.csv").read_text("utf-8-sig")
    for hidden in ("ib-rl", "seed0", "True", "added"):
        assert hidden not in text
    key = key["items"]
    by_id = {call.id: call for call in CALLS}
    for row in sheet:
        call = by_id[key[row["item"]]["id"]]
        assert row["call"] == f"Customer: Hello?\nAgent: {call.lines[1][1]}\nCustomer: Yes."
        assert key[row["item"]]["added"] is call.added
        assert row["consent"] == row["annotator"] == ""


def test_the_order_is_the_seeds_and_not_the_files(tmp_path):
    found = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        export(CALLS, tmp_path / name, count=12, seed=seed)
        found.append([row["call"] for row in rows(tmp_path / name / "sheet.csv")])
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == sorted(found[2])
    assert found[0] != [f"Customer: Hello?\nAgent: {c.lines[1][1]}\nCustomer: Yes." for c in CALLS]


def test_a_second_export_does_not_overwrite_what_people_work_on(exported):
    with pytest.raises(UserError, match="exists already"):
        export(CALLS, exported, count=6, seed=3)


def test_an_export_that_fails_midway_leaves_neither_file(tmp_path, monkeypatch):
    def full(call):
        raise OSError("no space left")

    monkeypatch.setattr(annotation, "words", full)
    with pytest.raises(OSError, match="no space"):
        export(CALLS, tmp_path, count=6, seed=3)
    assert list(tmp_path.iterdir()) == []


def test_more_calls_than_there_are_cannot_be_drawn(tmp_path):
    with pytest.raises(UserError, match="must be 1 to 12"):
        export(CALLS, tmp_path, count=13, seed=0)
    with pytest.raises(UserError, match="hold none"):
        export([], tmp_path, count=1, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_decisions_come_back_beside_what_was_recorded(exported):
    yes = everything(exported, "yes")
    mixed = yes | {"002": "No ", "003": "否", "004": "是"}
    found = read_decisions(
        exported / "key.json", fill(exported, "a.csv", yes), fill(exported, "b.csv", mixed)
    )
    assert [d.a for d in found] == [True] * 6
    assert [d.b for d in found] == [True, False, False, True, True, True]
    by_id = {call.id: call.added for call in CALLS}
    assert [d.recorded for d in found] == [by_id[d.id] for d in found]


def older(folder: Path) -> Path:
    """The key of an export that had no mark yet, and knew no names."""
    key = json.loads((folder / "key.json").read_text("utf-8"))
    items = {item.partition("-")[2]: row for item, row in key["items"].items()}
    (folder / "key.json").write_text(json.dumps({"seed": 3, "items": items}))
    return folder / "key.json"


def test_a_sheet_of_an_older_export_is_read_though_a_program_took_its_zeros_off(exported):
    sheet, key = rows(exported / "sheet.csv"), older(exported)
    for name in "ab":
        with (exported / f"{name}.csv").open("w", encoding="utf-8-sig", newline="") as opened:
            writer = csv.DictWriter(opened, ["item", "call", "consent"])
            writer.writeheader()
            for row in sheet:
                item = row["item"].partition("-")[2].lstrip("0")
                writer.writerow({"item": item, "call": row["call"], "consent": "yes"})
    assert all(d.a and d.b for d in read_decisions(key, exported / "a.csv", exported / "b.csv"))


def test_one_annotator_is_not_taken_for_two(exported):
    key, yes = exported / "key.json", everything(exported, "yes")
    a, b = fill(exported, "a.csv", yes), fill(exported, "b.csv", yes)
    assert all(d.a and d.b for d in read_decisions(key, a, b)), "two may agree in all"
    text = a.read_text()
    for other, says in (
        (text.replace(",a\n", ",A \n"), "both of the annotator 'a'; two people are needed"),
        (text.replace(",a\n", ",\n"), "b.csv names nobody as its annotator"),
        (text.replace(",a\n", ",b\n", 1), "b.csv names a and b as its annotator"),
    ):
        b.write_text(other)
        with pytest.raises(UserError, match=says):
            read_decisions(key, a, b)
    b.write_text(text.replace(",a\n", ",\n").replace(",\n", ",b\n", 1))
    read_decisions(key, a, b)  # one row names its annotator


def test_one_file_is_not_taken_for_two(exported):
    key = older(exported)
    sheet = exported / "a.csv"
    items = [row["item"].partition("-")[2] for row in rows(exported / "sheet.csv")]
    sheet.write_text("item,consent\n" + "".join(f"{item},yes\n" for item in items))
    (exported / "b.csv").symlink_to(sheet)
    for second in (sheet, exported / "b.csv"):
        with pytest.raises(UserError, match="are one file"):
            read_decisions(key, sheet, second)


def test_a_sheet_is_read_with_the_key_of_its_own_export(exported, tmp_path):
    other = tmp_path / "other"
    export(CALLS, other, count=6, seed=4)
    sheets = [fill(other, f"{name}.csv", everything(other, "yes")) for name in "ab"]
    with pytest.raises(UserError, match="is not in the key; .* of its own export"):
        read_decisions(exported / "key.json", *sheets)


def test_line_ends_of_other_kinds_stay_in_their_row(tmp_path):
    lines = (("customer", "Yes.\u2028Add\x85me."),)
    export(
        [FinishedCall(id="a", language="en", lines=lines, added=True)], tmp_path, count=1, seed=0
    )
    text = (tmp_path / "sheet.csv").read_text("utf-8-sig")
    assert lines[0][1] in text
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(text.replace(",,\n", f",yes,{name}\n"), "utf-8")
    files = [tmp_path / name for name in ("key.json", "a.csv", "b.csv")]
    assert [d.a for d in read_decisions(*files)] == [True]


@pytest.mark.parametrize(
    "change, says",
    [
        ({"999": "yes"}, "-999' that is not in the key"),
        ({"002": ""}, "-002: consent is ''; it must be yes or no"),
        ({"002": "perhaps"}, "consent is 'perhaps'"),
        ({"002 ": "yes"}, "-002 twice"),
        ({"drop": "003"}, "-003; every item of the key needs"),
    ],
)
def test_a_sheet_that_cannot_be_used_is_told_in_one_sentence(exported, change, says):
    decisions = everything(exported, "yes")
    if "drop" in change:
        del decisions[change["drop"]]
    else:
        decisions |= change
    good = fill(exported, "a.csv", everything(exported, "no"))
    bad = fill(exported, "b.csv", decisions)
    with pytest.raises(UserError) as error:
        read_decisions(exported / "key.json", good, bad)
    message = str(error.value)
    assert says in message
    assert "b.csv" in message
    assert "\n" not in message
    assert message.endswith(".")


def test_files_that_are_none_are_told(exported):
    key, good = exported / "key.json", fill(exported, "a.csv", everything(exported, "no"))
    with pytest.raises(UserError, match="cannot be read"):
        read_decisions(key, good, exported / "nowhere.csv")
    with pytest.raises(UserError, match="no column 'consent'"):
        read_decisions(key, good, fill(exported, "b.csv", {}, "item,decision"))
    with pytest.raises(UserError, match="is no key"):
        read_decisions(good, good, good)
    (exported / "b.csv").write_bytes("项,同意".encode("gbk"))
    with pytest.raises(UserError, match="UTF-8"):
        read_decisions(key, good, exported / "b.csv")


def line(end: str = "hang_up", **changes: object) -> str:
    turn = {"role": "customer", "text": "喂？", "valid": True}
    record = {
        "scenario": {"public": {"language": "zh"}},
        "turns": [turn, {"role": "sales", "text": "\u2028您好。", "valid": True}],
        "outcome": {"end_reason": end, "success": False},
    }
    return json.dumps(record | changes, ensure_ascii=False)


def test_calls_are_read_from_dialogue_files_and_broken_off_ones_are_left_out(tmp_path):
    malformed = [{"role": "customer", "text": "喂？", "valid": True}]
    malformed += [{"role": "sales", "text": "", "valid": False}]
    file = tmp_path / "dialogues.jsonl"
    lines = [line(), line("aborted"), line("malformed", turns=malformed)]
    file.write_text("\n".join(lines) + "\n", "utf-8")
    calls = read_calls([file])
    assert [call.id.rpartition(":")[2] for call in calls] == ["1", "3"]
    assert calls[0].lines == (("customer", "喂？"), ("sales", "\u2028您好。"))
    assert calls[1].lines == (("customer", "喂？"),)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "half {", line(scenario={"public": {}}), line(turns=[{"role": "agent0"}])]
)
def test_a_line_that_is_no_call_is_named(tmp_path, text):
    file = tmp_path / "dialogues.jsonl"
    file.write_text(line() + "\n" + text + "\n", "utf-8")
    with pytest.raises(UserError, match="line 2: no finished call of TeleSales"):
        read_calls([file])
