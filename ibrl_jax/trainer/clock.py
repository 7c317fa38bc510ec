"""Where the time of a run goes: laps of its one line of work, and what was compiled anew.

```
iteration k-1 |                        iteration k                         | k+1
... update    | write   save   other   prepare   rollout   update          | write ...
```

The laps of an iteration are everything since the last one's end, so the sum over a run is the
run's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from threading import Lock
from typing import Any

import jax

LAPS = ("prepare", "rollout", "compile", "update", "write", "save", "other")
"""An iteration's laps. `compile` is the wait for what the first update needs; `write` and `save`
are what was done about the iteration before."""


class Clock:
    """Seconds by stage. Whoever ends a stage says so; what nobody claims is `other`."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """Everything since the last lap was this; a stage may come more than once."""
        now = time.perf_counter()
        self._seconds[stage] += now - self._last
        self._last = now

    def take(self) -> dict[str, float]:
        """The seconds of every stage of `LAPS` since the last time that they were taken."""
        self.lap("other")
        taken = {stage: self._seconds[stage] for stage in LAPS}
        self._seconds.clear()
        return taken


class Compilations:
    """Counts XLA's programs of this process since `start`, and those that it had to compile."""

    _ALL, _HIT = "/jax/core/compile/backend_compile_duration", "/jax/compilation_cache/cache_hits"

    def __init__(self) -> None:
        self._counts = {self._ALL: 0, self._HIT: 0}
        self._lock = Lock()
        self._listening = False

    def start(self) -> None:
        """Count from 0 from now on."""
        with self._lock:
            self._counts = dict.fromkeys(self._counts, 0)
            if not self._listening:  # once: JAX cannot be told to forget a listener
                jax.monitoring.register_event_listener(self._heard)
                jax.monitoring.register_event_duration_secs_listener(self._timed)
                self._listening = True

    @property
    def cached(self) -> int:
        """Programs read from the persistent cache, the many small ones included."""
        return self._counts[self._HIT]

    @property
    def anew(self) -> int:
        """Programs that no cache had."""
        return self._counts[self._ALL] - self._counts[self._HIT]

    def _heard(self, event: str, **about: Any) -> None:
        del about
        with self._lock:
            if event in self._counts:
                self._counts[event] += 1

    def _timed(self, event: str, duration_secs: float, **about: Any) -> None:
        del duration_secs
        self._heard(event, **about)


compiled = Compilations()
"""The one of this process."""
