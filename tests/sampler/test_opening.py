"""What all views begin with is read once a set of parameters, and changes no token."""

import jax
import numpy as np
import pytest

from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import Request
from tests.sampler.conftest import STOPS, V, quick_compile

OPENING = [5, 9, 11, 2, 40, 3, 3, 8, 21, 22, 1, 13, 17]  # more than a call reads at once


def text(n, seed):
    return np.random.default_rng(seed).choice([i for i in range(V) if i not in STOPS], n).tolist()


def ask(slot, ids, *, params="a", key=(3, 4)):
    return Request(params, slot, ids, key, 1.0, 8)


def talk(engine, beginnings, params="a"):
    """Two turns of a dialogue from each beginning, and the slots free again."""
    slots = [engine.acquire() for _ in beginnings]
    views, said = [list(b) for b in beginnings], []
    for turn in range(2):
        done = engine.run(
            [ask(s, v, params=params, key=(turn, s)) for s, v in zip(slots, views, strict=True)]
        )
        said += done
        for view, answer in zip(views, done, strict=True):
            view += answer.ids + text(3, len(view))
    for slot in slots:
        engine.release(slot)
    return said


def alike(ours, theirs):
    assert [d.ids for d in ours] == [d.ids for d in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.logps, other.logps, atol=1e-5)


@pytest.fixture
def sharing(shared_engine, sets):
    """An engine that shares the opening, on the programs of the one that does not."""
    engine = Engine(shared_engine.programs)
    engine.share(OPENING)
    with quick_compile():
        engine.warmup()
    for name, params in sets.items():
        engine.load(name, params)
    return engine


BEGINNINGS = [OPENING + text(2 + i, i) for i in range(4)]


def test_a_shared_opening_is_read_once_and_changes_no_token(engine, sharing):
    before = engine.stats.tokens_read
    want = talk(engine, BEGINNINGS)
    read = engine.stats.tokens_read - before
    alike(talk(sharing, BEGINNINGS), want)
    spared = len(OPENING) * (len(BEGINNINGS) - 1)
    assert sharing.stats.tokens_shared == spared
    assert sharing.stats.tokens_read == read - spared
    alike(talk(sharing, BEGINNINGS), want)  # and by now all four copy it
    assert sharing.stats.tokens_shared == spared + len(OPENING) * len(BEGINNINGS)


def test_views_that_begin_otherwise_are_read_as_they_are(engine, sharing):
    others = [text(6, 1), OPENING[:5] + text(9, 2), OPENING]  # the last: nothing would be left
    alike(talk(sharing, others), talk(engine, others))
    assert sharing.stats.tokens_shared == 0


def test_each_set_of_parameters_has_an_opening_of_its_own(engine, sharing):
    for name in ("a", "b", "a"):
        alike(talk(sharing, BEGINNINGS, name), talk(engine, BEGINNINGS, name))


def test_new_parameters_read_the_opening_anew(engine, sharing, random_params):
    old = talk(sharing, BEGINNINGS)
    for one in (engine, sharing):
        one.load("a", random_params(7))
    read = sharing.stats.tokens_read
    new = talk(sharing, BEGINNINGS)
    assert sharing.stats.tokens_read - read > len(OPENING)
    assert [d.logps for d in new] != [d.logps for d in old]
    alike(new, talk(engine, BEGINNINGS))


def test_an_opening_of_other_parameters_is_never_used(sharing, sets):
    talk(sharing, BEGINNINGS)
    stale = sharing._openings["a"]
    sharing.load("a", sets["b"])
    assert "a" not in sharing._openings
    sharing._openings["a"] = stale  # were it left there all the same
    with pytest.raises(AssertionError, match="of other parameters"):
        talk(sharing, BEGINNINGS)


def test_what_stood_in_a_slot_before_is_not_seen_behind_the_opening(engine, sharing):
    want = talk(engine, BEGINNINGS)
    talk(sharing, BEGINNINGS)
    sharing._store = jax.tree.map(lambda x: jax.numpy.full_like(x, np.nan), sharing._store)
    alike(talk(sharing, BEGINNINGS), want)
