"""`make memory`: what a config's training takes on each device, without a device of that kind.

The programs are compiled ahead of time for the config's mesh on virtual devices; nothing is
allocated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ibrl_jax import config as configs
from ibrl_jax.entry import Options, notes, run
from ibrl_jax.errors import UserError


def main(argv: Sequence[str], console: Console) -> None:
    options = Options(argv, ("config", "device-gb"))
    device_gb = options.get("device-gb", "0")
    if not device_gb.isdecimal():
        raise UserError(f"DEVICE_GB is {device_gb!r}; it must be a whole number, such as 80")
    config = configs.load(options.need("config", "configs/dond/qwen3_5-9b.py"), options.overrides)
    sizes = {axis: int(config.mesh[axis]) for axis in ("data", "fsdp", "tensor")}
    for axis, size in sizes.items():
        if size < 1:
            raise UserError(
                f"config.mesh.{axis} is {size}; here it must be a number of devices, since there "
                "are none to count"
            )
    note = notes(console)
    if config.policy.folder and not Path(config.policy.folder).is_dir():
        note(f"no folder {config.policy.folder}: planning with the preset {config.policy.preset}")
        start = "sft" if config.policy.start == "sft" else "random"
        config = configs.override(
            config, ["--config.policy.folder=", f"--config.policy.start={start}"]
        )
    devices = sizes["data"] * sizes["fsdp"] * sizes["tensor"]
    if config.placement == "split":
        devices *= len(config.roles)
    os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported
    os.environ["JAX_NUM_CPU_DEVICES"] = str(devices)

    from ibrl_jax.trainer.footprint import footprint, lines

    found = footprint(config, note)
    for line in lines(found, int(device_gb)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    run(main)
