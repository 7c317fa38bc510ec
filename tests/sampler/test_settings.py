"""Bucket settings: which shapes can occur, and what a wrong one says."""

from typing import Any

import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.sampler.programs import Shape
from ibrl_jax.sampler.types import EngineSettings

GOOD: dict[str, Any] = dict(
    slots=4, max_length=64, rows=(1, 4), new_tokens=(8, 32), lengths=(16, 64), max_new=8
)


def test_only_shapes_that_can_occur_are_listed():
    shapes = EngineSettings(**{**GOOD, "lengths": (8, 64)}).shapes(aligned=False)
    few: Any = dict(rows=1, length=8, aligned=False)
    assert Shape(new_tokens=8, **few) in shapes
    assert Shape(new_tokens=32, **few) not in shapes  # nine new tokens need nine entries
    assert len(shapes) == 2 * 3


def test_rows_that_are_the_slots_come_in_one_number():
    shapes = EngineSettings(**GOOD).shapes(aligned=True)
    assert {shape.rows for shape in shapes} == {4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(slots=0), "slots is 0"),
        (dict(rows=()), r"config\.engine\.rows is \(\)"),
        (dict(rows=(4, 1)), "rows"),
        (dict(new_tokens=(8, 8)), r"config\.engine\.new_tokens"),
        (dict(lengths=(0, 64)), r"config\.engine\.lengths"),
        (dict(lengths=(16, 63)), r"config\.rollout\.max_view_tokens, 64"),
    ],
)
def test_impossible_buckets_are_named(change, says):
    with pytest.raises(UserError, match=says):
        EngineSettings(**GOOD | change)
