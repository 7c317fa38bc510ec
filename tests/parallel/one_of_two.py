"""One of two processes with four virtual devices each: what `test_hosts.py` starts twice."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ibrl_jax.errors import UserError
from ibrl_jax.parallel.hosts import Hosts, HostSettings, localise, start
from ibrl_jax.parallel.mesh import MeshSettings, build_mesh, local_mesh


def together(hosts: Hosts) -> dict[str, Any]:
    """What both find out when nothing goes wrong."""
    mesh = build_mesh(MeshSettings(data=2, fsdp=2, tensor=2), jax.devices())
    value = np.arange(32, dtype=np.float32).reshape(4, 8)
    cut = NamedSharding(mesh, PartitionSpec("fsdp", "tensor"))
    whole = jax.make_array_from_callback(value.shape, cut, lambda index: value[index])
    rows = NamedSharding(mesh, PartitionSpec(("data", "fsdp")))
    own = hosts.share(list(range(8)), key=lambda i: i // 2)
    batch = jax.make_array_from_callback((4,), rows, lambda index: np.arange(4.0)[index])
    here = local_mesh(mesh)
    copy = localise({"w": whole}, mesh, here)["w"]
    return {
        "devices": [jax.device_count(), jax.local_device_count()],
        "own": own,
        "all": hosts.exchange("own", own),
        "arrays": [a.tolist() for a in hosts.exchange("array", np.arange(hosts.index + 1))],
        "sum": float(jax.block_until_ready(jax.jit(jnp.sum)(batch)).addressable_data(0)),
        "copy_is_here": copy.is_fully_addressable and bool(np.array_equal(copy, value)),
        "cut_as_before": copy.sharding == NamedSharding(here, PartitionSpec("fsdp", "tensor")),
    }


def collective_for_ever() -> None:
    mesh = jax.make_mesh((8,), ("all",))
    cut = NamedSharding(mesh, PartitionSpec("all"))
    value = jax.make_array_from_callback((8,), cut, lambda index: np.ones(8)[index])
    step = jax.jit(lambda x: x / x.sum(), out_shardings=cut)
    while True:
        value = step(value).block_until_ready()
        if value.addressable_data(0)[0] < 1:
            print("computing", flush=True)


def main(act: str, port: str, index: str) -> None:
    settings = HostSettings(
        coordinator=f"127.0.0.1:{port}",
        count=2,
        index=int(index),
        start_seconds=30.0,
        silence_seconds=10.0,
    )
    with start(settings, os.environ) as hosts:
        if act == "together":
            found = together(hosts)
            hosts.close()
            print(json.dumps(found))
        elif act == "kill-first-in-collective" and not hosts.is_first:
            collective_for_ever()
        elif act == "kill-first-in-collective":
            parent = os.getpid()
            if os.fork() == 0:  # a child outlives nothing: it ends its parent in mid-computation
                time.sleep(1.5)
                os.kill(parent, signal.SIGKILL)
                os._exit(0)
            collective_for_ever()
        elif act == "kill-second":
            hosts.barrier("both are here")
            if not hosts.is_first:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        elif act == "mistake":
            hosts.barrier("both are here")
            if not hosts.is_first:
                raise UserError("the data of this host are not there")
            hosts.exchange("never", 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
