"""Which jobs a study has, where, in which order, and which of them are done."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ibrl_jax.config import describe
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation import audits
from ibrl_jax.jobs.processes import Job
from ibrl_jax.studies import plan as plan_module
from ibrl_jax.studies.declare import Column, Design, Env, Row, Run, need
from ibrl_jax.studies.plan import plan
from ibrl_jax.study import load_study
from ibrl_jax.trainer.contents import PATHS, PATHS_OR_WORDS, content_of, contents
from ibrl_jax.trainer.finished import is_of_today, is_whole
from ibrl_jax.trainer.weights import fingerprint
from tests.studies.fakes import DESIGN, SHORT, evaluate, finish, planned


def names(jobs: tuple[Job, ...]) -> list[str]:
    return [job.name for job in jobs]


def test_each_seed_has_a_start_that_its_runs_share_and_an_evaluation_a_run(tmp_path: Path) -> None:
    made = planned(tmp_path, (0, 3))
    one = ["start", "pair", "alone", "evaluation of pair", "evaluation of alone"]
    one.append("evaluation of references")
    assert names(made.jobs) == [f"{name} seed{seed}" for seed in (0, 3) for name in one]
    after = {job.name: job.after for job in made.jobs}
    assert after["pair seed3"] == after["alone seed3"] == ("start seed3",)
    assert after["evaluation of alone seed0"] == ("alone seed0",)
    assert after["evaluation of references seed0"] == ()
    assert [job.total for job in made.jobs[:4]] == [0, 4, 4, 0]


def test_a_run_is_the_train_command_on_its_file_with_a_name_of_its_own(tmp_path: Path) -> None:
    pair, alone = planned(tmp_path, (2,)).runs
    assert pair.job.command[1:4] == ("-m", "ibrl_jax.train", f"--config={pair.run.file}")
    assert "--config.seed=2" in pair.job.command
    assert pair.folder.path.parent.parent == tmp_path
    assert pair.folder.path.parent.name.startswith("pair-")
    assert alone.config.roles.agent1.counterpart == ("frozen:start",)


def test_the_seed_and_how_it_is_measured_do_not_name_a_run_and_what_shapes_it_does(
    tmp_path: Path,
) -> None:
    def folder(*overrides: str, seed: int = 0) -> str:
        made = plan(DESIGN, (seed,), [f"--config.run.root={tmp_path}", *overrides])
        return made.runs[0].folder.path.parent.name

    assert folder() == folder(seed=5)
    assert folder() == folder("--config.evaluation.scenarios=7", "--config.run.text_every=9")
    assert folder() == folder("--config.telesales.seed=4"), "another domain shapes nothing"
    assert folder() != folder("--config.rollout.group=2")
    assert folder() != folder("--config.iterations=8")
    assert folder() != folder("--config.run.snapshots_every=1"), "snapshots may be needed"


CALLS = replace(
    DESIGN,
    runs=(
        Run(
            label="pair",
            name="pair",
            file="configs/telesales/smoke.py",
            changes=SHORT,
            rows=(Row(label="agent", policy="sales"),),
        ),
    ),
    references=(),
    columns=(Column(name="A", counterparts=("scripted:rule_v2",)),),
    in_system=False,
    self_play=False,
)


@pytest.mark.parametrize(
    "design, key, file",
    [
        (DESIGN, "sft.transcripts", "calls.jsonl"),
        (DESIGN, "dond.prompt", "prompts/rules.txt"),
        (CALLS, "sft.transcripts", "calls.jsonl"),
        (CALLS, "telesales.test_file", "profiles.jsonl"),
    ],
)
def test_a_file_that_was_edited_is_another_run_and_evaluation(
    tmp_path: Path, design: Design, key: str, file: str
) -> None:
    place = tmp_path / "user" / file
    place.parent.mkdir(parents=True)
    named = place.parent if "/" in file else place

    def folders() -> set[Path]:
        made = plan(design, (0,), [f"--config.run.root={tmp_path}", f"--config.{key}={named}"])
        found = {made.runs[0].folder.path, made.evaluations[0].folder}
        assert len(found) == 2
        return found

    absent = folders()
    place.write_text("one")
    first = folders()
    place.write_text("two")
    second = folders()
    assert not first & second
    assert not absent & first
    place.write_text("one")
    assert folders() == first, "the text counts, and not when it was written"


def test_the_names_of_files_count_and_hidden_ones_do_not(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.txt"
    file.write_text("one")
    found = content_of(tmp_path)
    (tmp_path / ".DS_Store").write_text("x")
    assert content_of(tmp_path) == found
    file.rename(file.with_name("b.txt"))
    assert content_of(tmp_path) not in (found, None)
    assert content_of(tmp_path / "nowhere") is None


def test_of_a_folder_of_weights_these_count_and_what_is_read_beside_them(tmp_path: Path) -> None:
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    seen = [content_of(tmp_path)]
    (tmp_path / "README.md").write_text("read by nobody")
    assert content_of(tmp_path) == seen[0]
    (tmp_path / "config.json").write_text("[]")
    seen.append(content_of(tmp_path))
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "model.safetensors")
    seen.append(content_of(tmp_path))
    assert len(set(seen)) == 3


def test_a_policy_that_is_a_counterpart_counts_by_its_weights(tmp_path: Path) -> None:
    policy = tmp_path / "runs" / "policies" / "agent1"
    policy.mkdir(parents=True)
    (policy.parent.parent / "config.json").write_text("{}")
    (policy / "policy.json").write_text("{}")
    name = f"frozen:{tmp_path}/runs:agent1"
    given = {"domain": "dond", "roles.agent1.counterpart": ("frozen:start", name, "scripted:fair")}
    assert contents(given) == {}, "it has no weights yet"
    save_file({"w": np.zeros(3, np.float32)}, policy / "params.safetensors")
    assert contents(given) == {name: fingerprint(policy)}


def test_every_setting_that_names_a_file_is_one_whose_contents_count() -> None:
    """A new one must be put among them, or here, where nothing that is read depends on it."""
    apart = {
        "policy.preset",  # a name, and so is the next
        "policy.chat",
        "run.root",
        "run.dialogues_every",
        "run.snapshots_every",
    }
    telling = {key for key, field in describe() if re.search(r"\b(file|folder)s?\b", field.doc)}
    counterparts = {key for key in telling if key.endswith(".counterpart")}
    evaluation = {key for key in telling if key.startswith("evaluation.")}
    assert telling - counterparts - evaluation - apart == {*PATHS, *PATHS_OR_WORDS}


def test_results_of_another_version_are_not_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = planned(tmp_path, (0,))
    monkeypatch.setattr(plan_module, "RESULTS_VERSION", plan_module.RESULTS_VERSION + 1)
    after = planned(tmp_path, (0,))
    assert before.runs[0].folder.path != after.runs[0].folder.path
    assert before.evaluations[0].folder != after.evaluations[0].folder


def test_an_evaluation_is_named_by_what_shapes_it(tmp_path: Path) -> None:
    def folder(*overrides: str) -> str:
        made = plan(DESIGN, (0,), [f"--config.run.root={tmp_path}", *overrides])
        return made.evaluations[0].folder.parent.name

    assert folder() != folder("--config.evaluation.scenarios=7")
    assert folder() != folder("--config.rollout.group=2")


def test_policies_are_named_by_folder_role_and_iteration(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,))
    run = made.runs[1].folder.path
    assert made.evaluations[1].policies == {
        "agent0": f"frozen:{run}:agent0",
        "agent0 at 0.5": f"frozen:{run}:agent0@2",
    }
    assert made.evaluations[2].policies == {"fair": "scripted:fair"}
    command = made.evaluations[1].job.command
    assert "--config.evaluation.counterparts=A=scripted:lexi+scripted:mirror" in command
    assert f"--to={made.evaluations[1].folder}" in command
    assert made.evaluations[1].config.evaluation.policies == (
        f"agent0=frozen:{run}:agent0",
        f"agent0 at 0.5=frozen:{run}:agent0@2",
    )


def test_studies_with_other_labels_share_runs_and_evaluations(tmp_path: Path) -> None:
    first = DESIGN.runs[0]
    renamed = replace(
        first, rows=tuple(replace(row, label=f"other {row.policy}") for row in first.rows)
    )
    other = replace(DESIGN, runs=(replace(renamed, label="x"),), against="x", references=())
    one, two = planned(tmp_path, (0,)), planned(tmp_path, (0,), other)
    assert one.runs[0].folder.path == two.runs[0].folder.path
    assert one.evaluations[0].folder == two.evaluations[0].folder


def test_a_snapshot_that_no_run_writes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="after 2 of 4 iterations, and .*snapshots_every is 3"):
        plan(DESIGN, (0,), [f"--config.run.root={tmp_path}", "--config.run.snapshots_every=3"])


def test_what_is_finished_is_used_and_a_start_is_needed_only_by_runs_that_lack_it(
    tmp_path: Path,
) -> None:
    made = planned(tmp_path)
    finish(made.runs[0])
    evaluate(made.evaluations[0], lambda *_: 1.0)
    again = {job.name: job.finished for job in planned(tmp_path).jobs}
    done = {name for name, finished in again.items() if finished}
    assert done == {"pair seed0", "evaluation of pair seed0"}
    finish(made.runs[1])
    again = {job.name: job.finished for job in planned(tmp_path).jobs}
    assert again["start seed0"]
    assert not again["start seed1"]


def test_an_evaluation_does_not_count_before_its_run_is_finished(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,))
    for one in made.evaluations:
        evaluate(one, lambda *_: 1.0)
    again = {job.name: job.finished for job in planned(tmp_path, (0,)).jobs}
    assert not again["evaluation of pair seed0"]
    assert again["evaluation of references seed0"]


@pytest.mark.parametrize(
    "left, due",
    [
        ({"dialogues": 9, "broken_off": 0}, False),
        ({"dialogues": 9, "broken_off": 2}, True),
        ({"dialogues": 9, "broken_off": 0, "calls": 9, "unaudited": 0}, False),
        ({"dialogues": 9, "broken_off": 0, "calls": 9, "unaudited": 1}, True),
    ],
)
def test_an_evaluation_with_something_left_to_do_is_due_again(
    tmp_path: Path, left: dict[str, int], due: bool
) -> None:
    made = planned(tmp_path, (0,))
    finish(made.runs[0])
    one = made.evaluations[0]
    evaluate(one, lambda *_: 1.0)
    file = one.folder / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"unfinished": left}))
    assert is_of_today(one.folder), "what there is of it is laid out"
    assert is_whole(one.folder) is not due
    again = {job.name: job.finished for job in planned(tmp_path, (0,)).jobs}
    assert again["evaluation of pair seed0"] is not due


def test_a_damaged_evaluation_is_due_again(tmp_path: Path) -> None:
    made = planned(tmp_path, (0,))
    finish(made.runs[0])
    evaluate(made.evaluations[0], lambda *_: 1.0)
    (made.evaluations[0].folder / "evaluation.json").write_text('{"rows": [')
    again = {job.name: job.finished for job in planned(tmp_path, (0,)).jobs}
    assert again["pair seed0"]
    assert not again["evaluation of pair seed0"]


def test_audits_are_part_of_an_evaluations_name_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = load_study("table1").designs["mini"]

    def folders(design: Design) -> tuple[set[Path], set[Path]]:
        made = plan(design, (0,), [f"--config.run.root={tmp_path}"])
        return {r.folder.path for r in made.runs}, {e.folder for e in made.evaluations}

    before = folders(calls), folders(DESIGN)
    monkeypatch.setattr(audits, "AUDITS_VERSION", audits.AUDITS_VERSION + 1)
    after = folders(calls), folders(DESIGN)
    assert after[1] == before[1], "nobody audits Deal-or-No-Deal"
    assert after[0][0] == before[0][0], "runs do not depend on it"
    assert not after[0][1] & before[0][1]


@pytest.mark.parametrize("key", ["seed", "name", "evaluation.policies", "evaluation.counterparts"])
def test_what_a_study_says_itself_cannot_be_changed(tmp_path: Path, key: str) -> None:
    with pytest.raises(UserError, match=f"says itself what config.{key} is"):
        plan(DESIGN, (0,), [f"--config.{key}=1"])


def test_variables_of_the_environment_are_needed_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = {
        "endpoints.friend.base_url": Env("TINY_URL"),
        "endpoints.friend.model": Env("TINY_MODEL"),
        "endpoints.friend.key_env": Env("TINY_KEY", named=True),
    }
    design = replace(
        DESIGN,
        columns=(Column(name="A", counterparts=("api:friend",)),),
        evaluation=endpoint,
    )
    made = planned(tmp_path, (0,), design)
    assert made.missing == {"TINY_URL", "TINY_MODEL", "TINY_KEY"}
    with pytest.raises(UserError, match="needs the environment variables TINY_KEY, TINY_MODEL"):
        need(set(made.missing), "tiny")
    monkeypatch.setenv("TINY_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("TINY_MODEL", "small")
    monkeypatch.setenv("TINY_KEY", "secret")
    made = planned(tmp_path, (0,), design)
    assert not made.missing
    friend = made.evaluations[0].config.endpoints.friend
    assert (friend.base_url, friend.key_env) == ("http://127.0.0.1:9/v1", "TINY_KEY")
    assert not any("secret" in part for job in made.jobs for part in job.command)
    assert not made.runs[0].config.endpoints, "a run opens no endpoint that it does not use"


def test_the_address_of_an_endpoint_is_no_part_of_a_runs_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"endpoints.a.base_url": Env("TINY_URL"), "endpoints.a.model": "m"}
    run = DESIGN.runs[0]
    design = replace(DESIGN, runs=(replace(run, changes={**run.changes, **changes}),))

    def folder(url: str, **other: str) -> str:
        monkeypatch.setenv("TINY_URL", url)
        extra = [f"--config.endpoints.a.{key}={value}" for key, value in other.items()]
        made = plan(design, (0,), [f"--config.run.root={tmp_path}", *extra])
        return made.runs[0].folder.path.parent.name

    assert folder("http://one/v1") == folder("http://two/v1")
    assert folder("http://one/v1") != folder("http://one/v1", model="other")


def test_an_evaluation_of_other_weights_than_lie_there_now_is_not_finished(tmp_path: Path) -> None:
    policy = tmp_path / "policy"
    policy.mkdir()
    (policy / "policy.json").write_text("{}")
    weights = policy / "params.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, weights)
    about = {"folder": str(policy), "fingerprint": fingerprint(policy)}
    file = tmp_path / "evaluation.json"
    assert not is_of_today(tmp_path)
    file.write_text(json.dumps({"policies": [{"label": "scripted"}, about]}))
    assert is_of_today(tmp_path)
    save_file({"w": np.ones(3, np.float32)}, weights)
    assert not is_of_today(tmp_path)
    weights.unlink()
    assert not is_of_today(tmp_path)


def test_nor_is_one_with_a_counterpart_that_has_other_weights_now(tmp_path: Path) -> None:
    policy = tmp_path / "run" / "policies" / "start"
    policy.mkdir(parents=True)
    (policy.parent.parent / "config.json").write_text("{}")
    (policy / "policy.json").write_text("{}")
    save_file({"w": np.zeros(3, np.float32)}, policy / "params.safetensors")
    who = {
        "scripted:fair": {"kind": "scripted"},
        f"frozen:{tmp_path}/run:start": {"kind": "frozen", "fingerprint": fingerprint(policy)},
    }
    said = {"counterparts": who, "config": {"domain": "dond"}}
    (tmp_path / "evaluation.json").write_text(json.dumps(said))
    assert is_of_today(tmp_path)
    save_file({"w": np.ones(3, np.float32)}, policy / "params.safetensors")
    assert not is_of_today(tmp_path)
    (policy / "policy.json").unlink()
    assert not is_of_today(tmp_path)
