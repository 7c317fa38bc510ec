"""The store of all caches is donated: a call writes where it lies, and copies none of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest

from ibrl_jax.sampler.compiled import Give, Lay, Programs, Take
from ibrl_jax.sampler.programs import Shape
from ibrl_jax.sampler.types import EngineSettings, Request
from tests.sampler.conftest import STOPS


def donated(lowered: jax.stages.Lowered) -> list[set[bool]]:
    """Whether the leaves of each argument are given away."""
    return [{leaf.donated for leaf in jax.tree.leaves(each)} for each in lowered.args_info[0]]


@pytest.fixture
def lowered(model, monkeypatch) -> Callable[[Any], jax.stages.Lowered]:
    """`lowered(kind)`: a program as it is before it is compiled."""
    settings = EngineSettings(
        slots=2,
        max_length=16,
        rows=(2,),
        new_tokens=(8,),
        lengths=(16,),
        max_new=4,
        block=4,
        stragglers=0.0,
    )
    programs = Programs(model, settings, STOPS)
    monkeypatch.setattr(jax.stages.Lowered, "compile", lambda self: self)
    made: Any = programs._compile
    return made


CALL = Shape(rows=2, new_tokens=8, length=16, aligned=False)


def test_a_call_is_given_the_store_and_nothing_else(lowered) -> None:
    params, store, table = donated(lowered(CALL))
    assert store == {True}
    assert params == table == {False}


def test_an_opening_is_put_into_the_store_that_it_is_given(lowered) -> None:
    store, opening, slots = donated(lowered(Give(16)))
    assert store == {True}
    assert opening == slots == {False}


@pytest.mark.parametrize("kind", [Take(16), Lay()])
def test_what_is_copied_is_not_given_away(lowered, kind: Take | Lay) -> None:
    assert set.union(*donated(lowered(kind))) == {False}


def test_the_engine_holds_no_store_but_the_last(engine) -> None:
    """And a program reuses its memory rather than allocate as much again."""
    before = engine._store
    slot = engine.acquire()
    engine.run([Request("a", slot, [1, 2, 3], (3, 4), 1.0, 2)])
    assert all(x.is_deleted() for x in jax.tree.leaves(before))
    size = sum(x.nbytes for x in jax.tree.leaves(engine._store))
    for shape in engine.programs.shapes():
        plan = engine.programs._program(shape).memory_analysis()
        assert plan.alias_size_in_bytes >= size
