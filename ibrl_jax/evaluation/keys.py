"""What shapes the dialogues of a cell, and its hash: dialogues are taken again only under the same.

Settings that change only how dialogues are told of afterwards (statistics, the reference) are not
in it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from ibrl_jax import __version__
from ibrl_jax.dialogue.build import at_once
from ibrl_jax.dialogue.cast import Cast
from ibrl_jax.dialogue.tokenizers import fingerprint
from ibrl_jax.evaluation.audits import audit_key, auditor_name
from ibrl_jax.evaluation.cells import Contestant, Planned
from ibrl_jax.evaluation.columns import Column, evaluation_scenarios
from ibrl_jax.evaluation.store import BLOCK
from ibrl_jax.names import bare, kind_of

_ENDPOINT = ("base_url", "model", "temperature", "max_tokens", "schema_mode", "extra_body")
_PATHS = ("data_dir", "prompts_dir", "test_file")
"""Settings of domains that are told by what lies there."""


def versions() -> dict[str, str]:
    """Of the packages that dialogues depend on."""
    return {"ibrl_jax": __version__, "jax": jax.__version__}


class Keys:
    """The key of each cell of an evaluation.

    Args:
        prints: the fingerprints of local policies, by what they are seated by.
    """

    def __init__(self, config: ConfigDict, cast: Cast, prints: Mapping[str, str]) -> None:
        self._config, self._cast, self._prints = config, cast, prints
        self._versions = versions()
        self.met: list[str] = []
        """The names of everybody that held a seat in a cell so far."""

    def of(self, policy: Contestant, column: Column, planned: Sequence[Planned]) -> str:
        """A hash of all that shapes a cell's dialogues."""
        names = sorted({name for p in planned for name in p.holders.values()})
        self.met += [name for name in names if name not in self.met]
        plan = [
            [*p.stage, p.draw, p.rollout, p.first, p.seat, *sorted(p.holders.items())]
            for p in planned
        ]
        local = any(name in self._prints for name in names)
        return _hash(
            {
                "policy": policy.label,
                "column": column.name,
                "who": {name: self.identity(name) for name in names},
                "plan": _hash(plan),
                "dialogues": self._dialogues,
                "sampler": self._sampler if local else None,
            }
        )

    def identity(self, name: str) -> dict[str, Any]:
        """Who a name is, JSON-able."""
        found: dict[str, Any] = {"name": name, "kind": kind_of(name)}
        if name in self._prints:
            return {**found, "fingerprint": self._prints[name]}
        if kind_of(name) == "api":
            found |= self._endpoint(bare(name).partition(":")[0])
        return found

    @property
    def scenarios(self) -> dict[str, Any]:
        """Which scenarios the evaluation is over."""
        return {
            "split": self._config.evaluation.split,
            "count": len(evaluation_scenarios(self._config, self._cast.domain)),
            "fingerprint": self._prompts,
        }

    def _endpoint(self, name: str) -> dict[str, Any]:
        return {key: self._config.endpoints[name][key] for key in _ENDPOINT}

    @cached_property
    def _dialogues(self) -> dict[str, Any]:
        """What shapes dialogues whoever speaks."""
        config = self._config
        auditor = auditor_name(config, self._cast)
        domain = config[config.domain].to_dict()
        asked = self._endpoint(auditor) if auditor in config.endpoints else None
        audits = audit_key(config)
        return {
            "ibrl_jax": self._versions["ibrl_jax"],
            "block": BLOCK,
            "seed": config.seed,
            "domain": {k: v for k, v in domain.items() if k not in _PATHS and k != "prompt"},
            "prompts": self._prompts,
            "retries": config.evaluation.retries,
            "auditor": [auditor, asked],
            **({"audits": audits} if audits else {}),
        }

    @cached_property
    def _prompts(self) -> str:
        """Scenarios, what each role is told in them, and a user's own prompt files."""
        domain = self._cast.domain
        scenarios = evaluation_scenarios(self._config, domain)
        told: list[Any] = [
            [s.id, s.cluster, *(domain.prompt(s, role) for role in domain.roles)] for s in scenarios
        ]
        opening = domain.referee(scenarios[0], domain.roles[0]).turns
        told.append(
            [domain.beside(scenarios[0].seen_by(role), role, opening) for role in domain.roles]
        )
        settings = self._config[self._config.domain]
        for name in ("prompt", "prompts_dir"):
            folder = Path(settings.get(name) or "")
            if settings.get(name) and folder.is_dir():
                files = sorted(p for p in folder.rglob("*") if p.is_file())
                told += [[f.name, hashlib.sha256(f.read_bytes()).hexdigest()] for f in files]
        return _hash(told)

    @cached_property
    def _sampler(self) -> dict[str, Any]:
        """What shapes what local policies say."""
        config, speech = self._config, self._cast.speech
        return {
            "jax": self._versions["jax"],
            "model": dataclasses.asdict(speech.model.config),
            "tokenizer": fingerprint(speech.tokenizer),
            "chat": [speech.chat.name, config.policy.thinking, config.policy.thoughts],
            "lora": config.lora.to_dict() if config.lora.rank else None,
            "temperature": config.evaluation.temperature,
            "lengths": [config.rollout.max_new_tokens, config.rollout.max_view_tokens],
            "engine": [config.engine.to_dict(), at_once(config)],
            "mesh": [config.mesh.to_dict(), config.placement],
        }


def _hash(values: Any) -> str:
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
