"""Configs: made of the defaults, read from a file and the command line, and checked.

What settings there are stands in `ibrl_jax.settings`.

An experiment is a file with a `get_config()` that starts from `default_config()` and changes a few
values. The command line changes more: `--config=configs/dond/mini.py --config.seed=1
--config.isolation.reward=shared`. `load` does both and checks the result; a mistake is one
`UserError` that names the key and what would be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax.checks import check_together
from ibrl_jax.config_file import read_config
from ibrl_jax.errors import UserError
from ibrl_jax.fields import Field, listed, suggest
from ibrl_jax.settings import ENDPOINT, OPEN, ROLE, ROLES, SCHEMA, TELESALES


def default_config(domain: str = "dond") -> ConfigDict:
    """Every setting at its default; keys are locked, so a typo in a config file cannot pass.

    Raises:
        UserError: there is no such domain.
    """
    if domain not in ROLES:
        raise UserError(f"there is no domain {domain!r}; there are {', '.join(ROLES)}")
    config = ConfigDict(_defaults(_schema(domain)))
    for key, value in TELESALES.items() if domain == "telesales" else ():
        *parents, last = key.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = value
    config.lock()
    config.endpoints.unlock()  # its entries are the user's to name
    return config


def endpoint(**values: Any) -> ConfigDict:
    """The settings of one endpoint, for `config.endpoints.<name>`."""
    unknown = sorted(set(values) - set(ENDPOINT))
    if unknown:
        raise UserError(f"an endpoint has no setting {unknown[0]!r}; it has {', '.join(ENDPOINT)}")
    return ConfigDict({**_defaults(ENDPOINT), **values})


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """The config of a file, with overrides of the form `--config.key=value`, checked.

    Raises:
        UserError: the file is missing or fails, a key does not exist, or a value is not allowed.
    """
    return override(read_config(path), overrides)


def override(config: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """The same config, changed in place by options of the form `--config.key=value`, and checked.

    Raises:
        UserError: a key does not exist, or a value is not allowed.
    """
    for _ in _walk_all(config):  # a file may have put a value where a group must stand
        pass
    with config.unlocked(), config.ignore_type():
        for option in overrides:
            _override(config, option)
    return check(config)


def _override(config: ConfigDict, option: str) -> None:
    """Change one setting of a config that is unlocked."""
    key, equals, text = option.removeprefix("--").removeprefix("config.").partition("=")
    if not option.startswith("--config.") or not equals:
        raise UserError(f"{option!r} is not an option; a setting is changed by --config.key=value")
    field = _field(key, _schema(config.domain))
    value = field.parse(text)
    problem = field.problem(value)
    if problem:
        raise UserError(f"config.{key} {problem} ({field.doc})")
    node = config
    *parents, last = key.split(".")
    for parent in parents:
        if parent not in node:  # the first setting of an endpoint that the command line names
            node[parent] = endpoint()
        node = node[parent]
    node[last] = value


def check(config: ConfigDict) -> ConfigDict:
    """The config itself, with every value checked alone and against the others.

    Raises:
        UserError: what is wrong, where, and what would be right.
    """
    for key, field, value in _walk_all(config):
        problem = field.problem(field.coerce(value))
        if problem:
            raise UserError(f"config.{key} {problem} ({field.doc})")
    check_together(config, ROLES[config.domain])
    return config


def to_dict(config: ConfigDict) -> dict[str, Any]:
    """Plain nested mappings, JSON-able (tuples become lists there)."""
    return config.to_dict()


def from_dict(values: Mapping[str, Any]) -> ConfigDict:
    """The config that `to_dict` came from, after a round trip through JSON.

    Raises:
        UserError: not all settings are what they must be.
    """
    try:
        config = ConfigDict(listed(values))
    except ValueError as error:  # a dot in a name
        raise UserError(f"a config holds a name that none can have ({error})") from error
    for key, field, value in list(_walk_all(config)):
        *parents, last = key.split(".")
        node = config
        for parent in parents:
            node = node[parent]
        node[last] = field.coerce(value)
    return check(config.lock())


def describe() -> Iterator[tuple[str, Field]]:
    """Every key with its field, for the documentation."""
    for key, field, _ in _walk_all(default_config()):
        yield key, field


def _defaults(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.default if isinstance(v, Field) else _defaults(v) for k, v in schema.items()}


def _schema(domain: Any) -> dict[str, Any]:
    """All settings of a domain; of one that does not exist, those of the first."""
    roles = ROLES.get(domain, ROLES["dond"]) if isinstance(domain, str) else ROLES["dond"]
    return {**SCHEMA, "roles": dict.fromkeys(roles, ROLE)}


def _walk_all(config: ConfigDict) -> Iterator[tuple[str, Field, Any]]:
    """Every key with its field and value. Raises UserError where groups are not as they must be."""
    domain, roles = config.get("domain"), config.get("roles")
    if isinstance(domain, str) and domain in ROLES and isinstance(roles, ConfigDict):
        known = {role for names in ROLES.values() for role in names}
        if set(roles) != set(ROLES[domain]) and set(roles) <= known:
            raise UserError(
                f"config.roles has {', '.join(sorted(roles))}, and the roles of {domain} are "
                f"{', '.join(ROLES[domain])}; its configs start from default_config({domain!r})"
            )
    if isinstance(domain, str) and domain in ROLES and domain not in config:
        raise UserError(f"config.{domain} is missing; start from default_config({domain!r})")
    return _walk(_schema(domain), config, "")


def _walk(schema: Mapping[str, Any], config: Any, prefix: str) -> Iterator[tuple[str, Field, Any]]:
    if not isinstance(config, ConfigDict | Mapping):
        raise UserError(f"config.{prefix[:-1]} must be a group of settings, not {config!r}")
    for name in config:
        entry = schema.get(name)
        key = prefix + name
        if entry is None:
            raise UserError(f"config.{key} does not exist{suggest(name, schema)}")
        if isinstance(entry, Field):
            yield key, entry, config[name]
        elif key in OPEN:
            if not isinstance(config[name], ConfigDict | Mapping):
                raise UserError(f"config.{key} must be a group of settings, not {config[name]!r}")
            for item in config[name]:
                yield from _walk(OPEN[key], config[name][item], f"{key}.{item}.")
        else:
            yield from _walk(entry, config[name], key + ".")
    for name in schema:
        if name not in config:
            if not prefix and name in ROLES:
                continue  # of a domain that came after this config was written
            raise UserError(f"config.{prefix}{name} is missing; start from default_config()")


def _field(key: str, schema: Mapping[str, Any]) -> Field:
    node: Any = schema
    path = ""
    for part in key.split("."):
        if isinstance(node, Field):
            raise UserError(f"config.{path} is one value and has no {part!r}")
        if path in OPEN and part not in node:
            node = {**node, part: OPEN[path]}
        if part not in node:
            raise UserError(f"config.{key} does not exist{suggest(part, node)}")
        node = node[part]
        path = f"{path}.{part}" if path else part
    if not isinstance(node, Field):
        raise UserError(
            f"config.{key} is a group of settings ({', '.join(node)}); name one of them"
        )
    return node
