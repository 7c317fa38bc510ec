"""From a config to the domain, the policies' speech, and the cast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ibrl_jax.checks import BUDGET
from ibrl_jax.dialogue.cast import Cast, opening
from ibrl_jax.dialogue.chat import load_chat
from ibrl_jax.dialogue.loop import Hall
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.tokenizers import EMBEDDED, check_fits, load_tokenizer
from ibrl_jax.domains.base import Domain, Role
from ibrl_jax.domains.dond.domain import DealOrNoDeal, DondSettings
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.endpoints.settings import Budget, EndpointSettings, read_extra_body
from ibrl_jax.errors import UserError
from ibrl_jax.models import hf_config
from ibrl_jax.models.config import ModelConfig
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.lora import LoraSettings, check_targets
from ibrl_jax.models.presets import LARGE, LARGE_CHUNK, SCRATCH, preset
from ibrl_jax.parallel.hosts import ALONE, Hosts
from ibrl_jax.parallel.mesh import MeshSettings, build_mesh, local_mesh, split
from ibrl_jax.rewards.rules import RuleJudge
from ibrl_jax.rewards.types import Judge
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings


def build_domain(config: ConfigDict) -> Domain:
    """The domain that the config names.

    Raises:
        UserError: its data or prompts are missing or damaged.
    """
    if config.domain == "telesales":
        from ibrl_jax.dialogue.build_telesales import telesales  # late: it takes .3 s

        return telesales(config)
    values = dict(config.dond)
    values["data_dir"] = values["data_dir"] or None
    return DealOrNoDeal(DondSettings(**values))


def build_speech(config: ConfigDict) -> Speech:
    """The network, tokenizer and chat format of the local policies.

    Raises:
        UserError: the folder or the tokenizer cannot be read, does not fit, or is of a kind that is
            not known; or an adapter's target matches nothing.
    """
    policy, lora = config.policy, lora_settings(config)
    folder = Path(policy.folder) if policy.folder else None
    if folder is not None and not (folder / "config.json").is_file():
        lacks = "has no config.json" if folder.is_dir() else "is not there"
        raise UserError(
            f"config.policy.folder names {folder}, which {lacks}; it is the folder that a download "
            "of a model leaves, and none is fetched here"
        )
    tokenizer = load_tokenizer(_tokenizer(config, folder))
    network = _network(config, folder, tokenizer.vocab_size)
    check_fits(tokenizer, network.vocab_size)
    if lora:
        check_targets(lora, network.period)
    chat = load_chat(
        policy.chat, tokenizer, folder, thinking=policy.thinking, thoughts=policy.thoughts
    )
    return Speech(model=Decoder(network, lora), tokenizer=tokenizer, chat=chat)


def lora_settings(config: ConfigDict) -> LoraSettings | None:
    """The adapters that train; None where all parameters do."""
    if not config.lora.rank:
        return None
    return LoraSettings(**dict(config.lora))


def build_meshes(config: ConfigDict, roles: Sequence[Role]) -> dict[Role, Mesh | None]:
    """The mesh of each role over all processes' devices; None: the default device.

    Raises:
        UserError: the sizes do not multiply to the devices, or these cannot be shared out.
    """
    settings = MeshSettings(**dict(config.mesh))
    devices = jax.devices()
    if config.placement == "split":
        shares = split(devices, len(roles))
        return {r: build_mesh(settings, s) for r, s in zip(roles, shares, strict=True)}
    alone = settings.sizes == (1, 1, 1) and jax.process_count() == 1
    return dict.fromkeys(roles, None if alone else build_mesh(settings, devices))


def build_local_meshes(config: ConfigDict, roles: Sequence[Role]) -> dict[Role, Mesh | None]:
    """The block of each role's mesh that this process holds: all of it where there is but one.

    Raises:
        UserError: as `build_meshes`, or this process's devices are no block of it.
    """
    meshes = build_meshes(config, roles)
    return {role: None if mesh is None else local_mesh(mesh) for role, mesh in meshes.items()}


def build_endpoints(
    config: ConfigDict, ledgers: Path | None, hosts: Hosts = ALONE
) -> dict[str, Endpoint]:
    """A client for each of `config.endpoints`; `ledgers` is where each goes on with its ledger.

    Each of several processes has clients and ledgers of its own, with its share of what they may
    do and cost.
    """
    if ledgers is not None and not hosts.is_first:
        ledgers = ledgers / f"process{hosts.index}"
    if ledgers is not None and config.endpoints:
        ledgers.mkdir(parents=True, exist_ok=True)
    return {
        name: Endpoint(
            _endpoint(name, _share(dict(values), hosts.count)),
            ledger_file=None if ledgers is None else ledgers / f"{name}.jsonl",
        )
        for name, values in config.endpoints.items()
    }


def build_endpoint(config: ConfigDict, name: str, ledger: Path) -> Endpoint:
    """A client for one of `config.endpoints` alone; `ledger` is the file that it goes on with."""
    return Endpoint(_endpoint(name, dict(config.endpoints[name])), ledger_file=ledger)


def at_once(config: ConfigDict, processes: int = 1) -> int:
    """Dialogues that go on at a time in a process: its share of an iteration's, at most.

    In evaluations, which one process makes, as many as an iteration has.
    """
    return -(-config.rollout.draws // processes) * config.rollout.group


def build_programs(
    config: ConfigDict, speech: Speech, roles: Sequence[Role], slots: int
) -> dict[Role, Programs]:
    """The sampler's programs for `slots` dialogues at once, or as many more as a mesh spreads
    evenly, on this process's devices; roles on one mesh share theirs. Nothing is compiled or
    allocated yet.
    """
    meshes = build_local_meshes(config, roles)
    share = max(math.prod(m.devices.shape[:2]) if m else 1 for m in meshes.values())
    slots = -(-slots // share) * share
    settings = EngineSettings(
        slots=slots,
        max_length=config.rollout.max_view_tokens,
        rows=tuple(sorted({min(rows, slots) for rows in config.engine.rows})),
        new_tokens=config.engine.new_tokens,
        lengths=config.engine.lengths or (config.rollout.max_view_tokens,),
        max_new=config.rollout.max_new_tokens,
        block=config.engine.block,
        stragglers=config.engine.stragglers,
    )
    made = {
        mesh: Programs(speech.model, settings, speech.chat.stop_ids, mesh=mesh)
        for mesh in set(meshes.values())
    }
    return {role: made[mesh] for role, mesh in meshes.items()}


def build_cast(
    config: ConfigDict,
    domain: Domain,
    speech: Speech,
    slots: int,
    ledgers: Path | None = None,
    hosts: Hosts = ALONE,
) -> Cast:
    """Engines for `slots` dialogues at once in this process, without parameters as yet."""
    programs = build_programs(config, speech, domain.roles, slots)
    engines = {role: Engine(of_role) for role, of_role in programs.items()}
    least = config.engine.share_at_least
    for role, engine in engines.items():
        shared = opening(domain, speech, role) if least and slots > 1 else []
        engine.share(shared if len(shared) >= least else [])
    return Cast(
        domain=domain,
        speech=speech,
        engines=engines,
        endpoints=build_endpoints(config, ledgers, hosts),
        max_new=config.rollout.max_new_tokens,
    )


def build_judges(
    config: ConfigDict, domain: Domain, endpoints: Mapping[str, Endpoint] | None
) -> dict[Role, Judge]:
    """Each role's judge; without endpoints all are the domain's rules."""
    if config.domain == "telesales":
        from ibrl_jax.dialogue.build_telesales import telesales_judges

        return telesales_judges(config, domain, endpoints)
    return {role: RuleJudge(reward=domain.reward) for role in domain.roles}


def build_hall(
    config: ConfigDict,
    domain: Domain,
    *,
    retries: int,
    concurrency: int,
    endpoints: Mapping[str, Endpoint] | None = None,
) -> Hall:
    """What all dialogues of a stage share.

    `retries`: how often a malformed turn is sampled again. `concurrency`: dialogues at a time.
    `endpoints`: where judges may ask; None where dialogues are not learned from, and only need to
    have come to an end.
    """
    return Hall(
        domain=domain,
        judges=build_judges(config, domain, endpoints),
        seed=config.seed,
        retries=retries,
        concurrency=concurrency,
    )


def _share(values: dict[str, Any], count: int) -> dict[str, Any]:
    """One of `count` equal shares of an endpoint's limits; what is below 0 is no limit."""
    for key in ("concurrency", "max_calls", "max_total_tokens"):
        values[key] = max(1, values[key] // count) if values[key] > 0 else values[key]
    for key in ("requests_per_minute", "max_cost"):
        values[key] = values[key] / count
    return values


def _endpoint(name: str, values: dict[str, Any]) -> EndpointSettings:
    """In a config -1, empty text or a rate of 0 stand for None."""
    for key in (*BUDGET, "price_in", "price_out"):
        values[key] = None if values[key] < 0 else values[key]
    calls, tokens, cost = (values.pop(key) for key in BUDGET)
    budget = Budget(max_calls=calls, max_tokens=tokens, max_cost=cost)
    for key in ("key_env", "requests_per_minute", "cache_dir"):
        values[key] = values[key] or None
    extra = read_extra_body(name, values.pop("extra_body"))
    return EndpointSettings(name=name, budget=budget, extra_body=extra, **values)


def _tokenizer(config: ConfigDict, folder: Path | None) -> str:
    if config.policy.tokenizer != "auto":
        return config.policy.tokenizer
    return EMBEDDED[config.domain] if folder is None else str(folder)


def _network(config: ConfigDict, folder: Path | None, vocab_size: int) -> ModelConfig:
    """The folder's network or the preset's, compiled as the config says."""
    policy = config.policy
    how: dict[str, Any] = {"dtype": policy.dtype}
    if policy.remat != "auto":
        how["remat"] = policy.remat == "yes"
    if policy.attention != "auto":
        how["attention"] = policy.attention
    if folder is not None:
        chunk = policy.delta_chunk or LARGE_CHUNK
        return hf_config.network(folder, chunk=chunk, **LARGE | how)
    if policy.preset in SCRATCH:
        how["vocab_size"] = vocab_size
    network = preset(policy.preset, **how)
    if network.delta is None or not policy.delta_chunk:
        return network
    return replace(network, delta=replace(network.delta, chunk=policy.delta_chunk))
