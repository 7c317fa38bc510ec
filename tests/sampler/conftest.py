"""One warm engine for all tests of the sampler: compiled once, without optimisation."""

import contextlib
from typing import Any

import jax
import numpy as np
import pytest

from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import abstract_params
from ibrl_jax.models.presets import preset
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings

V = 48
STOPS = (7, 30)


@contextlib.contextmanager
def quick_compile():
    """Compile in a third of the time, within."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def model():
    return Decoder(preset("qwen3_micro", vocab_size=V), None)


@pytest.fixture(scope="session")
def random_params(model):
    """`random_params(seed)`: parameters away from their fresh values."""

    def make(seed):
        rng = np.random.default_rng(seed)

        def leaf(path, x):
            noise = rng.normal(size=x.shape).astype(np.float32)
            fresh = noise * model.config.hidden**-0.5
            return 1 + 0.2 * noise if path[-1].key == "scale" else fresh

        return jax.tree_util.tree_map_with_path(leaf, abstract_params(model.config))

    return make


@pytest.fixture(scope="session")
def sets(random_params):
    return {"a": random_params(0), "b": random_params(1)}


@pytest.fixture(scope="session")
def make_engine(model):
    """`make_engine(stop_ids, strategy, **settings)`: a warm engine, small unless told otherwise."""

    def make(stop_ids, strategy=None, **changes):
        small: dict[str, Any] = dict(
            slots=3,
            max_length=16,
            rows=(2,),
            new_tokens=(8,),
            lengths=(16,),
            max_new=6,
            block=4,
            stragglers=0.0,
        )
        engine = Engine(Programs(model, EngineSettings(**small | changes), stop_ids, strategy))
        with quick_compile():
            engine.warmup()
        return engine

    return make


@pytest.fixture(scope="session")
def shared_engine(make_engine):
    return make_engine(
        STOPS,
        slots=6,
        max_length=48,
        rows=(1, 4),
        new_tokens=(10,),
        lengths=(24, 48),
        max_new=8,
        block=8,
    )


@pytest.fixture
def engine(shared_engine, sets):
    """The shared engine with parameters `a` and `b` newly loaded and all slots free."""
    for name, params in sets.items():
        shared_engine.load(name, params)
    yield shared_engine
    for slot in range(6):
        if slot not in shared_engine._free:
            shared_engine.release(slot)
