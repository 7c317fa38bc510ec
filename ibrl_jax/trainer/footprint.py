"""What a config takes in memory on each device: what stays, and what its programs need besides.

What stays is counted from shapes and shardings: for each role its parameters, moments and engine
(the serving copies of the live, the past and any frozen policy, and the caches), a pool that is
kept on the device, and once for all roles of a mesh the start and a base under adapters. Programs
run one at a time, so the largest counts.

What a program needs is what XLA's compiler for the CPU plans for it in float32. For a config in 16
bits that is an upper bound: whatever is held in 16 bits there is held in 32 here. (The compiler for
the CPU has no 16-bit products; given 16-bit weights it plans copies of all of them in 32 bits,
which no accelerator makes.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from ibrl_jax.dialogue.build import at_once, build_domain, build_programs, build_speech
from ibrl_jax.domains.base import Role
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import abstract_params, count_params
from ibrl_jax.models.table import three_digits
from ibrl_jax.trainer import build as builders
from ibrl_jax.trainer import start as starts
from ibrl_jax.trainer.placing import places
from ibrl_jax.trainer.start import Note

GB = 1e9


@dataclass(kw_only=True)
class Footprint:
    """Bytes on one device, of the role that takes most.

    `supervised` is all that the supervised start takes, which comes before the rest and alone: one
    policy's parameters and moments, a base under its adapters, and a step of rows as long as a view
    may be; 0 where there is none.
    """

    title: str
    stays: dict[str, int] = field(default_factory=dict)
    programs: dict[str, int] = field(default_factory=dict)
    supervised: int = 0

    @property
    def peak(self) -> int:
        """What stays and the largest program beside it, or the supervised start, before it all."""
        return max(sum(self.stays.values()) + max(self.programs.values()), self.supervised)


def footprint(config: ConfigDict, note: Note) -> Footprint:
    """Compiles the update, the reference pass, the sampler's largest program and, where there is a
    supervised start, its step.

    Raises:
        UserError: the mesh does not fit the network.
    """
    domain = build_domain(config)
    speech = build_speech(config)
    learners = [role for role in domain.roles if config.roles[role].train]
    where = places(config, speech, domain.roles)
    shared = config.placement == "shared"
    sharing = len(domain.roles) if shared else 1  # roles on one mesh
    training = len(learners) if shared and config.isolation["update"] == "separate" else 1
    place = where[learners[0]]
    programs = build_programs(config, speech, domain.roles, at_once(config))[learners[0]]
    batching = builders.batch_settings(config, 1)

    size = count_params(abstract_params(speech.model.config))
    devices = 1 if place.mesh is None else place.mesh.size
    found = Footprint(
        title=(
            f"{config.name}: {three_digits(size)} parameters a role"
            + (f", adapters of rank {config.lora.rank}" if config.lora.rank else "")
            + f", {devices} device{'s' * (devices > 1)} {'in all' if shared else 'a role'}"
            + f" (data {config.mesh.data}, fsdp {config.mesh.fsdp}, tensor {config.mesh.tensor})"
            + f", views of {batching.lengths[-1]} tokens, {at_once(config)} dialogues at once"
        )
    )
    wide_speech = replace(speech, model=in_float32(speech.model))
    wide = places(config, wide_speech, domain.roles)[learners[0]]
    wide_programs = build_programs(config, wide_speech, domain.roles, at_once(config))[learners[0]]
    learner = builders.build_learner(config, wide_speech)
    base = place.abstract_base()
    state = learner.abstract(place.abstract_trained())
    found.stays["parameters that train (fp32)"] = training * _bytes(state.params)
    found.stays["moments (fp32)"] = training * _bytes(state.opt_state)
    found.stays["base under the adapters"] = 0 if base is None else _bytes(base)
    found.stays["start, the KL's reference (fp32)"] = _bytes(state.params)
    served = programs.abstract_params()
    copies = served.adapters if base is not None else served
    found.stays["sampler: live and past policies"] = 2 * sharing * _bytes(copies)
    found.stays |= kept_beside(config, learners, _bytes(state.params), _bytes(copies))
    found.stays["sampler: caches"] = sharing * _bytes(programs.abstract_store())

    batches = [
        place.abstract_batch(batching.rows, n, batching.micro_batch, batching.places)
        for n in batching.lengths
    ]
    found.stays["a batch"] = _bytes(batches[-1])
    note("compiling the update and the reference pass")
    hyper = builders.hyper_of(config, learners[0])
    learner.warmup(state, wide.abstract_base(), batches[-1:], hyper, True)
    names = {
        "update": "the update",
        "gradient": "the update",  # of one lane
        "step": "the optimiser's step",
        "logp": "the reference pass",
    }
    for key, program in learner.programs.items():
        found.programs[names[key.split()[0]]] = _temporary(program)
    shape = programs.shapes()[-1]
    note(
        f"compiling the sampler's largest program: {shape.rows} rows, {shape.new_tokens} new "
        f"tokens, {shape.length} entries"
    )
    found.programs["a turn of the sampler"] = _temporary(wide_programs.lowered(shape).compile())
    if config.policy.start == "sft":
        note("compiling the supervised step")
        step = starts.build_stepper(config, wide_speech, wide.abstract_base(), wide)
        program = step.lowered(wide.abstract_trained(), config.rollout.max_view_tokens).compile()
        found.supervised = _bytes((state.params, state.opt_state, base)) + _temporary(program)
    return found


def kept_beside(
    config: ConfigDict, learners: Sequence[Role], trained: int, served: int
) -> dict[str, int]:
    """What else stays on each device, in bytes: snapshots of pools that are kept there, and frozen
    policies that hold seats.

    Args:
        trained: bytes of what trains of one role; `served`: of one policy as the sampler has it.
    """
    found = {}
    if config.stabilise.pool and config.pool.store == "device" and len(learners) > 1:
        roles = len(learners) if config.placement == "shared" else 1
        found["pool of past policies (fp32)"] = roles * config.pool.size * trained
    seats = [s.counterpart for role, s in config.roles.items() if role not in learners]
    if frozen := {name for names in seats for name in names if name.startswith("frozen:")}:
        found["sampler: frozen policies"] = len(frozen) * served
    return found


def in_float32(model: Decoder) -> Decoder:
    """The same network, computed in 32 bits."""
    return Decoder(replace(model.config, dtype="float32"), model.lora)


def lines(found: Footprint, device_gb: int) -> Iterator[str]:
    """The figures as a Markdown table, and whether they fit on a device."""
    yield found.title
    yield ""
    yield "| on each device | GB |"
    yield "| --- | ---: |"
    for name, size in found.stays.items():
        yield f"| {name} | {size / GB:.3g} |"
    yield f"| **stays** | **{sum(found.stays.values()) / GB:.2f}** |"
    for name, size in found.programs.items():
        yield f"| {name}, besides, at most | {size / GB:.3g} |"
    if found.supervised:
        yield f"| the supervised start, before and alone, at most | {found.supervised / GB:.3g} |"
    yield f"| **peak, at most** | **{found.peak / GB:.2f}** |"
    if device_gb:
        verdict = "fits" if found.peak <= device_gb * GB else "does not fit"
        yield ""
        yield f"It {verdict} on devices of {device_gb} GB."


def _bytes(tree: Any) -> int:
    """Of a tree's arrays, on one device."""

    def here(x: Any) -> int:
        sharding = getattr(x, "sharding", None)
        shape = x.shape if sharding is None else sharding.shard_shape(x.shape)
        return int(np.prod(shape, dtype=np.int64)) * np.dtype(x.dtype).itemsize

    return sum(here(x) for x in jax.tree.leaves(tree))


def _temporary(program: jax.stages.Compiled) -> int:
    """What a program needs beside its arguments: results that are not in their place, and the
    compiler's own plan of temporary buffers."""
    found: Any = program.memory_analysis()
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return int(results + found.temp_size_in_bytes)
