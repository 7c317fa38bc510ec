"""What an update holds at a time, read off its program."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import build_speech
from ibrl_jax.trainer.build import build_learner, hyper_of
from ibrl_jax.trainer.placing import Place
from tests.models.jaxprs import shapes_in

ROWS, MICRO, LENGTH, CHUNK = 4, 2, 25, 8


@pytest.mark.parametrize(
    "preset, rank", [("qwen3_micro", 0), ("qwen3_5_micro", 0), ("qwen3_micro", 2)]
)
def test_no_array_of_all_logits_exists_in_an_update(
    smoke_config: Callable[..., ConfigDict], preset: str, rank: int
) -> None:
    """Of rows x tokens x vocabulary there is a chunk of a micro-batch, and never more."""
    config = smoke_config(
        policy__preset=preset,
        lora__rank=rank,
        optimiser__micro_batch=MICRO,
        optimiser__logp_chunk=CHUNK,
        optimiser__lengths=(),
    )
    speech = build_speech(config)
    place, learner = Place(speech.model, None), build_learner(config, speech)
    state = learner.abstract(place.abstract_trained())
    batch = place.abstract_batch(ROWS, LENGTH, MICRO, 1)
    hyper = jax.tree.map(np.float32, hyper_of(config, "agent0"))
    jaxpr = jax.make_jaxpr(learner._update)(state, place.abstract_base(), batch, hyper)
    network = speech.model.config
    logits = [
        math.prod(shape)
        for shape in shapes_in(jaxpr.jaxpr)
        if network.vocab_size in shape and network.hidden not in shape
    ]
    assert max(logits) == MICRO * CHUNK * network.vocab_size
