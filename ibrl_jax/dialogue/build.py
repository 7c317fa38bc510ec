"""From a config to the domain, the policies' speech, and the cast."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.chat import ChatML
from ibrl_jax.dialogue.loop import Hall
from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.dialogue.tokenizers import load_tokenizer
from ibrl_jax.domains.base import Domain
from ibrl_jax.domains.dond.domain import DealOrNoDeal, DondSettings
from ibrl_jax.endpoints.client import Endpoint
from ibrl_jax.endpoints.settings import Budget, EndpointSettings
from ibrl_jax.models.dense import Decoder
from ibrl_jax.models.presets import preset
from ibrl_jax.rewards.rules import RuleJudge
from ibrl_jax.sampler.compiled import Programs
from ibrl_jax.sampler.engine import Engine
from ibrl_jax.sampler.types import EngineSettings


def build_domain(config: ConfigDict) -> Domain:
    """The domain that the config names.

    Raises:
        UserError: its data or prompts are missing or damaged.
    """
    values = dict(config.dond)
    values["data_dir"] = values["data_dir"] or None
    return DealOrNoDeal(DondSettings(**values))


def build_speech(config: ConfigDict) -> Speech:
    """The network, tokenizer and chat format of the local policies."""
    tokenizer = load_tokenizer(config.policy.tokenizer)
    network = preset(config.policy.preset, vocab_size=tokenizer.vocab_size)
    return Speech(
        model=Decoder(replace(network, dtype=config.policy.dtype)),
        tokenizer=tokenizer,
        chat=ChatML(tokenizer),
    )


def build_endpoints(config: ConfigDict, ledgers: Path | None) -> dict[str, Endpoint]:
    """A client for each of `config.endpoints`; `ledgers` is where each goes on with its ledger."""
    if ledgers is not None and config.endpoints:
        ledgers.mkdir(parents=True, exist_ok=True)
    return {
        name: Endpoint(
            _endpoint(name, dict(values)),
            ledger_file=None if ledgers is None else ledgers / f"{name}.jsonl",
        )
        for name, values in config.endpoints.items()
    }


def at_once(config: ConfigDict) -> int:
    """Dialogues that go on at a time: those of one iteration, in evaluations too."""
    return config.rollout.draws * config.rollout.group


def build_cast(
    config: ConfigDict, domain: Domain, speech: Speech, slots: int, ledgers: Path | None = None
) -> Cast:
    """Engines for `slots` dialogues at once, without parameters as yet."""
    settings = EngineSettings(
        slots=slots,
        max_length=config.rollout.max_view_tokens,
        rows=tuple(sorted({min(rows, slots) for rows in config.engine.rows})),
        new_tokens=config.engine.new_tokens,
        lengths=config.engine.lengths or (config.rollout.max_view_tokens,),
        max_new=config.rollout.max_new_tokens,
    )
    programs = Programs(speech.model, settings, speech.chat.stop_ids)
    return Cast(
        domain=domain,
        speech=speech,
        engines={role: Engine(programs) for role in domain.roles},
        endpoints=build_endpoints(config, ledgers),
        max_new=config.rollout.max_new_tokens,
    )


def build_hall(config: ConfigDict, domain: Domain, *, retries: int, concurrency: int) -> Hall:
    """What all dialogues of a stage share.

    `retries`: how often a malformed turn is sampled again. `concurrency`: dialogues at a time.
    """
    return Hall(
        domain=domain,
        judges={role: RuleJudge(reward=domain.reward) for role in domain.roles},
        seed=config.seed,
        retries=retries,
        concurrency=concurrency,
    )


def _endpoint(name: str, values: dict[str, Any]) -> EndpointSettings:
    """In a config 0, -1 or empty text stand for None."""
    limits = {key: values.pop(key) or None for key in ("max_calls", "max_cost")}
    budget = Budget(max_tokens=values.pop("max_total_tokens") or None, **limits)
    for price in ("price_in", "price_out"):
        values[price] = None if values[price] < 0 else values[price]
    for key in ("key_env", "requests_per_minute", "cache_dir"):
        values[key] = values[key] or None
    return EndpointSettings(name=name, budget=budget, extra_body={}, **values)
