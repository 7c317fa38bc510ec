"""Runs the Python file of an experiment."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from ml_collections import ConfigDict

from ibrl_jax.errors import UserError


def read_config(path: str) -> ConfigDict:
    """What the `get_config` of a file gives, unchecked.

    Raises:
        UserError: the file is missing or fails, or gives something else.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"there is no config file {path}; configs/ holds one an experiment")
    spec = importlib.util.spec_from_file_location(f"_ibrl_config_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file; a config is one with a get_config()")
    module = importlib.util.module_from_spec(spec)
    try:
        # Compiled anew: two versions of a file within a second would share Python's compiled one.
        exec(compile(file.read_bytes(), path, "exec"), module.__dict__)
        config = module.get_config()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"the config {path} fails: {_sentence(error)}") from error
    if not isinstance(config, ConfigDict):
        raise UserError(f"get_config() of {path} gives {config!r}, not default_config() changed")
    return config


def _sentence(error: Exception) -> str:
    """What went wrong; a locked ConfigDict would list all keys beside the unknown one."""
    text = " ".join(str(error).strip("'\"").split()).replace("\\n", " ")
    if unknown := re.search(r'Key "(.+?)" does not exist', text):
        close = re.search(r'Did you mean "(.+?)"', text)
        hint = f"; did you mean {close[1]!r}?" if close else ""
        return f"there is no setting {unknown[1]!r}{hint}"
    return text or type(error).__name__
