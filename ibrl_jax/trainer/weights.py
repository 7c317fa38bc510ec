"""A policy's values, and the base that adapters were trained on, by name.

What trains and what does not are two trees (see `ibrl_jax.models.lora`). A base is a function of
the config and is never written by a run: a policy folder of adapters says which one it belongs to,
and is refused over any other.

```
{"folder": path, "fingerprint": ...}   the weights of a Hugging Face folder
{"policy": path, "fingerprint": ...}   all parameters of another policy's folder
{"seed": n}                            random weights
```
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError
from ibrl_jax.models.decoder import Decoder
from ibrl_jax.models.params import Params, abstract_params
from ibrl_jax.trainer.placing import Place
from ibrl_jax.trainer.policies import about_policy, is_policy, load_policy

STARTS = ("sft", "random", "pretrained")
"""Values of `config.policy.start` that are no policy folder."""

_BLOCK = 4096
"""Bytes that a fingerprint reads at the start, the middle and the end of each tensor."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What an update moves of a policy, and what it does not (None: everything moves)."""

    trained: Params
    frozen: Params | None


def seed_of(config: ConfigDict) -> int:
    """The seed of whatever is random in the start."""
    return config.seed if config.sft.seed < 0 else config.sft.seed


def base_of(config: ConfigDict) -> dict[str, Any] | None:
    """Which base the adapters of a config lie on; None where there are no adapters.

    Raises:
        UserError: the policy folder that the start names is none, or is damaged.
    """
    if not config.lora.rank:
        return None
    start, folder = config.policy.start, config.policy.folder
    if start not in STARTS:
        about = about_policy(_policy_folder(start)).get("lora")
        if isinstance(about, Mapping) and isinstance(about.get("base"), Mapping):
            return dict(about["base"])
        return {"policy": start, "fingerprint": fingerprint(Path(start))}
    if folder and start != "random":
        return {"folder": folder, "fingerprint": fingerprint(Path(folder))}
    return {"seed": seed_of(config)}


def first_weights(config: ConfigDict, speech: Speech, place: Place) -> Weights:
    """The values that training or the supervised steps begin with.

    Raises:
        UserError: the folder that they come from is missing, damaged or of another network.
    """
    if speech.model.lora is not None:
        return Weights(
            trained=place.adapters(seed_of(config)), frozen=read_base(config, speech, place)
        )
    if config.policy.folder and config.policy.start != "random":
        return Weights(trained=place.read(Path(config.policy.folder), base=False), frozen=None)
    return Weights(trained=place.fresh(seed_of(config), base=False), frozen=None)


def read_base(config: ConfigDict, speech: Speech, place: Place) -> Params | None:
    """The base under a config's adapters, at its place; None where there are no adapters.

    Raises:
        UserError: it is missing, damaged or not the one that the start was trained on.
    """
    base = base_of(config)
    if base is None:
        return None
    if "seed" in base:
        return place.fresh(int(base["seed"]), base=True)
    if "policy" in base:
        folder = Path(base["policy"])
        if not is_policy(folder) or fingerprint(folder) != base.get("fingerprint"):
            raise UserError(
                f"the adapters of {config.policy.start} lie on the policy {folder}, which is gone "
                f"or changed; put the one of fingerprint {base.get('fingerprint')} back there"
            )
        whole = replace(speech, model=Decoder(speech.model.config, None))
        return place.base(load_policy(folder, abstract_params(speech.model.config), whole))
    folder = Path(config.policy.folder or base["folder"])
    _check_fingerprint(folder, base)
    return place.read(folder, base=True)


def load_weights(config: ConfigDict, speech: Speech, place: Place, folder: Path) -> Weights:
    """A policy folder's values, with the base of the config.

    Raises:
        UserError: the folder is no policy, is damaged, or belongs to something else.
    """
    trained = load_policy(folder, place.like, speech, base_of(config))
    return Weights(trained=place.trained(trained), frozen=read_base(config, speech, place))


def fingerprint(folder: Path) -> str:
    """A hash of a folder's files of weights: names, sizes, headers, and some bytes of each tensor.

    A file whose header is damaged counts by its name and size; who reads it says what is wrong.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size}:".encode())
        with file.open("rb") as data:
            header = data.read(min(int.from_bytes(data.read(8), "little"), size))
            digest.update(header)
            first = data.tell()
            for begin, end in _extents(header):
                for at in (begin, (begin + end) // 2, max(begin, end - _BLOCK)):
                    data.seek(first + at)
                    digest.update(data.read(max(0, min(_BLOCK, end - at))))
    return digest.hexdigest()[:16]


def _extents(header: bytes) -> list[tuple[int, int]]:
    """Where each tensor of a safetensors file lies, after the header; none if that is damaged."""
    try:
        tensors = json.loads(header)
        found = [x["data_offsets"] for name, x in tensors.items() if name != "__metadata__"]
        return sorted((int(begin), int(end)) for begin, end in found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _check_fingerprint(folder: Path, base: Mapping[str, Any]) -> None:
    if fingerprint(folder) != base.get("fingerprint"):
        raise UserError(
            f"{folder} does not hold the weights that the adapters of config.policy.start were "
            "trained on; name the folder that does in config.policy.folder"
        )


def _policy_folder(path: str) -> Path:
    folder = Path(path)
    if not is_policy(folder):
        raise UserError(
            f"{folder} is not a policy folder (policy.json with params.safetensors or "
            "adapters.safetensors); config.policy.start is one, or sft, random or pretrained"
        )
    return folder
