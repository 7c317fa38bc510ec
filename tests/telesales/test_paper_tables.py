"""Tables 5, 6 and 7: what is printed beside the paper's figures, and that these are the paper's."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import profiles
from ibrl_jax.domains.telesales.profiles.generate import evaluation_profiles
from ibrl_jax.domains.telesales.profiles.schema import EvaluationAttributes, TrainingAttributes
from ibrl_jax.domains.telesales.profiles.tables import (
    PAPER_5,
    PAPER_6,
    Beside,
    groups,
    table5,
    table6,
    table7,
)
from ibrl_jax.errors import UserError


def sizes(table: dict[str, tuple[str, ...]]) -> list[int]:
    return [len(attributes) for attributes in table.values()]


def rows(table: Beside) -> list[list[str]]:
    return list(csv.reader(io.StringIO(table.csv())))


def test_table_5_has_28_attributes_in_six_groups_of_the_papers_sizes():
    assert sizes(groups(TrainingAttributes)) == sizes(dict(PAPER_5)) == [6, 4, 6, 4, 3, 5]
    printed = rows(table5())
    assert len(printed) == 1 + 28
    assert ["willingness_control", "env_modifier", *printed[27][2:]] == printed[27]
    assert printed[27][3] == "environment modifier (env_modifier)"
    assert "relevant background is `identity.background`" in table5().notes[-1]
    assert "env_modifier" not in table5().notes[-1]  # the paper's own name for it


def test_table_6_has_40_attributes_in_eight_groups_of_the_papers_names():
    assert sizes(groups(EvaluationAttributes)) == sizes(dict(PAPER_6)) == [8, 3, 9, 3, 3, 6, 3, 5]
    assert tuple(groups(EvaluationAttributes)) == tuple(PAPER_6)
    assert len(rows(table6())) == 1 + 40
    assert table6().title.endswith("40 attributes in 8 groups")


PAPERS_COLUMN = [
    *("101 (20.2%)", "192 (38.4%)", "205 (41.0%)", "2 (0.4%)"),
    *("90 (18.0%)", "139 (27.8%)", "138 (27.6%)", "133 (26.6%)"),
    *("226 (45.2%)", "155 (31.0%)", "119 (23.8%)"),
    *["100 (20.0%)"] * 5,
    *("394 (78.8%)", "106 (21.2%)"),
    *("15", "500/500"),
    *("0.11/0.406/0.79", "0.24/0.524/0.82", "0.17/0.543/0.89"),
]
"""Table 7 as it is printed, and the initial scores of Appendix D."""


def test_table_7_prints_the_papers_figures_and_paper_exact_meets_its_counts():
    batch = evaluation_profiles(0, 500, "paper_exact", "en")
    printed = rows(table7(batch))
    assert printed[0] == ["Dimension", "", "paper_exact", "Paper"]
    assert [row[-1] for row in printed[1:]] == PAPERS_COLUMN
    ours = [row[2] for row in printed[1:]]
    assert ours[:19] == PAPERS_COLUMN[:19]  # the dimensions and the turn limit
    assert ours[19] == "0/500"  # stories are compiled by whoever prints the table
    differing = table7(batch).notes[0]
    assert differing.startswith("`paper_exact` differs in 1 of 20 rows: ")


def test_table_7_says_where_a_drawn_batch_differs_and_why():
    batches = [evaluation_profiles(0, 500, c, "en") for c in ("sampled", "paper_exact")]
    table = table7(*batches)
    printed = rows(table)[1:]
    other = sum(row[2] != row[4] for row in printed[:20])
    assert other > 10
    assert f"`sampled` differs in {other} of 20 rows: each dimension is drawn" in table.notes[0]
    small = table7(evaluation_profiles(0, 10, "sampled", "en"))
    assert "`sampled` is not of the paper's size, 500" in small.notes[0]


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    profiles.main(options, Console(width=300))
    return capsys.readouterr().out


def test_the_command_prints_markdown_and_writes_it_and_csv(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "--table=7", "--size=20", "--language=en", f"--out={tmp_path}/made")
    assert out.startswith("## Table 7: composition of the evaluation set (20 profiles, seed 0)\n")
    assert "| With a story |   | 20/20 | 20/20 | 500/500 |" in out
    assert (tmp_path / "made/table7.md").read_text() == out
    head = (tmp_path / "made/table7.csv").read_text().splitlines()[0]
    assert head == "Dimension,,sampled,paper_exact,Paper"
    one = printed(capsys, "--table=7", "--size=20", "--composition=sampled")
    assert "paper_exact" not in one
    assert printed(capsys, "--table=5").startswith("## Table 5: ")
    assert printed(capsys, "--table=6").startswith("## Table 6: ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--table is needed"),
        (("--table=8",), "--table is '8'; the tables of profiles are 5, 6, 7"),
        (("--table=7", "--composition=even"), "--composition is 'even'; there are sampled, paper"),
        (("--table=7", "--language=de"), "--language is 'de'; there are zh, en"),
        (("--table=7", "--size=0"), "--size is 0"),
        (("--table=7", "--size=many"), "--size is 'many'"),
        (("--table=5", "--seed=1"), "--seed is of table 7 alone; leave it out"),
        (("--table=6", "--composition=sampled"), "--composition is of table 7 alone"),
        (("--table=7", "--attempts=3"), "--attempts is of files, by --config and --to"),
        (("--table=7", "--endpoint=x"), "--endpoint is of files, by --config and --to"),
        (("--table=7", "--config.seed=1"), "--config.seed is of files, by --config and --to"),
    ],
)
def test_options_that_cannot_be_meant_are_one_sentence(options, says):
    with pytest.raises(UserError) as caught:
        profiles.main(options, Console())
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)
