"""Bucket settings: which shapes can occur, and what a wrong one says."""

from typing import Any

import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.sampler.programs import Shape
from ibrl_jax.sampler.types import EngineSettings

GOOD: dict[str, Any] = dict(
    slots=4,
    max_length=64,
    rows=(1, 4),
    new_tokens=(8, 32),
    lengths=(16, 64),
    max_new=8,
    block=4,
    stragglers=0.0,
)


def test_only_shapes_that_can_occur_are_listed():
    shapes = EngineSettings(**{**GOOD, "lengths": (8, 64)}).shapes(aligned=False)
    few: Any = dict(rows=1, length=8, aligned=False)
    assert Shape(new_tokens=8, **few) in shapes
    assert Shape(new_tokens=32, **few) not in shapes  # nine new tokens need nine entries
    assert len(shapes) == 2 * 3 + 2 * 2  # the last go on with a turn: both lengths, no new tokens


def test_whole_turns_have_no_program_that_goes_on_with_one():
    blocks = EngineSettings(**GOOD).shapes(aligned=False)
    whole = EngineSettings(**{**GOOD, "block": 8}).shapes(aligned=False)
    assert set(blocks) - set(whole) == {shape for shape in blocks if shape.new_tokens == 1} != set()
    few = EngineSettings(**{**GOOD, "block": 8, "stragglers": 0.2}).shapes(aligned=False)
    assert few == blocks


def test_a_few_long_texts_do_not_widen_the_call_of_all():
    """Prices of a call: 64, and rows x width, in buckets of 1 and 4 rows (a mesh: 4)."""
    settings = EngineSettings(**{**GOOD, "new_tokens": (16, 64), "lengths": (256,)})
    assert settings.width([9, 60, 12, 3], aligned=False) == 64  # 320, against 128 + 3 x 80
    assert settings.width([9, 30, 12, 3], aligned=False) == 16  # 320, against 128 + 80
    assert settings.width([9, 30, 12, 3], aligned=True) == 16  # 320, against 128 + 128
    assert settings.width([9, 33, 12, 3], aligned=True) == 64  # 320, against 3 x 128
    assert settings.width([200], aligned=False) == 64


def test_rows_that_are_the_slots_come_in_one_number():
    shapes = EngineSettings(**GOOD).shapes(aligned=True)
    assert {shape.rows for shape in shapes} == {4}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(slots=0), "slots is 0"),
        (dict(rows=()), r"config\.engine\.rows is \(\)"),
        (dict(rows=(4, 1)), "rows"),
        (dict(new_tokens=(1, 8)), r"config\.engine\.new_tokens is \(1, 8\); .* at least 2"),
        (dict(block=0), r"config\.engine\.block is 0"),
        (dict(stragglers=1.0), r"config\.engine\.stragglers is 1\.0"),
        (dict(new_tokens=(8, 8)), r"config\.engine\.new_tokens"),
        (dict(lengths=(0, 64)), r"config\.engine\.lengths"),
        (dict(lengths=(16, 63)), r"config\.rollout\.max_view_tokens, 64"),
    ],
)
def test_impossible_buckets_are_named(change, says):
    with pytest.raises(UserError, match=says):
        EngineSettings(**GOOD | change)


@pytest.mark.parametrize("block", [4, 8])
def test_the_last_shape_is_the_largest(block):
    shapes = EngineSettings(**{**GOOD, "block": block}).shapes(aligned=False)
    assert shapes[-1] == Shape(rows=4, new_tokens=32, length=64, aligned=False)
