"""A disk that is full is the user's to mend, whoever wrote and however it says so."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest
from safetensors import SafetensorError

from ibrl_jax import entry
from ibrl_jax.trainer.run import write_text

FULL = "No space left on device"


def chained(outer: Exception, inner: Exception, *, explicit: bool) -> Exception:
    """`outer`, raised while `inner` was handled."""
    try:
        try:
            raise inner
        except Exception as error:
            if explicit:
                raise outer from error
            raise outer  # noqa: B904
    except Exception as error:
        return error


ERRORS = {
    "its own": OSError(errno.ENOSPC, FULL),
    "a quota": OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
    "tensorstore": ValueError(f"RESOURCE_EXHAUSTED: Failed to write 42 bytes to file 18: {FULL}"),
    "safetensors": SafetensorError(f"I/O error: {FULL} (os error 28)"),
    "cause": chained(RuntimeError("a"), OSError(errno.ENOSPC, FULL), explicit=True),
    "context": chained(RuntimeError("a"), OSError(errno.ENOSPC, FULL), explicit=False),
}


def ended(main, monkeypatch: pytest.MonkeyPatch, capsys) -> str:
    """The one line on standard error of a command that ends with exit code 2."""
    monkeypatch.setattr(entry.host, "prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(SystemExit) as caught:
        entry.run(main)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("name", ERRORS)
def test_every_librarys_way_to_say_so_is_one_sentence(name: str, monkeypatch, capsys) -> None:
    def main(argv: object, console: object) -> None:
        raise ERRORS[name]

    err = ended(main, monkeypatch, capsys)
    assert err.startswith("cannot write: ")
    assert err.endswith("; what was saved before is whole\n")


def test_the_place_is_named_where_any_error_of_the_chain_knows_it(monkeypatch, capsys) -> None:
    def main(argv: object, console: object) -> None:
        raise ValueError(f"RESOURCE_EXHAUSTED: {FULL}") from OSError(errno.ENOSPC, FULL, "runs/a")

    assert ended(main, monkeypatch, capsys).startswith(f"cannot write at runs/a: {FULL}")


def test_a_write_that_finds_no_space_names_its_file_and_keeps_the_old_one(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    file = tmp_path / "summary.json"
    file.write_text("old")
    write = Path.write_text

    def full(self: Path, text: str) -> int:
        write(self, text[:1])
        raise OSError(errno.ENOSPC, FULL, str(self))

    monkeypatch.setattr(Path, "write_text", full)
    err = ended(lambda argv, console: write_text(file, "new"), monkeypatch, capsys)
    assert str(tmp_path) in err
    assert FULL in err
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("summary.json", "old")]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("a fault"),
        OSError(errno.EPIPE, "broken"),
        chained(RuntimeError("a"), PermissionError(errno.EACCES, "denied"), explicit=True),
    ],
)
def test_what_a_disk_has_no_part_in_stays_a_fault(error: Exception, monkeypatch) -> None:
    def main(argv: object, console: object) -> None:
        raise error

    monkeypatch.setattr(entry.host, "prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", ["command"])
    with pytest.raises(type(error)):
        entry.run(main)
