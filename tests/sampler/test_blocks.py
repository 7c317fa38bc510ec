"""Turns in blocks: how long a block is, and who joins when, changes no token."""

import contextlib

import numpy as np
import pytest

from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings, Request
from tests.sampler.conftest import STOPS, V, quick_compile

MAX_NEW = 8


def text(n, seed):
    return np.random.default_rng(seed).choice([i for i in range(V) if i not in STOPS], n).tolist()


def ask(slot, ids, *, key=(3, 4), max_new=MAX_NEW, params="a"):
    return Request(params, slot, ids, key, 1.0, max_new)


@pytest.fixture(scope="module")
def of_block(model, sets):
    """`of_block(block, stragglers)`: an engine of three rows a call, and four slots."""
    made = {}

    def make(block, stragglers=0.0):
        if (block, stragglers) not in made:
            settings = EngineSettings(
                slots=4,
                max_length=32,
                rows=(3,),
                new_tokens=(8,),
                lengths=(32,),
                max_new=MAX_NEW,
                block=block,
                stragglers=stragglers,
            )
            engine = made[block, stragglers] = Engine(Programs(model, settings, STOPS))
            engine.load("a", sets["a"])
            with quick_compile():
                engine.warmup()
        return made[block, stragglers]

    return make


@contextlib.contextmanager
def slots(engine, count=4):
    taken = [engine.acquire() for _ in range(count)]
    yield taken
    for slot in taken:
        engine.release(slot)


def two_turns(engine):
    """Four dialogues of two turns, more than a call takes."""
    with slots(engine) as taken:
        views = [text(3 + s, s) for s in taken]
        said = []
        for turn in range(2):
            requests = [ask(s, v, key=(turn, s)) for s, v in zip(taken, views, strict=True)]
            done = engine.run(requests)
            said += done
            for view, answer in zip(views, done, strict=True):
                view += answer.ids + text(4, len(view))
    return said


@pytest.fixture(scope="module")
def wordy(of_block):
    """A view and a key with which nothing stops a turn but its limit."""
    engine = of_block(8)
    for seed in range(20):
        view, key = text(5, seed), (seed, 9)
        with slots(engine, 1) as (slot,):
            if engine.run([ask(slot, view, key=key)])[0].end == "length":
                return view, key
    raise AssertionError("all turns stop")


def alike(ours, theirs):
    assert [d.ids for d in ours] == [d.ids for d in theirs]
    assert [d.end for d in ours] == [d.end for d in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.logps, other.logps, atol=1e-5)


@pytest.mark.parametrize(("block", "stragglers"), [(1, 0.0), (3, 0.0), (64, 0.0), (64, 0.5)])
def test_how_long_a_block_is_changes_no_token(of_block, block, stragglers):
    whole = two_turns(of_block(8))
    assert {len(d.ids) for d in whole} > {MAX_NEW}  # some turns are cut, others stop
    alike(two_turns(of_block(block, stragglers)), whole)


def test_two_runs_are_the_same_to_the_bit(of_block):
    assert two_turns(of_block(3)) == two_turns(of_block(3))


def test_who_joins_when_changes_no_token(of_block):
    engine = of_block(3)
    with slots(engine) as taken:
        requests = [ask(s, text(4 + s, s), key=(s, 1)) for s in taken]
        together = engine.run(requests)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        with slots(engine) as taken:
            tickets, done = {}, {}
            for index in order:  # each comes a step after the last
                tickets[index] = engine.submit(requests[index])
                done.update(engine.step())
            while engine.busy:
                done.update(engine.step())
        alike([done[tickets[i]] for i in range(4)], together)


def test_who_has_stopped_leaves_and_the_next_in_line_takes_the_row(of_block, wordy):
    view, key = wordy
    engine = of_block(3)
    with slots(engine) as taken:
        limits = (2, 5, 8, 2)
        tickets = [
            engine.submit(ask(s, view, key=key, max_new=n))
            for s, n in zip(taken, limits, strict=True)
        ]
        ends = []
        while engine.busy:
            ends.append([tickets.index(ticket) for ticket, _ in engine.step()])
    # All say the same eight tokens, as far as they may.
    assert ends == [[0], [1, 3], [2]]


def test_a_step_reads_a_turn_once_and_goes_on_from_its_last_token(of_block, wordy):
    view, key = wordy
    engine = of_block(3)
    with slots(engine, 1) as (slot,):
        read, calls, decoded = (
            engine.stats.tokens_read,
            engine.stats.calls,
            engine.stats.decode_steps,
        )
        done = engine.run([ask(slot, view, key=key)])[0]
        assert len(done.ids) == MAX_NEW
        assert engine.stats.tokens_read - read == 5
        assert engine.stats.calls - calls == 3  # of three tokens, three, and two
        assert engine.stats.decode_steps - decoded == MAX_NEW - 1


def test_those_that_are_few_do_not_hold_the_others(of_block, wordy):
    """Half of the rows are done after two tokens: the call ends, and the other goes on alone."""
    view, key = wordy
    engine = of_block(64, 0.5)
    with slots(engine, 2) as (one, other):
        first = engine.submit(ask(one, view, key=key, max_new=2))
        engine.submit(ask(other, view, key=key))
        decoded = engine.stats.decode_steps
        assert [ticket for ticket, _ in engine.step()] == [first]
        assert engine.stats.decode_steps - decoded == 1
        assert len(engine.step()) == 1
        assert not engine.busy


def test_a_slot_that_is_given_back_takes_its_request_out_of_line(of_block, wordy):
    view, key = wordy
    engine = of_block(3)
    slot = engine.acquire()
    engine.submit(ask(slot, view, key=key))
    assert engine.step() == []
    assert engine.busy
    engine.release(slot)
    assert not engine.busy
    with slots(engine, 1) as (again,):
        assert again == slot
        done = engine.run([ask(again, view, key=key)])[0]
    with slots(of_block(8), 1) as (fresh,):
        alike([done], of_block(8).run([ask(fresh, view, key=key)]))


def test_what_is_on_its_way_cannot_be_mixed_up(of_block, sets, wordy):
    view, key = wordy
    engine = of_block(3)
    with slots(engine, 1) as (slot,):
        engine.submit(ask(slot, view, key=key))
        engine.step()
        with pytest.raises(ValueError, match="same slot"):
            engine.submit(ask(slot, view))
        with pytest.raises(RuntimeError, match="'a' are replaced while a request is on its way"):
            engine.load("a", sets["a"])
        with pytest.raises(RuntimeError, match="other requests are on their way"):
            engine.run([])
    engine.load("a", sets["a"])
