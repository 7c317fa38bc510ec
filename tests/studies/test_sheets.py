"""Tables 7 and 13: studies that train nothing."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import profiles, study
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.statistics import StatisticsSettings
from ibrl_jax.studies.sheets import ANNOTATION, annotated, composed, printed_validation

SETTINGS = StatisticsSettings(confidence=0.95, resamples=200, permutations=100, seed=0)


def said(main, *options: str) -> str:
    out = io.StringIO()
    main(options, Console(file=out, width=200))
    return out.getvalue()


def annotation(folder: Path) -> Path:
    """Ten calls: five are yes to all, three no to all, and of two A says no and B yes."""
    folder.mkdir(exist_ok=True)
    decisions = [(True, True, True)] * 5 + [(False, False, False)] * 3
    decisions += [(True, False, True), (False, False, True)]
    items = {f"{n:03d}": {"id": f"call{n}", "added": d[0]} for n, d in enumerate(decisions)}
    (folder / "key.json").write_text(json.dumps({"seed": 0, "items": items}))
    for who, name in ((1, "a.csv"), (2, "b.csv")):
        with (folder / name).open("w", newline="") as out:
            rows = [
                [item, "words", "yes" if d[who] else "no"]
                for item, d in zip(items, decisions, strict=True)
            ]
            csv.writer(out).writerows([["item", "call", "consent"], *rows])
    return folder


def test_the_papers_kappas_follow_from_its_counts() -> None:
    found = printed_validation(SETTINGS)
    kappas = [found.annotators, found.recorded_a, found.recorded_b]
    assert [round(k.value or 0, 4) for k in kappas] == [0.7592, 0.8393, 0.8390]


def test_an_annotation_is_read_from_its_folder(tmp_path: Path) -> None:
    found = annotated(annotation(tmp_path / "mine"), SETTINGS)
    assert found.n == 10
    assert found.annotators.agreement == pytest.approx(0.8)
    assert found.recorded_a.agreement == pytest.approx(0.9)
    assert found.recorded_b.agreement == pytest.approx(0.9)
    # A: 5 of 10 yes; B: 7 of 10; by chance .5 * .7 + .5 * .3 = .5
    assert found.annotators.value == pytest.approx((0.8 - 0.5) / 0.5)


def test_a_folder_without_its_files_is_one_sentence(tmp_path: Path) -> None:
    (annotation(tmp_path / "mine") / "b.csv").unlink()
    with pytest.raises(UserError, match=r"lacks b\.csv; it names a folder with"):
        annotated(tmp_path / "mine", SETTINGS)


def test_table_13_says_plainly_that_nobody_annotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ANNOTATION, raising=False)
    text = said(
        study.main, "--study=table13", f"--to={tmp_path}", "--config.statistics.resamples=200"
    )
    assert "0.7592" in text
    assert "No calls of ours have been annotated" in text
    assert {f.name for f in tmp_path.iterdir()} == {
        *(f"table13.{end}" for end in ("md", "csv", "json", "png", "svg")),
        "log.txt",
    }
    page = json.loads((tmp_path / "table13.json").read_text())
    assert page["statistics"]["resamples"] == 200


def test_table_13_has_ours_beside_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ANNOTATION, str(annotation(tmp_path / "mine")))
    said(
        study.main,
        "--study=table13",
        f"--to={tmp_path / 'out'}",
        "--config.statistics.resamples=200",
    )
    rows = json.loads((tmp_path / "out" / "table13.json").read_text())["parts"]["Agreement"]
    ours = {row["row"]: row["value"] for row in rows if row["of"] == "ours"}
    assert ours["annotators A and B"] == pytest.approx(0.6)
    assert len(rows) == 6


def test_a_study_that_trains_nothing_has_an_empty_plan() -> None:
    text = said(study.main, "--study=table13", "--plan")
    assert "0 of 0 jobs are finished; nothing was started" in text


def test_table_7_is_that_of_the_command_for_profiles() -> None:
    text = said(profiles.main, "--table=7", "--size=25", "--seed=3")
    assert composed(3, 25).markdown().strip() == text.strip()
