"""Table 13 of the paper from its counts, and the command that makes one."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax.config import default_config
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.human_validation import human_validation, main
from ibrl_jax.evaluation.statistics import StatisticsSettings

SETTINGS = StatisticsSettings(**dict(default_config().statistics))

TABLE_13 = {
    True: {(True, True): 80, (False, False): 2, (True, False): 5, (False, True): 4},
    False: {(True, True): 2, (False, False): 92, (True, False): 8, (False, True): 7},
}
DECISIONS = [
    (recorded, a, b)
    for recorded, row in TABLE_13.items()
    for (a, b), n in row.items()
    for _ in range(n)
]


def test_table_13_its_counts_agreement_and_kappas():
    found = human_validation(DECISIONS, SETTINGS)
    assert found.counts == TABLE_13
    assert found.n == 200
    assert found.annotators.agreement == pytest.approx(176 / 200)
    assert round(found.annotators.value or 0, 2) == 0.76
    for pair in (found.recorded_a, found.recorded_b):
        assert pair.agreement == pytest.approx(184 / 200)
        assert round(pair.value or 0, 2) == 0.84
    consents = [sum(decision[i] for decision in DECISIONS) for i in range(3)]
    assert consents == [91, 95, 93]


def test_table_13_is_printed_with_its_totals():
    lines = str(human_validation(DECISIONS, SETTINGS)).splitlines()
    assert lines[1].split()[-5:] == ["80", "2", "5", "4", "91"]
    assert lines[2].split()[-5:] == ["2", "92", "8", "7", "109"]
    assert lines[3].split()[-5:] == ["82", "94", "13", "11", "200"]
    assert "88.0% of 200 agree, kappa 0.76" in lines[4]


def test_one_category_alone_has_no_kappa_and_no_call_no_table():
    found = human_validation([(True, True, True)] * 3, SETTINGS)
    assert found.annotators.value is None
    assert "undefined" in str(found)
    with pytest.raises(UserError, match="No call has been annotated"):
        human_validation([], SETTINGS)


def said(argv: list[str], tmp_path: Path) -> str:
    with (tmp_path / "said.txt").open("w") as file:
        main(argv, Console(file=file, width=40))
    return (tmp_path / "said.txt").read_text()


def test_the_command_writes_a_sheet_and_reads_two_copies(tmp_path):
    dialogues, folder = tmp_path / "played.jsonl", tmp_path / "annotation"
    turns = [{"role": "customer", "text": "Hello?", "valid": True}]
    record = {"scenario": {"public": {"language": "en"}}, "turns": turns}
    outcomes = [{"end_reason": "confirmed", "success": n % 2 == 0} for n in range(4)]
    dialogues.write_text("".join(json.dumps(record | {"outcome": o}) + "\n" for o in outcomes))
    assert "4 calls are in" in said([f"--dialogues={dialogues}", f"--to={folder}"], tmp_path)
    key = json.loads((folder / "key.json").read_text("utf-8"))["items"]
    with (folder / "sheet.csv").open(encoding="utf-8-sig", newline="") as file:
        sheet = list(csv.DictReader(file))
    for name in "ab":
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, sheet[0].keys())
            writer.writeheader()
            for row in sheet:
                row["consent"] = "yes" if key[row["item"]]["added"] else "no"
                row["annotator"] = name
                writer.writerow(row)
    options = [f"--{name}={folder / name}.csv" for name in "ab"]
    table = said([f"--key={folder / 'key.json'}", *options], tmp_path)
    assert "100.0% of 4 agree, kappa 1.00" in table


def test_the_command_names_what_it_needs():
    console = Console()
    with pytest.raises(UserError, match="--dialogues is needed"):
        main([], console)
    with pytest.raises(UserError, match="--a is needed"):
        main(["--key=x"], console)
