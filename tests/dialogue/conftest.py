"""One small real engine for each role, compiled once for all tests of the dialogue loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import pytest

from ibrl_jax.dialogue.agents import LocalSpeaker, Speaker
from ibrl_jax.dialogue.loop import Hall, Match
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.views import PolicyRef
from ibrl_jax.domains.base import Role
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import init_params
from ibrl_jax.models.presets import preset
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings
from tests.dialogue.fakes import CHAT, LEFT, RIGHT, TOKENIZER, Chatter, NosyJudge, scenario

SLOTS, MAX_NEW = 6, 6
STOPS = (*CHAT.stop_ids, *range(0, TOKENIZER.vocab_size, 6))
"""A random network hardly ever samples the one true end of a turn; these it does."""


@pytest.fixture(scope="session")
def speech() -> Speech:
    network = preset("qwen3_micro", vocab_size=TOKENIZER.vocab_size)
    return Speech(model=Decoder(network, None), tokenizer=TOKENIZER, chat=CHAT)


@pytest.fixture(scope="session")
def warm_engines(speech: Speech) -> dict[Role, Engine]:
    """One bucket of each kind, so that every call runs the same program."""
    settings = EngineSettings(
        slots=SLOTS,
        max_length=160,
        rows=(SLOTS,),
        new_tokens=(64,),
        lengths=(160,),
        max_new=MAX_NEW,
        block=4,
        stragglers=0.0,
    )
    programs = Programs(speech.model, settings, STOPS)
    engines = {role: Engine(programs) for role in (LEFT, RIGHT)}
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        for seed, engine in enumerate(engines.values()):
            engine.load("live", init_params(speech.model.config, seed))
            engine.warmup()
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
    return engines


@pytest.fixture
def engines(warm_engines: dict[Role, Engine]) -> Iterator[dict[Role, Engine]]:
    """The warm engines; a test that leaves a slot taken fails."""
    yield warm_engines
    for role, engine in warm_engines.items():
        left = [slot for slot in range(SLOTS) if slot not in engine._free]
        for slot in left:
            engine.release(slot)
        assert not left, f"{role}: slots {left} were not given back"


@pytest.fixture(scope="session")
def local(speech: Speech) -> Callable[..., LocalSpeaker]:
    """`local(engine, role)`: a live policy on an engine, real or not."""

    def make(engine: Any, role: Role, max_new: int = MAX_NEW) -> LocalSpeaker:
        return LocalSpeaker(
            engine=engine,
            speech=speech,
            params="live",
            ref=PolicyRef(id=role, seat="live", version=3),
            temperature=1.0,
            max_new=max_new,
        )

    return make


@pytest.fixture(scope="session")
def hall() -> Callable[..., Hall]:
    """`hall(horizon=4, retries=0, ...)`: free talk, one nosy judge a role."""

    def make(
        *,
        horizon: int = 4,
        cuts_are_legal: bool = False,
        retries: int = 0,
        concurrency: int = SLOTS,
        domain: Any = None,
        judges: Mapping[Role, Any] | None = None,
    ) -> Hall:
        domain = domain or Chatter(horizon=horizon, cuts_are_legal=cuts_are_legal)
        return Hall(
            domain=domain,
            judges=judges or {role: NosyJudge() for role in domain.roles},
            seed=7,
            retries=retries,
            concurrency=concurrency,
        )

    return make


@pytest.fixture(scope="session")
def matches() -> Callable[..., list[Match]]:
    """`matches(speakers, count)`: so many dialogues, each of a scenario of its own."""

    def make(speakers: Mapping[Role, Speaker], count: int = 1) -> list[Match]:
        return [
            Match(
                stage=("train", 0),
                draw=f"0.{index}",
                rollout=0,
                scenario=scenario(index),
                first=(LEFT, RIGHT)[index % 2],
                matchup=frozenset({LEFT, RIGHT}),
                speakers=speakers,
            )
            for index in range(count)
        ]

    return make
