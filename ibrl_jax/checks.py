"""Settings against each other: what no field can say of itself alone.

`ibrl_jax.config.check` looks at every value by itself first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from ibrl_jax.errors import UserError
from ibrl_jax.names import KINDS, read_entry

_NAME_BYTES = 200
"""The longest name of a folder; disks take 255, and what is written beside it has a longer one."""

BUDGET = ("max_calls", "max_total_tokens", "max_cost")
"""The settings of an endpoint that limit what a run may spend there."""


def check_together(config: ConfigDict, roles: Sequence[str]) -> None:
    """Raises UserError at the first two settings that contradict each other.

    `roles`: those of the domain, in its order.
    """
    if Path(config.name).name != config.name or config.name in ("", ".."):
        raise UserError(f"config.name must be the name of a folder, not {config.name!r}")
    for key, path in (("name", config.name), ("run.root", config.run.root)):
        _check_path(key, path)
    _check_policy(config)
    only = config.matchup.only
    if len(only) != len(roles):
        raise UserError(
            f"config.matchup.only must have {len(roles)} numbers, one a role ({', '.join(roles)}), "
            f"not {len(only)}"
        )
    total = config.matchup.all + sum(only)
    if not math.isclose(total, 1.0, abs_tol=1e-6):
        raise UserError(
            f"config.matchup.all and config.matchup.only must sum to 1, not {total:g} "
            f"({config.matchup.all:g} + {' + '.join(f'{p:g}' for p in only)})"
        )
    shares = config.dond.split_fractions
    if len(shares) != 3 or not math.isclose(sum(shares), 1.0, abs_tol=1e-6):
        raise UserError(
            "config.dond.split_fractions must be three shares that sum to 1: train, val, test"
        )
    for role, settings in config.roles.items():
        if not settings.train and not settings.counterpart:
            raise UserError(
                f"config.roles.{role}.counterpart must name who holds the seat, "
                "since it does not train"
            )
        for name in settings.counterpart:
            _check_name(config, f"roles.{role}.counterpart", name, ("frozen", "scripted", "api"))
        if settings.update_offset >= settings.update_every:
            raise UserError(f"config.roles.{role}.update_offset must be below its update_every")
        _check_judge(config, role, settings.judge)
    _check_budgets(config)
    if not math.isclose(config.rewards.turn + config.rewards.episode, 1.0, abs_tol=1e-6):
        raise UserError(
            "config.rewards.turn and config.rewards.episode must sum to 1, not "
            f"{config.rewards.turn + config.rewards.episode:g}"
        )
    if not any(settings.train for settings in config.roles.values()):
        raise UserError("config.roles has no role with train = True; at least one must learn")
    if config.isolation["update"] == "tied":
        _check_tied(config)
    auditor = config.evaluation.auditor
    if auditor and (config.domain != "telesales" or auditor not in config.endpoints):
        raise UserError(
            f"config.evaluation.auditor names {auditor!r}, which must be one of config.endpoints "
            f"({', '.join(config.endpoints) or 'there is none'}), in the domain telesales"
        )
    for key in ("counterparts", "policies"):
        for text in config.evaluation[key]:
            _check_entry(config, f"evaluation.{key}", text, several=key == "counterparts")


def _check_policy(config: ConfigDict) -> None:
    """Where weights come from, what of them trains, and where they lie."""
    policy, lora = config.policy, config.lora
    _check_path("policy.folder", policy.folder)
    if policy.start == "sft" and not (config.sft.families or config.sft.transcripts):
        raise UserError("config.sft.families must name a scripted teacher, since the start is sft")
    if policy.start == "pretrained" and not policy.folder:
        raise UserError(
            "config.policy.folder must name a Hugging Face folder, since the start is pretrained"
        )
    if lora.rank and not lora.targets:
        raise UserError("config.lora.targets must name a kernel, since config.lora.rank is not 0")
    if lora.rank and not lora.alpha:
        raise UserError("config.lora.alpha must be above 0, since config.lora.rank is not 0")
    if 0 in config.mesh.values():
        raise UserError("config.mesh has an axis of 0 devices; the least is 1, and -1 is the rest")
    if config.placement == "split" and config.isolation["update"] == "tied":
        raise UserError(
            "config.placement=split gives each role a mesh, and config.isolation.update=tied makes "
            "one policy of them; choose config.placement=shared"
        )


def _check_path(key: str, path: str) -> None:
    """Every name in a path must be one that any disk takes."""
    for character, name in (("\\", "a backslash"), ("\0", "a NUL byte")):
        if character in path:
            raise UserError(f"config.{key} must be a path without {name}, not {path!r}")
    longest = max(path.split("/"), key=_bytes)
    if _bytes(longest) > _NAME_BYTES:
        raise UserError(
            f"config.{key} must have names of at most {_NAME_BYTES} bytes, not the "
            f"{_bytes(longest)} of {longest[:20]!r}..."
        )


def _bytes(name: str) -> int:
    return len(name.encode(errors="surrogatepass"))


def _check_name(config: ConfigDict, key: str, name: str, kinds: Sequence[str]) -> None:
    """The form of a counterpart's name, and that its endpoint is one of the config's."""
    kind, _, which = name.partition(":")
    if kind not in kinds or not which:
        forms = " or ".join(f"{kind}:..." for kind in kinds)
        raise UserError(f"config.{key} names {name!r}, which is no counterpart: it is {forms}")
    endpoint = which.partition(":")[0]
    if kind == "api" and endpoint not in config.endpoints:
        raise UserError(f"config.{key} names {name}, and config.endpoints has no {endpoint!r}")


def _check_budgets(config: ConfigDict) -> None:
    """What may be spent at an endpoint is something, or has no limit."""
    for name, settings in config.endpoints.items():
        for key in BUDGET:
            if -1 < settings[key] <= 0:
                raise UserError(
                    f"config.endpoints.{name}.{key} is {settings[key]:g}, by which nothing could "
                    "be asked; give it more than 0, or -1 for no limit"
                )


def _check_entry(config: ConfigDict, key: str, text: str, *, several: bool) -> None:
    """An entry `label=name`, or of several names where they may be pooled."""
    entry = read_entry(text)
    for name in entry.names:
        _check_name(config, key, name, KINDS)
    if len(entry.names) > 1 and not several:
        raise UserError(
            f"config.{key} has {text!r}, which is {len(entry.names)} names; each entry is "
            "label=name, and only a column of config.evaluation.counterparts pools several"
        )


def _check_judge(config: ConfigDict, role: str, judge: str) -> None:
    """A judge is an endpoint of the config, in a domain that has something to judge."""
    if not judge:
        return
    if config.domain == "dond":
        raise UserError(
            f"config.roles.{role}.judge is {judge!r}, and the rules of dond pay its roles; leave "
            "it empty"
        )
    if judge not in config.endpoints:
        raise UserError(
            f"config.roles.{role}.judge names {judge}, and config.endpoints has no {judge!r}"
        )
    temperature = config.endpoints[judge].temperature
    if temperature:
        raise UserError(
            f"config.endpoints.{judge}.temperature is {temperature:g} and must be 0, since the "
            f"endpoint judges {role}"
        )


def _check_tied(config: ConfigDict) -> None:
    """One learner for all roles needs all to train, and to be told the same."""
    (first, lead), *others = config.roles.items()
    if not all(settings.train for settings in config.roles.values()):
        raise UserError("config.isolation.update=tied needs every role to train")
    for role, settings in others:
        for key in settings:
            schedule = key in ("update_every", "update_offset") and not config.stabilise.stagger
            if settings[key] != lead[key] and not schedule:
                raise UserError(
                    f"config.isolation.update=tied needs config.roles.{role}.{key} to be that of "
                    f"{first}, {lead[key]!r}, not {settings[key]!r}"
                    + ("; or set config.stabilise.stagger=False" if "update_" in key else "")
                )
