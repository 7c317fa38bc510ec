"""A whole study by its real commands: a start, two runs, three evaluations, the page."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import study
from tests.studies.fakes import STUDY

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_by_its_real_commands_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "load_study", lambda name: STUDY)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    os.chdir(ROOT)
    options = ["--study=tiny", "--seeds=0", "--jobs=1", f"--config.run.root={tmp_path}"]
    options += ["--config.statistics.resamples=200", f"--to={tmp_path / 'tiny-mini'}"]
    out = io.StringIO()
    study.main(options, Console(file=out, width=200))
    said = json.loads((tmp_path / "tiny-mini" / "tiny.json").read_text())
    assert said["coverage"] == {
        "evaluations": 3,
        "evaluations_planned": 3,
        "dialogues": said["coverage"]["dialogues_planned"],
        # 4 scenarios, 2 seats: 5 policies in 4 cells each, the reference in 3
        "dialogues_planned": 8 * (5 * 4 + 3),
    }
    had = {row["row"]: row["updates"] for row in said["parts"]["Training"]}
    assert had["alone"] == 4
    assert had["alone halfway"] == 2
    page = (tmp_path / "tiny-mini" / "tiny.md").read_text()
    study.main(options, Console(file=out, width=200))
    assert "6 jobs: 6 finished before, 0 run here" in (tmp_path / "tiny-mini/log.txt").read_text()
    assert (tmp_path / "tiny-mini" / "tiny.md").read_text() == page
