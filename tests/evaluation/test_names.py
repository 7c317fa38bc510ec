"""Names of policies and of columns, and which columns an evaluation has."""

from __future__ import annotations

from pathlib import Path

import pytest
from ml_collections import ConfigDict

from ibrl_jax.config import load
from ibrl_jax.errors import UserError
from ibrl_jax.evaluation.columns import columns_of
from ibrl_jax.names import Entry, read_entry

MINI = str(Path(__file__).parents[2] / "configs" / "dond" / "mini.py")


def settings(*counterparts: str, **changes: object) -> ConfigDict:
    config = load(MINI)
    config.evaluation.counterparts = counterparts
    for key, value in changes.items():
        config.evaluation[key] = value
    return config


@pytest.mark.parametrize(
    ("text", "label", "names"),
    [
        ("fair", "", ["scripted:fair"]),
        ("scripted:fair", "", ["scripted:fair"]),
        ("A=fair", "A", ["scripted:fair"]),
        ("held-out A=fair + scripted:mirror", "held-out A", ["scripted:fair", "scripted:mirror"]),
        ("p=frozen:runs/a/seed0:agent0@50", "p", ["frozen:runs/a/seed0:agent0@50"]),
        ("frozen:runs/x=1/seed0:agent0", "", ["frozen:runs/x=1/seed0:agent0"]),
        ("frozen:runs/c++:agent0", "", ["frozen:runs/c++:agent0"]),
        ("frozen:a+b:agent0+api:m:form", "", ["frozen:a+b:agent0", "api:m:form"]),
        ("frozen:runs/a/seed0:agent0+fair", "", ["frozen:runs/a/seed0:agent0", "scripted:fair"]),
        ("frozen:models/c++", "", ["frozen:models/c++"]),
        ("scripted:fair+mirror", "", ["scripted:fair", "scripted:mirror"]),
        ("fair+", "", ["scripted:fair", ""]),
        ("A=", "A", [""]),
    ],
)
def test_an_entry_is_a_label_and_names(text: str, label: str, names: list[str]) -> None:
    assert read_entry(text) == Entry(label=label, names=tuple(names))


def test_an_entry_without_a_label_is_shown_by_its_names() -> None:
    assert read_entry("fair+scripted:mirror").shown == "fair+mirror"
    assert read_entry("frozen:runs/a/seed0:agent0").shown == "runs/a/seed0:agent0"
    assert read_entry("both=fair+mirror").shown == "both"


def test_a_pooled_column_is_held_out_if_nobody_in_it_was_met() -> None:
    columns = columns_of(settings("A=fair+mirror", "B=fair+conceder"))
    assert [(c.name, c.kind, c.counterpart) for c in columns[:2]] == [
        ("A", "held-out", "scripted:fair+scripted:mirror"),
        ("B", "development", "scripted:fair+scripted:conceder"),
    ]


def test_whoever_was_met_is_told_by_whom_it_is_asked() -> None:
    columns = columns_of(settings("fair", "conceder"), met=lambda name: name == "scripted:fair")
    assert [c.kind for c in columns[:2]] == ["development", "held-out"]


def test_the_two_columns_of_every_row_can_be_left_out() -> None:
    def names(**changes: object) -> list[str]:
        return [column.name for column in columns_of(settings("fair", **changes))]

    assert names() == ["fair", "in-system", "self-play"]
    assert names(in_system=False) == ["fair", "self-play"]
    assert names(in_system=False, self_play=False) == ["fair"]


@pytest.mark.parametrize(
    "counterparts", [("A=fair", "A=mirror"), ("self-play=fair",), ("all held-out=fair",)]
)
def test_a_column_has_a_name_of_its_own(counterparts: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match="makes two columns named"):
        columns_of(settings(*counterparts))
