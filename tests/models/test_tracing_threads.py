"""Threads that trace the network at once leave its classes as they are."""

from __future__ import annotations

import dataclasses
import sys
from threading import Barrier, Thread
from typing import Any

from ibrl_jax.models import decoder
from ibrl_jax.models.decoder import Period
from ibrl_jax.models.presets import preset


def test_threads_that_make_the_same_layers_get_one_class() -> None:
    config = preset("qwen3_micro", vocab_size=8)
    decoder._scanned.cache_clear()
    fields = [field.name for field in dataclasses.fields(Period)]
    together, found = Barrier(8), []
    every = sys.getswitchinterval()

    def work() -> None:
        together.wait()
        found.append(type(decoder._periods(config, None)))

    threads = [Thread(target=work) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(every)
    classes: set[Any] = set(found)
    assert (len(found), len(classes)) == (8, 1)
    assert [field.name for field in dataclasses.fields(Period)] == fields
