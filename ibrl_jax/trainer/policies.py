"""A policy as a folder.

```
params.safetensors   the parameters, by their path in the tree
policy.json          the network, the chat format, where the policy comes from
tokenizer.model
```
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from flax import traverse_util
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError
from ibrl_jax.models.params import Params

START = "start"
"""The name of the policy that every role grows from, in a run's `policies/` and in reports."""

_HOW_IT_RUNS = ("dtype", "remat", "unroll", "attention_block")
"""Fields of a network that change how it is computed, not what."""


def save_policy(
    folder: Path, params: Params, speech: Speech, about: Mapping[str, Any], *, keep: bool = False
) -> None:
    """Write a policy folder, whole or not at all.

    Args:
        about: where the policy comes from, kept in `policy.json`.
        keep: a policy that is there by now stays as it is.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder.parent) as alone:
        if alone:  # then nobody else writes here, and this is what a kill left
            for left in folder.parent.glob(f".{folder.name}.*"):
                shutil.rmtree(left, ignore_errors=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write(beside / "new", params, speech, about)
            if not (keep and (folder / "policy.json").is_file()):
                if folder.exists():
                    folder.rename(beside / "old")
                (beside / "new").rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)


def load_policy(folder: Path, like: Params, speech: Speech) -> Params:
    """The parameters of a policy folder.

    Raises:
        UserError: it is no policy folder, is cut short, or holds another network, tokenizer or chat
            format than the config's.
    """
    file = folder / "params.safetensors"
    if not file.is_file() or not (folder / "policy.json").is_file():
        raise UserError(
            f"{folder} is not a policy folder (policy.json and params.safetensors); "
            "`make sft` writes one, and a run writes policies/<role>"
        )
    _check_about(folder, speech)
    try:
        tokenizer = (folder / "tokenizer.model").read_bytes()
    except OSError as error:
        raise UserError(
            f"{folder / 'tokenizer.model'} cannot be read ({error.strerror}); "
            "a policy folder holds the tokenizer that it was trained with"
        ) from error
    if tokenizer != speech.tokenizer.model:
        raise UserError(
            f"{folder} was trained with another tokenizer than config.policy.tokenizer names"
        )
    try:
        flat = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read ({error}); it may have been cut short") from error
    wanted, found = _kinds(_flat(like)), _kinds(flat)
    for name in sorted(set(wanted) | set(found)):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{file} holds another network than config.policy.preset: {name} is "
                f"{found.get(name, 'missing')}, not {wanted.get(name, 'wanted')}"
            )
    return traverse_util.unflatten_dict(flat, sep="/")


def about_policy(folder: Path) -> dict[str, Any]:
    """What `policy.json` says. Raises UserError if it is missing or cut short."""
    file = folder / "policy.json"
    try:
        about = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read ({error}); it is missing or was cut short"
        ) from error
    if not isinstance(about, dict):
        raise UserError(
            f"{file} holds no JSON object; it was damaged, delete the folder to make it anew"
        )
    return about


def _write(folder: Path, params: Params, speech: Speech, about: Mapping[str, Any]) -> None:
    folder.mkdir()
    flat = _flat(jax.device_get(params))
    save_file(
        {name: np.asarray(value) for name, value in flat.items()}, folder / "params.safetensors"
    )
    (folder / "tokenizer.model").write_bytes(speech.tokenizer.model)
    values = {"model": dataclasses.asdict(speech.model.config), "chat": speech.chat.name, **about}
    (folder / "policy.json").write_text(json.dumps(values, indent=1) + "\n")


@contextmanager
def _alone_in(folder: Path) -> Iterator[bool]:
    """Policies of one folder are written one after another; False where a disk has no locks."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            alone = True
        except OSError:
            alone = False
        yield alone
    finally:
        os.close(handle)


def _check_about(folder: Path, speech: Speech) -> None:
    """Raises UserError if `policy.json` tells of another network or chat format."""
    about = about_policy(folder)
    told = about.get("model")
    network = told if isinstance(told, Mapping) else {}
    for name, wanted in dataclasses.asdict(speech.model.config).items():
        if name not in _HOW_IT_RUNS and network.get(name) != wanted:
            raise UserError(
                f"{folder} holds another network than config.policy.preset: {name} is "
                f"{network.get(name, 'missing')}, not {wanted}"
            )
    if about.get("chat") != speech.chat.name:
        raise UserError(
            f"{folder} was trained in the chat format {about.get('chat')!r}, "
            f"and the config's is {speech.chat.name!r}"
        )


def _flat(params: Params) -> dict[str, Any]:
    return cast(dict[str, Any], traverse_util.flatten_dict(params, sep="/"))  # flax: any node


def _kinds(flat: Mapping[str, Any]) -> dict[str, str]:
    """Type and shape of each array, such as `float32[640, 64]`."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in flat.items()}
