"""A policy as a folder.

```
params.safetensors     the parameters, by their path in the tree; or, where only these were trained,
adapters.safetensors   the adapters
policy.json            the network, the chat format, the base of the adapters, where it comes from,
                       and the hashes of the other files
tokenizer.*            the files of its tokenizer, under their own names
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
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from ibrl_jax.dialogue.policy import Speech
from ibrl_jax.errors import UserError
from ibrl_jax.models.hf_folder import TYPES
from ibrl_jax.models.params import Params
from ibrl_jax.trainer import written
from ibrl_jax.trainer.written import ABOUT, ADAPTERS, WHOLE

_HOW_IT_RUNS = ("dtype", "remat", "unroll", "attention", "attention_block")
"""Fields of a network that change how it is computed, not what; `chunk` of its delta layers too."""


def save_policy(
    folder: Path,
    params: Params,
    speech: Speech,
    about: Mapping[str, Any],
    *,
    base: Mapping[str, Any] | None = None,
    keep: bool = False,
) -> None:
    """Write a policy folder, whole or not at all; what somebody else put there stays.

    Args:
        params: what trains of the policy.
        about: where the policy comes from, kept in `policy.json`.
        base: what the adapters were trained on; None for all parameters.
        keep: a policy that is there by now stays as it is.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder.parent) as alone:
        if alone:  # then nobody else writes here, and this is what a kill left
            for left in folder.parent.glob(f".{folder.name}.*"):
                _clear(left, folder)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write(beside / "new", params, speech, {**about, **_lora(speech, base)})
            if not (keep and (folder / ABOUT).is_file()):
                if folder.is_dir():
                    folder.rename(beside / "old")
                (beside / "new").rename(folder)
        finally:
            _clear(beside, folder)


def _clear(beside: Path, folder: Path) -> None:
    """Remove what a save used, wherever it ended; what somebody else had put into the policy that
    it replaced goes on into the new one."""
    old = beside / "old"
    if old.is_dir() and folder.is_dir():
        written.move_others(old, folder)
    elif old.is_dir():  # it ended between the two renames
        old.rename(folder)
    shutil.rmtree(beside, ignore_errors=True)


def load_policy(
    folder: Path, like: Params, speech: Speech, base: Mapping[str, Any] | None = None
) -> Params:
    """What was trained of the policy of a folder.

    Args and errors are those of `check_policy`, and weights that were damaged since are refused.
    """
    file = check_policy(folder, like, speech, base)
    written.check(file)
    try:
        return traverse_util.unflatten_dict(load_file(file), sep="/")
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error


def check_policy(
    folder: Path, like: Params, speech: Speech, base: Mapping[str, Any] | None = None
) -> Path:
    """The file of a policy's weights, of which only the header is read.

    Args:
        like: the same tree, as arrays or as their shapes and types.
        base: what adapters must have been trained on.

    Raises:
        UserError: it is no policy folder, is cut short, or holds another network, tokenizer or chat
            format than the config's, or adapters of another kind or for another base.
    """
    if not is_policy(folder):
        raise UserError(
            f"{folder} is not a policy folder (policy.json and {WHOLE}, or {ADAPTERS}); "
            "`make sft` writes one, and a run writes policies/<role>"
        )
    _check_about(folder, speech)
    _check_lora(folder, _lora(speech, base).get("lora"))
    _check_tokenizer(folder, speech)
    file = folder / _file(speech)
    try:
        with safe_open(file, framework="numpy") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            found = {
                name: f"{TYPES.get(x.get_dtype(), x.get_dtype())}{list(x.get_shape())}"
                for name, x in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise _unreadable(file, error) from error
    wanted = _kinds(_flat(like))
    for name in sorted(set(wanted) | set(found)):
        if wanted.get(name) != found.get(name):
            raise UserError(
                f"{file} holds another network than config.policy.preset: {name} is "
                f"{found.get(name, 'missing')}, not {wanted.get(name, 'wanted')}"
            )
    return file


def _unreadable(file: Path, error: Exception) -> UserError:
    return UserError(f"{file} cannot be read ({error}); it may have been cut short")


def is_policy(folder: Path) -> bool:
    """Whether a folder holds a policy, of all parameters or of adapters."""
    parts = [(folder / name).is_file() for name in (WHOLE, ADAPTERS)]
    return any(parts) and (folder / ABOUT).is_file()


def about_policy(folder: Path) -> dict[str, Any]:
    """What `policy.json` says. Raises UserError if it is missing or cut short."""
    file = folder / ABOUT
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
    save_file({name: np.asarray(value) for name, value in flat.items()}, folder / _file(speech))
    (folder / _file(speech)).chmod(0o644)  # safetensors lets its owner alone read
    for name, content in speech.tokenizer.files.items():
        (folder / name).write_bytes(content)
    network = {"model": dataclasses.asdict(speech.model.config), "chat": speech.chat.name}
    values = {**network, **about, "files": written.hashes(folder)}
    (folder / ABOUT).write_text(json.dumps(values, indent=1) + "\n")


def _file(speech: Speech) -> str:
    return WHOLE if speech.model.lora is None else ADAPTERS


def _lora(speech: Speech, base: Mapping[str, Any] | None) -> dict[str, Any]:
    """What `policy.json` says of adapters; nothing where there are none."""
    lora = speech.model.lora
    if lora is None:
        return {}
    return {"lora": {**dataclasses.asdict(lora), "targets": list(lora.targets), "base": base}}


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
    network = _what(told) if isinstance(told, Mapping) else {}
    for name, wanted in _what(dataclasses.asdict(speech.model.config)).items():
        if network.get(name, _NOTHING) != wanted:
            raise UserError(
                f"{folder} holds another network than config.policy.preset: {name} is "
                f"{network.get(name, 'missing')}, not {wanted}"
            )
    if about.get("chat") != speech.chat.name:
        raise UserError(
            f"{folder} was trained in the chat format {about.get('chat')!r}, "
            f"and the config's is {speech.chat.name!r}"
        )


_NOTHING = object()  # equal to no value, None included


def _what(network: Mapping[str, Any]) -> dict[str, Any]:
    """What a network computes, without how, in the form that JSON gives back."""
    values = {name: value for name, value in network.items() if name not in _HOW_IT_RUNS}
    if isinstance(delta := values.get("delta"), Mapping):
        values["delta"] = {name: value for name, value in delta.items() if name != "chunk"}
    return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def _check_lora(folder: Path, wanted: Mapping[str, Any] | None) -> None:
    """Raises UserError if a folder has adapters of another kind or for another base."""
    found = about_policy(folder).get("lora")
    if not isinstance(found, Mapping):
        if wanted is not None:
            raise UserError(
                f"{folder} holds all parameters, and config.lora.rank is {wanted['rank']}; "
                "set config.lora.rank=0, or take it as config.policy.start, under new adapters"
            )
        return
    if wanted is None:
        raise UserError(
            f"{folder} holds adapters of rank {found.get('rank')}, and config.lora.rank is 0"
        )
    for name in ("rank", "alpha", "targets"):
        if found.get(name) != wanted[name]:
            raise UserError(
                f"{folder} holds adapters with {name} {found.get(name)}, "
                f"and config.lora.{name} is {wanted[name]}"
            )
    if _identity(found.get("base")) != _identity(wanted["base"]):
        raise UserError(
            f"{folder} holds adapters for another base ({_named(found.get('base'))}) than the "
            f"config's ({_named(wanted['base'])})"
        )


def _identity(base: Any) -> Any:
    """What makes a base the same wherever it lies."""
    if not isinstance(base, Mapping):
        return None
    return base.get("fingerprint", base.get("seed"))


def _named(base: Any) -> str:
    if not isinstance(base, Mapping):
        return "none"
    where = base.get("folder", base.get("policy"))
    return f"{where}, {base.get('fingerprint')}" if where else f"random, seed {base.get('seed')}"


def _check_tokenizer(folder: Path, speech: Speech) -> None:
    """Raises UserError if the folder does not hold the tokenizer's files as they are."""
    for name, content in speech.tokenizer.files.items():
        try:
            found = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(
                f"{folder / name} cannot be read ({error.strerror}); "
                "a policy folder holds the tokenizer that it was trained with"
            ) from error
        if found != content:
            raise UserError(
                f"{folder} was trained with another tokenizer than config.policy.tokenizer names"
            )


def _flat(params: Params) -> dict[str, Any]:
    return cast(dict[str, Any], traverse_util.flatten_dict(params, sep="/"))  # flax: any node


def _kinds(flat: Mapping[str, Any]) -> dict[str, str]:
    """Type and shape of each array, such as `float32[640, 64]`."""
    return {name: f"{leaf.dtype}{list(leaf.shape)}" for name, leaf in flat.items()}
