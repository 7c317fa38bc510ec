"""The engine's promises for what is not a plain network: delta states, adapters, rows on a mesh."""

import contextlib
import functools

import jax
import numpy as np
import pytest

from ibrl_jax.errors import UserError
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings
from ibrl_jax.models.params import abstract_adapters, abstract_params
from ibrl_jax.models.presets import preset
from ibrl_jax.models.score import score
from ibrl_jax.parallel.mesh import MeshSettings, build_mesh
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings, Request

V, STOPS, LONGEST = 40, (7, 30), 48
NETWORK = preset("qwen3_5_micro", vocab_size=V, layers=2, period=("delta", "full"))
LORA = LoraSettings(rank=2, alpha=4.0, targets=("q", "down"))
MODEL = Decoder(NETWORK, LORA)
SETTINGS = EngineSettings(
    slots=4,
    max_length=LONGEST,
    rows=(2, 4),
    new_tokens=(10,),
    lengths=(LONGEST,),
    max_new=6,
    block=4,
    stragglers=0.0,
)
ONE = MeshSettings(data=1, fsdp=1, tensor=1)


def random_tree(shapes, seed):
    rng = np.random.default_rng(seed)

    def leaf(path, x):
        slow = -3.0 if path[-1].key == "A_log" else 0.0  # what is forgotten cannot leak
        return jax.numpy.asarray(slow + 0.25 * rng.normal(size=x.shape), "float32")

    return jax.tree_util.tree_map_with_path(leaf, shapes)


BASE = random_tree(abstract_params(NETWORK), 0)
SETS = {name: random_tree(abstract_adapters(NETWORK, LORA), i) for i, name in enumerate("ab", 1)}


@contextlib.contextmanager
def quick():
    """Compile without optimisation, within."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def make(mesh):
    programs = Programs(MODEL, SETTINGS, STOPS, mesh=mesh)
    programs.hold(BASE)
    with quick():
        programs.warmup()
    return programs


@pytest.fixture(scope="module", params=["rows of slots", "aligned rows"])
def programs(request):
    aligned = request.param == "aligned rows"
    return make(build_mesh(ONE, jax.devices()[:1]) if aligned else None)


@pytest.fixture
def engine(programs):
    engine = Engine(programs)
    for name, adapters in SETS.items():
        engine.load(name, adapters)
    return engine


@pytest.fixture(scope="module")
def scores():
    quick = {"xla_backend_optimization_level": 0}
    program = jax.jit(functools.partial(score, MODEL), static_argnums=6, compiler_options=quick)

    def of(params, ids):
        padded = np.zeros((1, LONGEST), np.int32)
        padded[0, : len(ids)] = ids
        positions = np.arange(LONGEST)[None]
        segments = (positions < len(ids)).astype(np.int32)
        logp, _ = program(SETS[params], BASE, padded, positions, segments, 1.0, 16)
        return np.asarray(logp)[0, : len(ids)]

    return of


def text(n, seed):
    return np.random.default_rng(seed).choice([i for i in range(V) if i not in STOPS], n).tolist()


def ask(slot, ids, *, key=(3, 4), params="a"):
    return Request(params, slot, ids, key, 1.0, 6)


def assert_scored(scores, params, ids, done):
    assert done.ids
    want = scores(params, ids + done.ids)[len(ids) :]
    np.testing.assert_allclose(done.logps, want, atol=2e-5)


def test_log_probabilities_are_those_of_a_full_pass_with_each_ones_adapters(engine, scores):
    slots = [engine.acquire() for _ in range(3)]
    views = [text(n, n) for n in (4, 23, 6)]  # one is longer than a call reads at once
    who = ("a", "b", "a")
    for turn in range(3):
        requests = [
            ask(s, v, key=(turn, s), params=w) for s, v, w in zip(slots, views, who, strict=True)
        ]
        for view, params, done in zip(views, who, engine.run(requests), strict=True):
            assert_scored(scores, params, view, done)
            view += done.ids + text(3 + turn, len(view))


def test_a_turn_sampled_again_goes_on_from_where_its_request_began(engine, scores):
    slot, view = engine.acquire(), text(8, 0)
    view += engine.run([ask(slot, view, key=(1, 1))])[0].ids + text(4, 1)
    first = engine.run([ask(slot, view, key=(1, 2))])[0]
    read = engine.stats.tokens_read
    again = engine.run([ask(slot, view, key=(1, 2))])[0]
    assert again.ids == first.ids
    np.testing.assert_allclose(again.logps, first.logps, atol=1e-6)
    assert engine.stats.tokens_read - read == 5  # the last of its own before, and four new ones
    assert_scored(scores, "a", view, engine.run([ask(slot, view, key=(9, 9))])[0])
    view += first.ids + text(3, 2)
    assert_scored(scores, "a", view, engine.run([ask(slot, view, key=(1, 3))])[0])


def test_a_view_changed_before_that_is_read_anew(engine, scores):
    slot, view = engine.acquire(), text(9, 0)
    view += engine.run([ask(slot, view)])[0].ids + text(4, 1)
    engine.run([ask(slot, view)])
    changed = view[:5] + text(6, 5)
    assert_scored(scores, "a", changed, engine.run([ask(slot, changed)])[0])


def test_a_slot_taken_over_holds_nothing_of_the_one_before(engine):
    slots = [engine.acquire() for _ in range(2)]
    want = engine.run([ask(slots[1], text(6, 1))])[0]
    engine.run([ask(slots[0], text(20, 5))])
    engine.release(slots[0])
    assert engine.acquire() == slots[0]
    got = engine.run([ask(slots[0], text(6, 1))])[0]
    assert got.ids == want.ids
    np.testing.assert_allclose(got.logps, want.logps, atol=1e-6)


def test_rows_change_no_other_slot(engine):
    slots = [engine.acquire() for _ in range(4)]
    engine.run([ask(s, text(6, s)) for s in slots])
    before = jax.tree.map(np.array, engine._store)
    engine.run([ask(s, text(7, 9 + s)) for s in slots[1:3]])
    for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(engine._store), strict=True):
        changed = np.any(x != np.asarray(y), axis=tuple(range(1, x.ndim)))
        assert not changed[[0, 3]].any()


def test_all_policies_share_the_one_base(engine):
    held = [params.base for _, params in engine._params.values()]
    assert all(base is BASE for base in held)
    assert {id(x) for base in held for x in jax.tree.leaves(base)} == {
        id(x) for x in jax.tree.leaves(BASE)
    }


def test_a_mesh_that_does_not_divide_the_slots_is_refused():
    class Two:
        devices = np.empty((3, 1, 1))

    with pytest.raises(UserError, match="the engine has 4 slots, which mesh.data x mesh.fsdp = 3"):
        Programs(MODEL, SETTINGS, STOPS, mesh=Two())  # pyright: ignore[reportArgumentType]


def test_a_shared_opening_changes_no_token(engine, scores):
    """Its delta states are copied too, and become the mark that a retracted turn goes back to."""
    opening = text(13, 77)  # more than a call reads at once
    engine.share(opening)
    with quick():
        engine.warmup()
    for _ in range(2):  # the second time nobody reads it
        slots = [engine.acquire() for _ in range(3)]
        views = [opening + text(2 + s, s) for s in slots]
        for turn in range(2):
            requests = [ask(s, v, key=(turn, s)) for s, v in zip(slots, views, strict=True)]
            before = engine.stats.tokens_read
            done = engine.run(requests)
            again = engine.run(requests)
            assert [d.ids for d in again] == [d.ids for d in done]
            if turn:  # twice what is new in three views
                assert engine.stats.tokens_read - before == 2 * 3 * 4
            for view, answer in zip(views, done, strict=True):
                assert_scored(scores, "a", view, answer)
                view += answer.ids + text(3, len(view))
        for slot in slots:
            engine.release(slot)
    assert engine.stats.tokens_shared == 5 * len(opening)
