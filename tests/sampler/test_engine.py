"""The engine's promises: caches, batches and buckets change nothing but the time."""

import functools

import jax
import numpy as np
import pytest

from ibrl_jax.models.score import score
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.sampling import TopK
from ibrl_jax.sampler.types import EngineSettings, Request

V, STOPS, LONGEST, MAX_NEW = 48, (7, 30), 48, 8  # as in conftest.py


def text(n, seed):
    """n ids of a counterpart or template; no stop ids."""
    return np.random.default_rng(seed).choice([i for i in range(V) if i not in STOPS], n).tolist()


def ask(slot, ids, *, key=(3, 4), temperature=1.0, max_new=MAX_NEW, params="a"):
    return Request(params, slot, ids, key, temperature, max_new)


@pytest.fixture(scope="session")
def scores(model):
    """`scores(params, ids, temperature)`: log-probabilities [T] of a view by one full pass."""
    quick = {"xla_backend_optimization_level": 0}
    program = jax.jit(functools.partial(score, model), static_argnums=6, compiler_options=quick)

    def of(params, ids, temperature):
        padded = np.zeros((1, LONGEST), np.int32)
        padded[0, : len(ids)] = ids
        positions = np.arange(LONGEST)[None]
        segments = (positions < len(ids)).astype(np.int32)
        return np.asarray(program(params, None, padded, positions, segments, temperature, 16)[0])[
            0, : len(ids)
        ]

    return of


def fill(engine, value):
    """Make every entry of every slot's cache `value`, behind the engine's back."""
    engine._store = jax.tree.map(lambda x: jax.numpy.full_like(x, value), engine._store)


def assert_scored(scores, params, ids, completion, temperature):
    """The recorded log-probabilities are those of a full pass over the view."""
    want = scores(params, ids + completion.ids, temperature)[len(ids) :]
    assert completion.ids
    np.testing.assert_allclose(completion.logps, want, atol=1e-5)


def test_log_probabilities_equal_the_scores_of_a_full_pass_after_every_turn(engine, sets, scores):
    slots = [engine.acquire() for _ in range(3)]
    views = [text(n, n) for n in (4, 9, 6)]
    temperatures = (1.0, 0.6, 1.7)
    for turn in range(3):
        requests = [
            ask(s, v, key=(turn, s), temperature=t)
            for s, v, t in zip(slots, views, temperatures, strict=True)
        ]
        for view, temperature, done in zip(views, temperatures, engine.run(requests), strict=True):
            assert_scored(scores, sets["a"], view, done, temperature)
            view += done.ids + text(3 + turn, len(view))


def test_a_turn_reads_only_what_is_new(engine):
    slot, view = engine.acquire(), text(9, 0)
    view += engine.run([ask(slot, view)])[0].ids + text(4, 1)
    before = engine.stats.tokens_read
    engine.run([ask(slot, view)])
    assert engine.stats.tokens_read - before == 4 + 1  # the last sampled token was not read


def test_a_retracted_turn_leaves_no_trace(engine, sets, scores):
    slot, view = engine.acquire(), text(8, 0)
    first = engine.run([ask(slot, view, key=(1, 1))])[0]
    engine.run([ask(slot, view + first.ids + text(5, 1), key=(1, 2))])
    second = engine.run([ask(slot, view, key=(9, 9))])[0]
    assert second.ids != first.ids
    assert_scored(scores, sets["a"], view, second, 1.0)
    assert engine.run([ask(slot, view, key=(1, 1))])[0].ids == first.ids
    shorter = view[:5] + text(4, 2)  # a change in the middle
    assert_scored(scores, sets["a"], shorter, engine.run([ask(slot, shorter)])[0], 1.0)


def test_a_slot_taken_over_gives_what_a_fresh_one_gives(engine, sets, scores):
    slot = engine.acquire()
    engine.run([ask(slot, text(20, 5))])
    want = engine.run([ask(engine.acquire(), text(6, 1))])[0]
    engine.release(slot)
    assert engine.acquire() == slot
    assert engine.run([ask(slot, text(6, 1))])[0] == want
    assert_scored(scores, sets["a"], text(6, 1), want, 1.0)


def test_stale_nans_in_a_slot_are_not_seen(engine):
    want = engine.run([ask(engine.acquire(), text(6, 1))])[0]
    fill(engine, np.nan)
    assert engine.run([ask(engine.acquire(), text(6, 1))])[0] == want


def test_other_rows_their_order_and_the_bucket_change_no_token(engine):
    slots = [engine.acquire() for _ in range(4)]
    requests = [ask(s, text(5 + 2 * s, s), key=(s, 1)) for s in slots]
    together = engine.run(requests)
    for slot in slots:  # forget the caches
        engine.release(slot)
    slots = [engine.acquire() for _ in range(4)]
    backwards = engine.run(requests[::-1])[::-1]
    for slot in slots:
        engine.release(slot)
    [engine.acquire() for _ in range(4)]
    alone = [engine.run([request])[0] for request in requests]
    for other in (backwards, alone):
        for a, b in zip(together, other, strict=True):
            assert (a.ids, a.end) == (b.ids, b.end)
            np.testing.assert_allclose(a.logps, b.logps, atol=1e-5)


def test_a_longer_cache_bucket_changes_no_token(engine):
    a, b = engine.acquire(), engine.acquire()
    short = ask(a, text(6, 1), key=(5, 5))
    alone = engine.run([short])[0]
    engine.release(a)
    beside = engine.run([ask(engine.acquire(), text(6, 1), key=(5, 5)), ask(b, text(30, 2))])[0]
    assert alone.ids == beside.ids
    np.testing.assert_allclose(alone.logps, beside.logps, atol=1e-5)


def test_keys_that_differ_give_different_tokens(engine):
    slots = [engine.acquire() for _ in range(4)]
    done = engine.run([ask(s, text(5, 1), key=(s, 1)) for s in slots])
    assert len({tuple(d.ids) for d in done}) == 4


def test_a_turn_sampled_token_by_token_equals_the_turn_sampled_at_once(engine):
    slot, view = engine.acquire(), text(6, 0)
    whole = engine.run([ask(slot, view, key=(8, 8))])[0]
    for token in whole.ids:
        assert engine.run([ask(slot, view, key=(8, 8), max_new=1)])[0].ids == [token]
        view.append(token)
    assert len(whole.ids) > 2


def test_a_row_ends_at_its_first_stop_token_or_its_limit(engine):
    slots = [engine.acquire() for _ in range(4)]
    ends = set()
    for round_ in range(12):
        limits = [1 + (s + round_) % MAX_NEW for s in slots]
        requests = [
            ask(s, text(4, round_), key=(s, round_), max_new=n, temperature=1.5)
            for s, n in zip(slots, limits, strict=True)
        ]
        for limit, done in zip(limits, engine.run(requests), strict=True):
            assert len(done.ids) == len(done.logps)
            assert not set(done.ids[:-1]) & set(STOPS)
            if done.ids[-1] in STOPS:
                assert done.end == "stop"
            else:
                assert (done.end, len(done.ids)) == ("length", limit)
            ends.add(done.end)
    assert ends == {"stop", "length"}


def test_decoding_ends_when_the_last_row_has(engine):
    slots = [engine.acquire() for _ in range(3)]
    before = engine.stats.decode_steps
    done = engine.run(
        [ask(s, text(5, s), max_new=n) for s, n in zip(slots, (1, 3, 2), strict=True)]
    )
    steps = engine.stats.decode_steps - before
    assert steps == max(len(d.ids) for d in done) - 1 <= 2
    greedy = engine.run([ask(slots[0], text(5, 9), temperature=0.0, max_new=1)])
    assert len(greedy[0].ids) == 1
    assert engine.stats.decode_steps - before == steps


def test_a_text_longer_than_the_largest_bucket_is_read_in_pieces(engine, sets, scores):
    slots = [engine.acquire() for _ in range(3)]
    views = [text(n, n) for n in (37, 3, 21)]
    done = engine.run([ask(s, v, key=(s, 2)) for s, v in zip(slots, views, strict=True)])
    for view, d in zip(views, done, strict=True):
        assert_scored(scores, sets["a"], view, d, 1.0)


def test_more_requests_than_rows_are_split_and_come_back_in_order(engine, sets, scores):
    slots = [engine.acquire() for _ in range(6)]
    names = ["a", "b", "a", "a", "a", "a"]
    views = [text(4 + s, s) for s in slots]
    done = engine.run([ask(s, v, params=n) for s, v, n in zip(slots, views, names, strict=True)])
    for name, view, d in zip(names, views, done, strict=True):
        assert_scored(scores, sets[name], view, d, 1.0)


def test_replaced_parameters_are_used_at_once_and_nothing_stale_is(
    engine, random_params, sets, scores
):
    slots, view = [engine.acquire(), engine.acquire()], text(12, 0)
    engine.run([ask(slots[0], view), ask(slots[1], view, params="b")])
    new = random_params(7)
    engine.load("a", jax.tree.map(jax.numpy.asarray, new))
    before = engine.stats.tokens_read
    done = engine.run([ask(slots[0], view), ask(slots[1], view, params="b")])
    assert engine.stats.tokens_read - before == len(view) + 1  # b's cache still holds
    assert_scored(scores, new, view, done[0], 1.0)
    assert_scored(scores, sets["b"], view, done[1], 1.0)
    engine.run([ask(slots[0], view, params="b")])  # a slot may change hands
    assert_scored(scores, new, view, engine.run([ask(slots[0], view)])[0], 1.0)


def test_the_engine_keeps_its_own_copy_of_what_is_loaded(engine, sets):
    donated = jax.tree.map(jax.numpy.array, sets["a"])
    engine.load("a", donated)
    jax.tree.map(lambda x: x.delete(), donated)
    assert engine.run([ask(engine.acquire(), text(5, 0))])[0].ids


def test_rows_of_padding_write_into_no_slot(engine):
    slots = [engine.acquire() for _ in range(6)]
    fill(engine, 0)
    engine.run([ask(s, text(6, s)) for s in slots])
    before = jax.tree.map(np.array, engine._store)
    engine.run([ask(s, text(6, 2)) for s in slots[1:4]])  # three rows of four; slot 2 holds it
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(engine._store), strict=True):
        changed = np.any(x != np.asarray(y), axis=(1, 2, 3))
        np.testing.assert_array_equal(changed, [False, True, False, True, False, False])


def test_a_turn_writes_only_the_entries_that_it_read(engine):
    slot, view = engine.acquire(), text(6, 0)
    fill(engine, 99)
    done = engine.run([ask(slot, view)])[0]
    held = len(view) + len(done.ids) - 1
    for v in (layer.v for layer in engine._store.now.layers):
        written = np.any(np.asarray(v[slot]) != 99, axis=(0, 2))
        np.testing.assert_array_equal(written, np.arange(LONGEST) < held)


def test_a_view_without_room_ends_by_length_and_one_with_little_is_cut_there(engine):
    slots = [engine.acquire() for _ in range(3)]
    views = [text(LONGEST + 5, 0), text(LONGEST, 1), text(LONGEST - 2, 2)]
    done = engine.run([ask(s, v) for s, v in zip(slots, views, strict=True)])
    assert [(d.ids, d.end) for d in done[:2]] == [([], "length")] * 2
    assert len(done[2].ids) <= 2


def test_greedy_takes_the_likeliest_token(engine, sets, scores):
    slot, view = engine.acquire(), text(6, 3)
    done = engine.run([ask(slot, view, temperature=0.0, max_new=1)])[0]
    likeliest = max(scores(sets["a"], [*view, v], 1.0)[-1] for v in range(V))
    assert done.logps[0] == pytest.approx(likeliest, abs=1e-5)


def test_nothing_compiles_after_the_warm_up(engine, caplog):
    count = engine.compilations
    assert count == len(engine.programs.shapes()) + 1 == 5  # and the one that lays parameters out
    slots = [engine.acquire() for _ in range(6)]
    for n in (1, 9, 10, 11, 23, 24, 25, 40, 47, 48, 60):
        for rows in (1, 3, 6):
            engine.run([ask(s, text(n, s), max_new=1 + n % MAX_NEW) for s in slots[:rows]])
    assert engine.compilations == count
    assert not caplog.records


def test_parameters_of_host_and_device_are_laid_out_by_one_program(engine, sets, caplog):
    view, heard = text(6, 1), []
    count = engine.compilations
    with jax.log_compiles():
        for params in (sets["a"], jax.tree.map(jax.numpy.asarray, sets["a"])):
            engine.load("a", params)
            slot = engine.acquire()
            heard.append(engine.run([ask(slot, view)])[0])
    assert heard[0] == heard[1]
    assert engine.compilations == count
    assert not [r for r in caplog.records if "serving" in r.getMessage()]


def test_parameters_that_are_loaded_before_the_warm_up_compile_one_program(model, sets):
    settings = EngineSettings(
        slots=1,
        max_length=8,
        rows=(1,),
        new_tokens=(4,),
        lengths=(8,),
        max_new=2,
        block=2,
        stragglers=0.0,
    )
    engine = Engine(Programs(model, settings, STOPS))
    assert engine.compilations == 0
    engine.load("a", sets["a"])
    engine.load("b", sets["b"])
    assert engine.compilations == 1


def test_a_restricted_strategy_is_another_program_and_records_its_own_log_probability(
    make_engine, sets, engine
):
    narrow = make_engine((), TopK(1))
    narrow.load("a", sets["a"])
    done = narrow.run([ask(narrow.acquire(), text(6, 3), max_new=6, temperature=0.8)])[0]
    np.testing.assert_allclose(done.logps, 0, atol=1e-6)
    greedy = engine.run([ask(engine.acquire(), text(6, 3), max_new=6, temperature=0.0)])[0]
    assert done.ids[: len(greedy.ids)] == greedy.ids


def test_slots_are_given_lowest_first_and_run_out(engine):
    assert [engine.acquire() for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError, match="6 slots"):
        engine.acquire()
    engine.release(4)
    engine.release(2)
    assert [engine.acquire(), engine.acquire()] == [2, 4]
    engine.release(0)
    with pytest.raises(ValueError, match="slot 0"):
        engine.release(0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (dict(ids=[]), "no ids"),
        (dict(ids=[1, V]), "vocabulary"),
        (dict(ids=[-1]), "vocabulary"),
        (dict(slot=5), "not acquired"),
        (dict(params="c"), "'c'"),
        (dict(max_new=0), "max_new"),
        (dict(max_new=9), "max_new"),
        (dict(key=(0, 2**32)), "32 bits"),
        (dict(key=(0, 1, 2)), "32 bits"),
        (dict(temperature=-1.0), "temperature"),
        (dict(temperature=float("nan")), "temperature"),
    ],
)
def test_unsound_requests_are_refused_and_change_nothing(engine, change, says):
    slot = engine.acquire()
    good = dict(slot=slot, ids=text(5, 0))
    want = engine.run([ask(**good)])[0]
    calls = engine.stats.calls
    with pytest.raises(ValueError, match=says):
        engine.run([ask(**good | change)])
    with pytest.raises(ValueError, match="same slot"):
        engine.run([ask(**good), ask(**good)])
    assert engine.stats.calls == calls
    assert engine.run([ask(**good)])[0] == want


def test_parameters_of_another_shape_are_refused_by_name(engine, sets):
    wrong = {**sets["a"], "embed": np.zeros((3, 3), np.float32)}
    with pytest.raises(ValueError, match="embed"):
        engine.load("a", wrong)
    with pytest.raises(ValueError, match="norm.*missing"):
        engine.load("a", {k: v for k, v in sets["a"].items() if k != "norm"})


def test_a_call_that_failed_leaves_no_trace(engine, monkeypatch):
    slot, view = engine.acquire(), text(20, 0)
    want = engine.run([ask(slot, view)])[0]
    engine.release(slot)
    slot = engine.acquire()

    def fail(*args):
        raise MemoryError

    with monkeypatch.context() as broken:
        broken.setattr(engine.programs, "run", fail)
        with pytest.raises(MemoryError):
            engine.run([ask(slot, view)])
    assert engine.run([ask(slot, view)])[0] == want
