"""A file is replaced whole, or stays as it was with nothing beside it."""

from pathlib import Path

import pytest

from ibrl_jax.whole import replacing


def test_what_was_written_takes_the_files_place(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for text in ("one", "two"):
        with replacing(file) as beside:
            beside.write_text(text)
            assert beside.parent == tmp_path
        assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text("old")
    with pytest.raises(OSError, match="full"):
        _half_written(file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def _half_written(file: Path) -> None:
    with replacing(file) as beside:
        beside.write_text("ne")
        raise OSError("full")
