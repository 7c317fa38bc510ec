"""What the process asks of its host before any array is made.

XLA on a CPU takes its temporary buffers from malloc anew in every call and gives them back after
it. glibc returns large blocks to the system at once, so the same pages are faulted in again and
again: measured at a third of an update's time. Told to keep what it has, the process faults them in
once.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


def cores() -> int:
    """Cores that this process may use: those it is pinned to, where the system can say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare() -> None:
    """Call first in a process; does nothing where it does not apply."""
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(".cache", "jax"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # A CPU is two devices to JAX where it has two cores: the supervised start gives each of them
    # half of its rows, since two programs side by side use two cores better than one that is split
    # between them. Everything else runs on the first.
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(min(2, cores())))
    if sys.platform.startswith("linux"):
        _keep_freed_memory()


def _keep_freed_memory() -> None:
    """One arena, no blocks of their own, nothing returned below 2 GB of it free."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    mallopt(_ARENA_MAX, 1)
    mallopt(_MMAP_MAX, 0)
    mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(_TOP_PAD, 64 << 20)
