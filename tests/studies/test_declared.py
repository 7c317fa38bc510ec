"""The studies of experiments/: they can be planned at every scale, and share what they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from ibrl_jax.studies.plan import START, Plan, plan
from ibrl_jax.study import load_study

NAMES = (
    "table1",
    "table2",
    "table3",
    "table4",
    "table7",
    "table13",
    "fig3",
    "fig4",
    "fig5",
    "fig6",
)


SCALES = [(name, scale) for name in NAMES for scale in load_study(name).designs]
LARGE = [(name, scale) for name, scale in SCALES if scale != "mini"]


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    root = tmp_path_factory.mktemp("studies")
    return {
        name: plan(load_study(name).designs["mini"], (0,), [f"--config.run.root={root}"])
        for name in NAMES
    }


def runs(made: Plan) -> set[Path]:
    return {one.folder.path for one in made.runs}


def evaluations(made: Plan) -> set[Path]:
    return {one.folder for one in made.evaluations}


def test_nothing_is_trained_or_played_twice(plans: dict[str, Plan]) -> None:
    table2 = plans["table2"]
    assert runs(plans["fig4"]) < runs(table2)
    assert runs(plans["fig5"]) < runs(table2) < runs(plans["table4"])
    assert len(runs(plans["table4"])) == len(runs(table2)) + 1
    played = {one.folder for one in table2.evaluations if one.run is not None}
    assert played < evaluations(plans["table4"])
    assert evaluations(plans["fig6"]) < evaluations(plans["fig5"])
    assert not plans["fig4"].evaluations


def test_tables_of_telesales_share_no_run_with_the_other_domain(plans: dict[str, Plan]) -> None:
    assert not runs(plans["table1"]) & runs(plans["table2"])
    assert {one.config.domain for one in plans["table1"].runs} == {"telesales"}


def test_no_run_trains_with_a_held_out_counterpart(plans: dict[str, Plan]) -> None:
    for name, made in plans.items():
        design = load_study(name).designs["mini"]
        held_out = {c for column in design.columns if not column.known for c in column.counterparts}
        for one in made.runs:
            met = {c for role in one.config.roles.values() for c in role.counterpart}
            met |= {f"scripted:{family}" for family in one.config.sft.families}
            assert not met & held_out, (name, one.run.label)


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_what_stands_for_a_run_is_of_roles_that_are_measured_alike(name: str, scale: str) -> None:
    """Both negotiators play one game; what a call is to its seller it is not to its customer."""
    for run in load_study(name).designs[scale].runs:
        roles = {row.policy for row in run.rows if row.policy != "start"}
        assert len(roles) == 1 or run.file.startswith("configs/dond/"), run.label


@pytest.mark.parametrize("name", ["table1", "table2"])
def test_every_row_that_the_paper_prints_is_measured_at_its_size(name: str) -> None:
    study = load_study(name)
    assert study.printed is not None
    large = [design for scale, design in study.designs.items() if scale != "mini"]
    measured = [printed for design in large for printed in design.printed_rows.values() if printed]
    assert sorted(measured) == sorted(study.printed.rows)


@pytest.mark.parametrize(("name", "scale"), LARGE)
def test_the_papers_scale_can_be_planned(
    name: str, scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("URL", "MODEL", "KEY"):
        for who in ("JUDGE", "AUDITOR", "SIMULATOR", "DEEPSEEK", "GLM", "QWEN"):
            monkeypatch.delenv(f"IBRL_{who}_{kind}", raising=False)
    design = load_study(name).designs[scale]
    made = plan(design, (0,), [f"--config.run.root={tmp_path}"])
    assert bool(made.missing) == bool(design.runs)
    assert len(made.runs) == len(design.runs)


def test_figure_6_is_of_the_second_role_with_the_start_in_the_other_seat() -> None:
    for scale, role in (("mini", "agent1"), ("paper", "customer")):
        design = load_study("fig6").designs[scale]
        (run,) = design.runs
        assert {row.policy for row in run.rows} >= {"start", role}
        assert design.columns[0].counterparts == (START,)
