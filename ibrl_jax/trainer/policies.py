"""A policy as a folder.

```
params.safetensors   the parameters, by their path in the tree
policy.json          the network, the chat format, where the policy comes from
tokenizer.model
```
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from flax import traverse_util
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError

Params = Any


def save_policy(folder: Path, params: Params, speech: Speech, about: Mapping[str, Any]) -> None:
    """Write a policy folder, whole or not at all.

    `about` says where the policy comes from and is kept in `policy.json`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        flat = traverse_util.flatten_dict(jax.device_get(params), sep="/")
        save_file(
            {name: np.asarray(value) for name, value in flat.items()}, beside / "params.safetensors"
        )
        (beside / "tokenizer.model").write_bytes(speech.tokenizer.model)
        values = {"model": dataclasses.asdict(speech.model.config), "chat": "chatml", **about}
        (beside / "policy.json").write_text(json.dumps(values, indent=1) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load_policy(folder: Path, like: Params, speech: Speech) -> Params:
    """The parameters of a policy folder.

    Raises:
        UserError: it is no policy folder, is cut short, or holds another network or tokenizer than
            the config's.
    """
    file = folder / "params.safetensors"
    if not file.is_file() or not (folder / "policy.json").is_file():
        raise UserError(
            f"{folder} is not a policy folder (policy.json and params.safetensors); "
            "`make sft` writes one, and a run writes policies/<role>"
        )
    if (folder / "tokenizer.model").read_bytes() != speech.tokenizer.model:
        raise UserError(
            f"{folder} was trained with another tokenizer than config.policy.tokenizer names"
        )
    try:
        flat = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read ({error}); it may have been cut short") from error
    params = traverse_util.unflatten_dict(flat, sep="/")
    problem = _mismatch(like, params)
    if problem:
        raise UserError(f"{file} holds another network than config.policy.preset: {problem}")
    return params


def about_policy(folder: Path) -> dict[str, Any]:
    """What `policy.json` says. Raises UserError if it is missing or cut short."""
    file = folder / "policy.json"
    try:
        return json.loads(file.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(
            f"{file} cannot be read ({error}); the run writes it when it ends"
        ) from error


def _mismatch(want: Params, have: Params) -> str | None:
    wanted, found = _shapes(want), _shapes(have)
    for name in sorted(set(wanted) | set(found)):
        if wanted.get(name) != found.get(name):
            return f"{name} is {found.get(name, 'missing')}, not {wanted.get(name, 'wanted')}"
    return None


def _shapes(params: Params) -> dict[str, tuple[int, ...]]:
    flat = cast(dict[str, Any], traverse_util.flatten_dict(params, sep="/"))  # flax: any node
    return {name: leaf.shape for name, leaf in flat.items()}
