"""The project keeps its promises: the jobs, the requirements, the documents, the size of a file."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
JOBS = set(re.findall(r"^([a-z][a-z0-9-]*):", MAKEFILE, re.MULTILINE))
LISTS = ("requirements.txt", "requirements-dev.txt")


def make(
    *arguments: str, cwd: Path = ROOT, expect: int | None = None
) -> subprocess.CompletedProcess[str]:
    """`make` as a person at a terminal would run it, whatever `make` runs this test."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))
    }
    done = subprocess.run(["make", *arguments], cwd=cwd, env=env, capture_output=True, text=True)
    if expect is not None:
        assert done.returncode == expect, done.stdout + done.stderr
    return done


def project_files() -> list[Path]:
    """What the repository holds or is about to: tracked files and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(
            command, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git checkout, so nothing says which files are the project's")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def texts() -> dict[str, str]:
    """The project's text files by relative name; files that are not UTF-8 are data."""
    found = {}
    for path in project_files():
        try:
            found[path.relative_to(ROOT).as_posix()] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def requirements(name: str) -> list[Requirement]:
    lines = (line.split(" #")[0].strip() for line in (ROOT / name).read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-"))]


def constraints() -> dict[str, str]:
    """Canonical name -> exact version."""
    pins = requirements("constraints.txt")
    for pin in pins:
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), f"{pin} is not one exact version"
    return {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in pins}


# ---------------------------------------------------------------------------- jobs


def test_bare_make_lists_every_job():
    listed = re.findall(r"^  make ([a-z0-9-]+) +\S", make(expect=0).stdout, re.MULTILINE)
    assert sorted(listed) == sorted(JOBS)
    assert len(JOBS) >= 17


def test_every_job_is_one_line():
    for job in JOBS:
        recipe = re.search(rf"^{job}:.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE)
        assert recipe is not None
        assert len(recipe[1].splitlines()) == 1, job


def test_every_job_is_phony_so_that_a_file_of_its_name_hides_nothing():
    phony = " ".join(re.findall(r"^\.PHONY:((?:.*\\\n)*.*)", MAKEFILE, re.MULTILINE))
    assert set(phony.replace("\\", " ").split()) >= JOBS


@pytest.mark.parametrize(
    "job, variable",
    [
        ("train", "CONFIG"),
        ("sft", "CONFIG"),
        ("evaluate", "RUN"),
        ("report", "RUN"),
        ("play", "RUN"),
    ]
    + [("human-corpus", "DATA")],
)
def test_a_job_without_its_argument_says_so_in_one_sentence(job: str, variable: str):
    done = make(job, f"{variable}=", expect=2)
    sentence, *rest = done.stderr.splitlines()
    assert sentence.startswith(f"make {job} needs {variable}=..., such as {variable}=")
    assert all(line.startswith("make: ***") for line in rest)
    assert not done.stdout


def test_a_variable_that_no_job_reads_is_one_sentence():
    done = make("train", "CONFIG=configs/dond/mini.py", "SEED=1", expect=2)
    assert "SEED is no variable of these jobs; there are PYTHON" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not done.stdout


# ---------------------------------------------------------------------------- set-up


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A checkout with the set-up alone, and no .venv."""
    for name in ("Makefile", "constraints.txt", *LISTS):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


PIP = 'case "$*" in *"-m pip install"*) echo "Collecting jax"; echo {say}; exit {code} ;; esac'


def refused(folder: Path, python: str) -> str:
    """The sentence with which set-up refuses a Python; it leaves no .venv."""
    done = make("fuzz", f"PYTHON={python}", cwd=folder, expect=2)
    assert not (folder / ".venv").exists()
    assert not done.stdout
    return done.stderr.splitlines()[0]


def test_an_old_python_is_refused_by_name_and_version(elsewhere: Path):
    old = script(
        elsewhere / "old",
        'case "$*" in --version) echo Python 3.10.13 ;; *version_info*) exit 1 ;; esac',
    )
    assert "Python 3.11 or newer is needed" in refused(elsewhere, str(old))
    assert f"{old} is not (Python 3.10.13)" in refused(elsewhere, str(old))


def test_a_python_that_is_not_there_is_named(elsewhere: Path):
    assert "no Python is called no-such-python" in refused(elsewhere, "no-such-python")


def test_a_python_without_venv_says_what_to_install(elsewhere: Path):
    bare = script(elsewhere / "bare", 'case "$*" in *ensurepip*) exit 1 ;; esac')
    assert "package python3-venv" in refused(elsewhere, str(bare))


def test_an_install_that_fails_leaves_no_stamp_and_shows_why(elsewhere: Path):
    script(elsewhere / ".venv/bin/python", PIP.format(say="ERROR: no space left", code=7))
    done = make("fuzz", cwd=elsewhere, expect=2)
    assert "ERROR: no space left" in done.stderr
    assert "pip could not install requirements.txt" in done.stderr
    assert not list((elsewhere / ".venv").glob(".ready*"))


def test_setting_up_happens_once_until_a_requirement_changes(elsewhere: Path):
    script(elsewhere / ".venv/bin/python", PIP.format(say="done", code=0))
    assert "setting up .venv from requirements.txt" in make("fuzz", cwd=elsewhere, expect=0).stdout
    assert make("fuzz", cwd=elsewhere, expect=0).stdout == ""
    stamp = (elsewhere / ".venv/.ready-run").stat().st_mtime
    os.utime(elsewhere / "constraints.txt", (stamp + 9, stamp + 9))
    assert "setting up .venv" in make("fuzz", cwd=elsewhere, expect=0).stdout


def test_a_job_that_fails_makes_make_fail(elsewhere: Path):
    script(elsewhere / ".venv/bin/python", 'case "$*" in *dond.fuzz*) exit 3 ;; esac')
    done = make("fuzz", cwd=elsewhere, expect=2)
    assert len(done.stderr.splitlines()) == 1


# ---------------------------------------------------------------------------- requirements


def test_every_requirement_is_a_range_that_holds_its_constraint():
    pins = constraints()
    for requirement in (r for name in LISTS for r in requirements(name)):
        assert requirement.specifier, f"{requirement} has no range"
        pin = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(pin), f"{requirement} leaves out the tested {pin}"


def test_what_requirements_bring_along_is_constrained_too_and_torch_is_not_brought():
    seen: set[tuple[str, str]] = set()
    open_ends = [r for name in LISTS for r in requirements(name)]
    while open_ends:
        requirement = open_ends.pop()
        for extra in ("", *requirement.extras):
            key = (canonicalize_name(requirement.name), extra)
            if key in seen:
                continue
            seen.add(key)
            for text in importlib.metadata.requires(requirement.name) or ():
                child = Requirement(text)
                if child.marker is None or child.marker.evaluate({"extra": extra}):
                    open_ends.append(child)
    names = {name for name, _ in seen}
    assert not names - constraints().keys()
    assert not names & {"torch", "tensorflow"}


# ---------------------------------------------------------------------------- documents and files


def commands() -> dict[str, str]:
    """What documents and docstrings tell a person to type, by file: code spans, fenced blocks and
    the command of a config.
    """
    code = re.compile(r"```.*?```|`[^`\n]+`|^Command:[^\n]*", re.DOTALL | re.MULTILINE)
    return {
        name: "\n".join(code.findall(text))
        for name, text in texts().items()
        if name.endswith((".md", ".py")) and name != "tests/test_project.py"
    }


def test_every_make_job_that_is_named_exists():
    named = {
        (name, job)
        for name, text in commands().items()
        for job in re.findall(r"\bmake ([a-z][a-z0-9-]*)", text)
    }
    assert ("README.md", "quickstart") in named
    assert not {(name, job) for name, job in named if job not in JOBS}


def test_every_config_that_a_command_names_exists():
    named = {
        (name, path)
        for name, text in commands().items()
        for path in re.findall(r"(?:CONFIG|--config)=(configs/[\w./-]+\.py)", text)
    }
    assert named
    assert not {(name, path) for name, path in named if not (ROOT / path).is_file()}


def test_every_link_between_documents_leads_somewhere():
    for name, text in texts().items():
        if name.endswith(".md"):
            prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)  # code has such brackets too
            for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", prose):
                assert ((ROOT / name).parent / target).exists(), f"{name} links to {target}"


def test_no_file_holds_an_absolute_path_or_the_host_of_a_registry():
    path = re.compile(r"(?<![\w.~$})/-])/(?:home|root|work|Users|mnt|opt|srv|var|tmp)/\w")
    host = re.compile(r"pypi\.org|pythonhosted\.org|npmjs\.|anaconda\.org")
    for name, text in texts().items():
        for pattern in (path, host):
            found = pattern.search(text)
            assert found is None, f"{name} holds {found[0]!r}"


def test_no_module_outgrows_500_lines():
    for name, text in texts().items():
        if name.startswith("ibrl_jax/") and name.endswith(".py"):
            assert text.count("\n") <= 500, f"{name} has {text.count(chr(10))} lines"
