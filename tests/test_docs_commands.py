"""Every command that the documents tell a person to type is real, and every job is run somewhere.

A command is expanded by `make -n`. Of the Python command that it ends in, the module is there, the
options are those that its own `main` takes, its config loads with all overrides, and a study of it
can be planned. Nothing is run.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from ml_collections import ConfigDict
from rich.console import Console

from ibrl_jax import entry
from ibrl_jax.config import load, override
from ibrl_jax.errors import UserError
from ibrl_jax.jobs.queue import seeds_of
from ibrl_jax.studies.plan import plan
from ibrl_jax.study import load_study

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
JOBS = tuple(re.findall(r"^([a-z][a-z0-9-]*):.*##", MAKEFILE, re.MULTILINE))
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}

STAND_INS = {
    "CONFIG=FILE": "CONFIG=configs/dond/mini.py",
    "--config=FILE": "--config=configs/dond/mini.py",
    "TO=FOLDER": "TO=runs/any",
    "--to=FOLDER": "--to=runs/any",
    "runs/<name>/seed0": "runs/mini/seed0",
    "<other settings>": "",
}
"""What stands in documents for something of the reader's own, and what it is taken for here."""

THEIRS = ("--config=path/of/your/config.py",)
"""Configs that a reader must have: they are not loaded."""

TOOLS = ("pip", "pre_commit", "pyright", "pytest", "ruff", "tensorboard.main", "venv")
"""Modules of others, whose options are theirs to check."""

PLAIN = {
    "ibrl_jax.domains.dond.fuzz": r"\d+",
    "ibrl_jax.models.table": r"",
    "ibrl_jax.trainer.tokenizer": r"",
}
"""Commands of ours without options: what may stand behind them."""

DEFAULT_CONFIGS = {"ibrl_jax.proofs.audit": "configs/dond/audit.py"}
"""The config of a command that names none."""

HARMLESS = {"time.monotonic", "time.perf_counter"}
"""What a command may do before it reads its options."""


# ------------------------------------------------------------------------------- what is found


@dataclass(frozen=True, kw_only=True)
class Typed:
    """A command in a document. `whole`: in a block of code, so that nothing of it is left out."""

    document: str
    text: str
    whole: bool

    def __str__(self) -> str:
        return f"{self.document}: {self.text}"


def commands() -> Iterator[Typed]:
    """Lines of code blocks, and code within sentences that names a job with something behind it."""
    begins = re.compile(r"^(?:make [a-z]|(?:python3?|\.venv/bin/python) -m )")
    for document, text in DOCUMENTS.items():
        blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        for line in "".join(blocks).splitlines():
            if begins.match(line):
                yield Typed(document=document, text=line.split(" #")[0].strip(), whole=True)
        prose = re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`([^`\n]+)`", prose):
            if begins.match(span) and (not span.startswith("make ") or " " in span[5:]):
                yield Typed(document=document, text=span, whole=False)


COMMANDS = tuple(commands())


@cache
def expanded(text: str) -> tuple[tuple[str, ...], str]:
    """The commands that a job would run, and all that `make -n` prints."""
    for found, instead in STAND_INS.items():
        text = text.replace(found, instead)
    if not text.startswith("make "):
        return (text,), ""
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MAKE", "MFLAGS", "IBRL_")) and key not in ("SEEDS", "SCALE", "JOBS")
    }
    command = ["make", "-n", "--no-print-directory", *shlex.split(text)[1:]]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\n{done.stderr}"
    python = r"^(?:PYTHONPATH=\. )?\.venv[\w-]*/bin/python -?\S.*$"
    return tuple(re.findall(python, done.stdout, re.MULTILINE)), done.stdout


def python_command(line: str) -> tuple[str, list[str]]:
    """The module (or the file) that a command runs, and what stands behind it."""
    words = [word for word in shlex.split(line.split(" && ")[0]) if word != "PYTHONPATH=."]
    if words[1] == "-m":
        return words[2], words[3:]
    return words[1], words[2:]


# ------------------------------------------------------------------------------- what is checked


class Read(Exception):
    """The options have been read; nothing further is to happen."""

    def __init__(self, options: entry.Options) -> None:
        self.options = options


def options_of(module: str, argv: Sequence[str]) -> entry.Options:
    """The options as the module's own `main` reads them.

    Raises:
        UserError: one of them is no option there.
    """
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no module {module}"
    found = importlib.import_module(
        f"{module}.__main__" if spec.submodule_search_locations else module
    )
    tree = ast.parse(Path(found.__file__ or "").read_text(encoding="utf-8"))
    main = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main")
    before: set[str] = set()
    for statement in main.body:
        called = {ast.unparse(n.func) for n in ast.walk(statement) if isinstance(n, ast.Call)}
        if "Options" in called:
            break
        before |= called
    assert before <= HARMLESS, f"main of {module} calls {before} before it reads its options"

    class Reader(entry.Options):
        def __init__(self, argv: Sequence[str], known: Sequence[str]) -> None:
            super().__init__(argv, known)
            raise Read(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "Options", Reader)
        with pytest.raises(Read) as read:
            found.main(list(argv), Console(file=io.StringIO()))
    return read.value.options


def is_ours(module: str) -> bool:
    return module.split(".")[0] in ("ibrl_jax", "benchmarks", "experiments")


@cache
def runs() -> dict[str, ConfigDict]:
    """Every run that the documents' commands would leave, by the name of its config."""
    found = {}
    for typed in COMMANDS:
        trains = re.match(r"make (?:train|seeds|quickstart|telesales)\b", typed.text)
        for line in expanded(typed.text)[0] if trains and typed.whole else ():
            options = options_of(*python_command(line))
            config = load(str(ROOT / options.need("config", "")), options.overrides)
            found[config.name] = config
    return found


def check_config(module: str, options: entry.Options) -> None:
    """The config that the command would use, with its overrides."""
    file, run = options.get("config", ""), options.get("run", "")
    if f"--config={file}" in THEIRS:
        return
    if run:
        name = Path(run).parent.name
        assert name in runs(), f"no command of the documents makes {run}"
        override(runs()[name].copy_and_resolve_references(), options.overrides)
    elif study := options.get("study", ""):
        check_study(study, options)
    elif file or options.overrides:
        file = file or DEFAULT_CONFIGS[module]
        assert (ROOT / file).is_file(), f"there is no {file}"
        load(str(ROOT / file), options.overrides)


def check_study(name: str, options: entry.Options) -> None:
    """A study of one seed can be planned: all its configs load."""
    study = load_study(name)
    scale = options.get("scale", "mini")
    assert scale in study.designs, f"{name} has no scale {scale}"
    seeds = list(seeds_of(options.get("seeds", "0")))
    planned = plan(study.designs[scale], seeds[:1], options.overrides)
    assert len(planned.runs) == len(study.designs[scale].runs)


def check(line: str) -> None:
    """One Python command."""
    module, argv = python_command(line)
    if module.endswith(".py"):
        assert (ROOT / module).is_file(), f"there is no {module}"
    elif module in PLAIN:
        assert importlib.util.find_spec(module) is not None
        assert re.fullmatch(PLAIN[module], " ".join(argv)), f"{module} takes no {argv}"
    elif is_ours(module):
        check_config(module, options_of(module, argv))
    else:
        assert module in TOOLS, f"no {module} is known to this test"
        assert importlib.util.find_spec(module.split(".")[0]) is not None


def check_all(text: str) -> None:
    """Every Python command that a typed one would run."""
    for line in expanded(text)[0]:
        check(line)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands are typed there."""
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("typed", COMMANDS, ids=str)
def test_a_documented_command_is_real(typed: Typed) -> None:
    lines, printed = expanded(typed.text)
    missing = re.findall(r"test -n '' .*\n.*needs (\w+)=", printed)
    assert not missing or not typed.whole, f"the job needs {missing[0]}="
    if missing:
        return  # a sentence that speaks of a job, not the command itself
    assert lines or typed.text.split()[1] in ("clean", "help")
    check_all(typed.text)


def test_commands_are_found_at_all() -> None:
    found = {typed.text for typed in COMMANDS}
    assert 'make train CONFIG=configs/dond/mini.py ARGS="--config.seed=1"' in found
    assert any(text.startswith("python -m ibrl_jax.") for text in found)
    assert "make parity-real" not in found, "a job that a sentence speaks of is no command"
    assert {typed.whole for typed in COMMANDS} == {True, False}
    assert len(found) > 40


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("make train CONFIG=configs/dond/nowhere.py", "there is no configs/dond/nowhere.py"),
        ("make train CONFIG=configs/dond/mini.py ARGS=--config.sed=1", "config.sed does not exist"),
        ("make evaluate RUN=runs/mini/seed0 ARGS=--seat=agent0", "'--seat=agent0' is no option"),
        ("make play RUN=runs/nobody/seed0", "no command of the documents makes runs/nobody"),
        ("python -m ibrl_jax.nothing", "there is no module ibrl_jax.nothing"),
        ("make trian", "No rule to make target"),
        ("make fuzz N=many", "takes no"),
    ],
)
def test_a_command_that_is_none_is_noticed(text: str, why: str) -> None:
    with pytest.raises((AssertionError, UserError), match=re.escape(why)):
        check_all(text)


# ------------------------------------------------------------------------- where jobs are run

TESTED = {
    "help": "tests/test_project.py bare_make_lists_every_job",
    "clean": "tests/test_docs_commands.py make_clean_removes_what_is_made_and_leaves_runs",
    "train": "tests/trainer/test_run.py a_killed_process_resumes_bitwise",
    "seeds": "tests/test_many.py the_command_counts_what_failed",
    "telesales": "tests/telesales/test_end_to_end.py "
    "a_start_learns_is_judged_evaluated_audited_and_reported",
    "sft": "tests/trainer/test_jobs_of_a_run.py sft_says_where_the_start_is",
    "evaluate": "tests/trainer/test_jobs_of_a_run.py evaluate_then_report",
    "report": "tests/trainer/test_jobs_of_a_run.py evaluate_then_report",
    "play": "tests/trainer/test_jobs_of_a_run.py play_is_a_dialogue_with_a_policy",
    "export": "tests/trainer/test_jobs_of_a_run.py export_writes_a_folder",
    "tensorboard": "tests/reporting/test_board.py scalars_and_texts_are_read_back",
    "profile": "tests/trainer/test_profiling.py the_last_iteration_is_traced_and_its_stages_add_up",
    "resume-check": "tests/trainer/test_resume_check.py what_came_out_is_written_down",
    "multihost": "tests/trainer/test_multihost.py the_job_fails_by_each_thing_that_does_not_hold",
    "endpoint-check": "tests/endpoints/test_check_command.py an_endpoint_that_can_all_ends_well",
    "human-validation": "tests/evaluation/test_human_validation.py "
    "the_command_writes_a_sheet_and_reads_two_copies",
    "fuzz": "tests/dond/test_dond_domain.py the_fuzzer_reaches_every_action_code_and_ending",
    "human-corpus": "tests/dond/test_dond_data.py "
    "the_command_prints_the_table_and_ends_with_what_came_out",
    "models": "tests/models/test_presets.py every_released_preset_is_counted_and_printed",
    "memory": "tests/trainer/test_jobs_of_a_run.py memory_plans_without_a_device",
    "tokenizer": "tests/trainer/test_jobs_of_a_run.py tokenizer_writes_both",
    "table5": "tests/telesales/test_paper_tables.py "
    "the_command_prints_markdown_and_writes_it_and_csv",
    "table6": "tests/telesales/test_paper_tables.py "
    "the_command_prints_markdown_and_writes_it_and_csv",
    "profiles": "tests/telesales/test_profile_file.py an_endpoint_writes_the_stories_all_or_none",
    "transcripts": "tests/trainer/test_jobs_of_a_run.py transcripts_are_written_and_read_back",
    "paper-check": "tests/studies/test_paper.py the_command_prints_a_table_and_writes_it",
    "mismatch": "tests/trainer/test_mismatch.py the_command_prints_and_writes",
    "exploit": "tests/trainer/test_exploit.py the_command_trains_measures_and_goes_on",
    "evaluate-any": "tests/trainer/test_contest.py "
    "every_row_meets_every_column_and_who_it_trained_with",
    "crossplay": "tests/trainer/test_contest.py cross_play_has_an_entry_for_every_pair",
}
"""Job -> file and name of a test that does by the same code, small, what the job does."""

IN_CI = ("test", "lint", "audit", "quickstart")
"""Jobs that `.ci/run` runs themselves."""

BY_HAND = {
    "test-slow": "many minutes: the tests on eight virtual devices and in two processes",
    "format": "it rewrites the files; `lint` holds what it would do",
    "parity": "needs torch",
    "parity-real": "needs torch, and fetches a model",
    "bench": "needs torch and the peers; what is its own is in tests/test_bench.py",
    "bench-gpu": "needs an accelerator",
}
"""Jobs that nothing runs without a person, and why."""


STUDIES = tuple(re.findall(r"^([a-z0-9-]+):.*##.*\n\t@\$\(STUDY\)", MAKEFILE, re.MULTILINE))
"""Jobs that are a study: one is run from its first run to its page by tests/studies."""


def test_every_job_is_run_somewhere_or_says_why_not() -> None:
    tables = [*TESTED, *IN_CI, *BY_HAND]
    assert len(set(tables)) == len(tables), "a job stands in two tables"
    assert set(JOBS) <= {*tables, *STUDIES}, sorted({*JOBS} - {*tables, *STUDIES})
    assert (ROOT / "tests" / "studies" / "test_end_to_end.py").is_file()


@pytest.mark.parametrize("job", STUDIES)
def test_a_study_can_be_planned_at_every_scale(job: str) -> None:
    for scale in load_study(job).designs:
        check(f".venv/bin/python -m ibrl_jax.study --study={job} --scale={scale}")


@pytest.mark.parametrize("job", [job for job in TESTED if job not in STUDIES])
def test_the_test_that_runs_a_job_is_there(job: str) -> None:
    file, name = TESTED[job].split()
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert f"test_{name}" in there, f"{file} has no test_{name}"


@pytest.mark.parametrize("job", IN_CI)
def test_ci_runs_a_job(job: str) -> None:
    assert re.search(rf"^step make {job}\b", CI, re.MULTILINE), f".ci/run has no step make {job}"


def test_make_clean_removes_what_is_made_and_leaves_runs(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE, encoding="utf-8")
    for name in (".venv/bin", ".cache/jax", "ibrl_jax/__pycache__", "runs/mini/seed0"):
        (tmp_path / name).mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    subprocess.run(["make", "clean"], cwd=tmp_path, env=env, check=True, capture_output=True)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"Makefile", "ibrl_jax", "runs", "runs/mini", "runs/mini/seed0"}
