"""Bad input to the real commands: one sentence on standard error, exit code 2, no trace left."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from ibrl_jax import entry
from ibrl_jax.config import load, to_dict
from ibrl_jax.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
SMOKE = str(ROOT / "configs" / "dond" / "smoke.py")
ROW = "<input> 1 4 2 1 3 {} </input> <dialogue> YOU: <selection> </dialogue>\n"
API = (
    "roles.agent1.train=False",
    "roles.agent1.counterpart=api:friend",
    "endpoints.friend.base_url=http://127.0.0.1:9/v1",
    "endpoints.friend.model=none",
    "endpoints.friend.retries=0",
)
TINY = (
    "policy.start=random",
    "rollout.group=2",
    "engine.rows=2",
    "engine.new_tokens=64",
    "engine.lengths=()",
    "optimiser.lengths=()",
    "optimiser.micro_batch=4",
)


def nothing(folder: Path) -> None:
    """Nothing needs to be there."""


def cut_rows(folder: Path) -> None:
    """Original files whose second row stops in its middle."""
    for split in ("train", "val", "test"):
        (folder / f"{split}.txt").write_text(ROW.format(1)[:-30] + "\n")


def other_run(folder: Path) -> None:
    """A run of another config that has got as far as a checkpoint."""
    run = folder / "runs" / "smoke" / "seed0"
    (run / "checkpoints" / "1").mkdir(parents=True)
    config = load(SMOKE, ["--config.isolation.reward=shared"])
    (run / "config.json").write_text(json.dumps(to_dict(config)))


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """A command, what is in its folder beforehand, and what its sentence must say.

    `writes`: it gets as far as a run folder, which may stay. `inside`: it is run in this process,
    which has imported JAX already, from its entry point on.
    """

    command: str
    options: tuple[str, ...]
    says: tuple[str, ...]
    before: Callable[[Path], None] = nothing
    writes: bool = False
    inside: bool = False


def training(*options: str) -> tuple[str, ...]:
    return (f"--config={SMOKE}", *(f"--config.{option}" for option in options))


MISTAKES = {
    "typo in a key": Mistake(
        command="train",
        options=training("rollout.gruop=4"),
        says=("config.rollout.gruop does not exist", "did you mean 'group'"),
    ),
    "missing config": Mistake(
        command="train", options=("--config=nowhere.py",), says=("no config file nowhere.py",)
    ),
    "no config": Mistake(command="train", options=(), says=("--config is needed, such as",)),
    "unknown option": Mistake(
        command="train",
        options=(*training(), "--quikstart"),
        says=("'--quikstart' is no option here", "--quickstart"),
    ),
    "probabilities": Mistake(
        command="train",
        options=training("matchup.all=0.5"),
        says=("config.matchup.all and config.matchup.only must sum to 1, not 0.8",),
    ),
    "group of one": Mistake(
        command="sft",
        options=training("rollout.group=1"),
        says=("config.rollout.group must be at least 2, not 1",),
    ),
    "missing data": Mistake(
        command="train",
        options=training("dond.data_dir=original"),
        says=("dond.data_dir original is not a folder", "train.txt, val.txt and test.txt"),
    ),
    "truncated row": Mistake(
        command="train",
        options=training("dond.data_dir=."),
        before=cut_rows,
        says=("train.txt, line 1", "a row is <input> six numbers </input>"),
        inside=True,
    ),
    "another config's run": Mistake(
        command="train",
        options=training(),
        before=other_run,
        says=("config.isolation.reward = 'shared', not 'own'", "choose another --config.name"),
        inside=True,
    ),
    "key that is not set": Mistake(
        command="train",
        options=training(*API, "endpoints.friend.key_env=IBRL_TEST_UNSET_KEY"),
        says=("endpoint 'friend'", "IBRL_TEST_UNSET_KEY is not set"),
        inside=True,
    ),
    "endpoint that is down": Mistake(
        command="train",
        options=training(*API, *TINY),
        says=("rewards could be scored", "no connection to http://127.0.0.1:9/v1"),
        writes=True,
    ),
    "no such run": Mistake(
        command="evaluate",
        options=("--run=nowhere",),
        says=("nowhere is not a run folder",),
        inside=True,
    ),
    "run without policies": Mistake(
        command="evaluate",
        options=("--run=runs/smoke/seed0",),
        before=other_run,
        says=("has no policies yet", "goes on from its last checkpoint"),
        inside=True,
    ),
    "policy that is not there": Mistake(
        command="evaluate",
        options=(*training("evaluation.policies=frozen:nowhere:agent0"), "--to=found"),
        says=("nowhere is not a run folder",),
        inside=True,
    ),
    "policies of nobody": Mistake(
        command="evaluate",
        options=(*training(), "--to=found"),
        says=("config.evaluation.policies names no policy", "label=name"),
        inside=True,
    ),
    "evaluation to nowhere": Mistake(
        command="evaluate",
        options=training("evaluation.policies=fair"),
        says=("--to is needed, such as",),
        inside=True,
    ),
    "evaluation of a run and of policies": Mistake(
        command="evaluate",
        options=(*training(), "--to=found", "--run=runs/smoke/seed0"),
        says=("give one or the other",),
        inside=True,
    ),
    "policies of a run's own evaluation": Mistake(
        command="evaluate",
        options=("--run=runs/smoke/seed0", "--config.evaluation.policies=fair"),
        says=("--config.evaluation.policies is of evaluations by --config", "leave it out"),
        inside=True,
    ),
    "evaluation into a run": Mistake(
        command="evaluate",
        options=(*training("evaluation.policies=fair"), "--to=runs/smoke/seed0"),
        before=other_run,
        says=("runs/smoke/seed0 is the folder of a run", "make evaluate RUN=runs/smoke/seed0"),
        inside=True,
    ),
    "columns of a mismatch": Mistake(
        command="mismatch",
        options=("--run=runs/smoke/seed0", "--config.evaluation.counterparts=fair"),
        says=("--config.evaluation.counterparts changes nothing here; leave it out",),
        inside=True,
    ),
    "settings of a report": Mistake(
        command="report",
        options=("--run=runs/smoke/seed0", "--config.seed=1"),
        says=("--config.seed changes nothing in a report", "leave it out"),
        inside=True,
    ),
    "count of an annotation that is read": Mistake(
        command="evaluation.human_validation",
        options=("--key=key.json", "--a=a.csv", "--b=b.csv", "--count=3"),
        says=("--count is for writing a sheet, and --key reads two; leave it out",),
        inside=True,
    ),
    "annotators of a sheet that is written": Mistake(
        command="evaluation.human_validation",
        options=("--dialogues=calls.jsonl", "--to=sheets", "--a=a.csv"),
        says=("--a is for reading two sheets, which --key does; leave it out",),
        inside=True,
    ),
    "report of no run": Mistake(
        command="report", options=("--run=nowhere",), says=("nowhere is not a run folder",)
    ),
}


@dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str
    before: dict[str, bytes]
    after: dict[str, bytes]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file; a run folder's empty lock is none."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != ".lock"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def outside(mistake: Mistake, folder: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", f"ibrl_jax.{mistake.command}", *mistake.options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stdout, done.stderr


def inside(mistake: Mistake, folder: Path, patch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    """The same, in this process."""
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["command", *mistake.options])
    patch.setattr(entry.host, "prepare", lambda: None)
    command = importlib.import_module(f"ibrl_jax.{mistake.command}")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
        entry.run(command.main)
    assert isinstance(ended.value.code, int)
    return ended.value.code, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """All commands; those with a process of their own two at a time."""
    folders = {name: tmp_path_factory.mktemp("command") for name in MISTAKES}
    for name, mistake in MISTAKES.items():
        mistake.before(folders[name])
    before = {name: contents(folder) for name, folder in folders.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HTTP_PROXY", "ALL_PROXY", "IBRL_TEST_UNSET_KEY"):
            patch.delenv(name, raising=False)
            patch.delenv(name.lower(), raising=False)
        with ThreadPoolExecutor(2) as pool:
            ended = {
                name: pool.submit(outside, mistake, folders[name])
                for name, mistake in MISTAKES.items()
                if not mistake.inside
            }
        done = {name: process.result() for name, process in ended.items()}
        for name, mistake in MISTAKES.items():
            if mistake.inside:
                with pytest.MonkeyPatch.context() as own:
                    done[name] = inside(mistake, folders[name], own)
    return {
        name: Result(
            code=code, out=out, err=err, before=before[name], after=contents(folders[name])
        )
        for name, (code, out, err) in done.items()
    }


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_and_exit_code_2(results: dict[str, Result], name: str) -> None:
    result = results[name]
    assert result.code == 2, result.err
    assert result.err.endswith("\n")
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err + result.out
    for words in MISTAKES[name].says:
        assert words in result.err


@pytest.mark.parametrize("name", [name for name, m in MISTAKES.items() if not m.writes])
def test_a_mistake_leaves_everything_as_it_was(results: dict[str, Result], name: str) -> None:
    """So that the same command, mended, goes through."""
    assert results[name].after == results[name].before


def test_what_was_written_before_a_failure_is_whole(results: dict[str, Result]) -> None:
    """An endpoint may go down at any time; no file beside its place is left, and none is cut."""
    after = results["endpoint that is down"].after
    assert "runs/smoke/seed0/config.json" in after
    assert not [name for name in after if Path(name).name.startswith(".")]
    for name, content in after.items():
        if name.endswith(".json"):
            json.loads(content)
    assert after.get("runs/smoke/seed0/metrics.jsonl", b"") == b""


# ------------------------------------------------------------------------- how commands end


@pytest.fixture
def ending(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str]]:
    """`ending(error)`: the exit code and the standard error of a command that raises it."""
    monkeypatch.setattr(entry.host, "prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", ["command"])

    def end(error: BaseException | None, **options: str) -> tuple[object, str]:
        def main(argv: object, console: object) -> None:
            if error is not None:
                raise error

        with pytest.raises(SystemExit) as caught:
            entry.run(main, **options)
        return caught.value.code, capsys.readouterr().err

    return end


def test_a_command_that_succeeds_ends_with_0(ending) -> None:
    assert ending(None) == (0, "")


def test_a_users_mistake_ends_with_2_and_its_sentence(ending) -> None:
    assert ending(UserError("what, where, what would be right")) == (
        2,
        "what, where, what would be right\n",
    )


def test_a_disk_that_is_full_or_locked_is_a_users_to_mend(ending) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        code, err = ending(OSError(number, os.strerror(number), "runs/mini/metrics.jsonl"))
        assert code == 2
        assert err == (
            f"cannot write at runs/mini/metrics.jsonl: {os.strerror(number)}; "
            "what was saved before is whole\n"
        )


def test_a_path_that_cannot_be_is_named(ending) -> None:
    for number in (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ELOOP):
        code, err = ending(OSError(number, os.strerror(number), "runs/mini"))
        assert code == 2
        assert err.startswith(f"cannot write at runs/mini: {os.strerror(number)}")
        assert err.count("\n") == 1


def test_a_folder_that_went_away_is_named(ending) -> None:
    gone = os.strerror(errno.ENOENT)
    code, err = ending(FileNotFoundError(errno.ENOENT, gone, "runs/no/such/metrics.jsonl"))
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"cannot read or write at runs/no/such/metrics.jsonl: {gone}")

    def reads(argv: Sequence[str], console: Console) -> None:
        (ROOT / "no such file").read_text()

    with pytest.raises(FileNotFoundError):  # a file that a folder of ours lacks is our fault
        entry.run(reads)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("Unable to allocate 8 TiB for an array"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nmore"),
    ],
)
def test_memory_that_is_not_enough_is_one_sentence(ending, error: Exception) -> None:
    code, err = ending(error)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("there is not enough memory (")
    assert "config.optimiser.micro_batch" in err


def test_notes_are_no_markup() -> None:
    out = io.StringIO()
    entry.notes(Console(file=out))("runs/[/red]/[bold]x")
    assert out.getvalue() == "· runs/[/red]/[bold]x\n"


def test_a_name_between_colons_is_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    def say(argv: Sequence[str], console: Console) -> None:
        console.print("scripted:anchor: no local policy")

    with pytest.raises(SystemExit):
        entry.run(say)
    assert capsys.readouterr().out == "scripted:anchor: no local policy\n"


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(ending) -> None:
    assert ending(KeyboardInterrupt()) == (130, "interrupted\n")
    code, err = ending(KeyboardInterrupt(), interrupted="goes on from the last checkpoint")
    assert (code, err) == (130, "goes on from the last checkpoint\n")
    code, err = ending(KeyboardInterrupt("stopped after iteration 3"))
    assert (code, err) == (130, "stopped after iteration 3\n")


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry.host, "prepare", lambda: None)

    def main(argv: object, console: object) -> None:
        raise error

    for error in (RuntimeError("a fault"), OSError(errno.EPIPE, "another")):
        with pytest.raises(type(error)):
            entry.run(main)
