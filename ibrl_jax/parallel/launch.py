"""Which process of how many this is, and where the first one is: from settings or the launcher.

Known launchers are SLURM (`srun`) and GKE's TPU pods of one slice; anything else names the place by
settings, such as `hosts.index=$JOB_COMPLETION_INDEX` of an indexed Kubernetes job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ibrl_jax.errors import UserError

TPU_PORT = 8476
_FIRST_PORT, _PORTS = 61440, 4096  # for SLURM, by the job's number: jobs on one host seldom meet


@dataclass(frozen=True, kw_only=True)
class Place:
    """`host` and `port` are those of process 0."""

    host: str
    port: int
    index: int
    count: int

    @property
    def on_loopback(self) -> bool:
        return self.host == "localhost" or self.host.startswith("127.")


def find_place(coordinator: str, count: int, index: int, environ: Mapping[str, str]) -> Place:
    """What the settings say, and where they leave it open ("", 0, -1) what the launcher says.

    Raises:
        UserError: they do not say it all, or it does not fit together.
    """
    known = _slurm(environ) or _tpu(environ) or Place(host="", port=0, index=-1, count=0)
    count = count or known.count or (0 if coordinator else 1)
    if count == 1:
        return Place(host="", port=0, index=0, count=1)
    index = known.index if index == -1 else index
    host, port = _address(coordinator) if coordinator else (known.host, known.port)
    if not host or count < 1 or index < 0:
        raise UserError(
            f"hosts.coordinator is {coordinator!r}, hosts.count {count} and hosts.index {index}, "
            "and no known launcher says the rest; give all three, such as node0:8476, 2 and 1"
        )
    if index >= count:
        raise UserError(f"hosts.index is {index}; with hosts.count {count} it is 0 to {count - 1}")
    return Place(host=host, port=port, index=index, count=count)


def _address(coordinator: str) -> tuple[str, int]:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"hosts.coordinator is {coordinator!r}; it must be host:port, node0:8476")
    return host.strip("[]"), int(port)


def _slurm(environ: Mapping[str, str]) -> Place | None:
    """A step of a SLURM job; the first of its nodes holds process 0."""
    try:
        nodes = environ["SLURM_STEP_NODELIST"]
        job, index = int(environ["SLURM_JOB_ID"]), int(environ["SLURM_PROCID"])
        count = int(environ["SLURM_STEP_NUM_TASKS"])
    except (KeyError, ValueError):
        return None
    return Place(host=first_node(nodes), port=_FIRST_PORT + job % _PORTS, index=index, count=count)


def first_node(nodes: str) -> str:
    """The first name of a SLURM node list: `a7` of `a7,b2`, `a007` of `a[007-009,012],b2`."""
    found = re.match(r"([^,\[]*)(?:\[([^,\-\]]*))?", nodes)
    assert found is not None  # it matches anything
    return found[1] + (found[2] or "")


def _tpu(environ: Mapping[str, str]) -> Place | None:
    """A TPU pod slice whose workers are named in the environment."""
    names = [name.strip() for name in environ.get("TPU_WORKER_HOSTNAMES", "").split(",")]
    index = environ.get("TPU_WORKER_ID", "")
    if not names[0] or not index.isdecimal():
        return None
    return Place(host=names[0], port=TPU_PORT, index=int(index), count=len(names))
