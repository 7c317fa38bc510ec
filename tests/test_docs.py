"""The documents say what the code does: every setting, experiment, job, end reason and error code.

A mismatch is answered by the line that would be right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ibrl_jax.config import default_config, describe, load
from ibrl_jax.domains.dond import DEVELOPMENT_FAMILIES, HELD_OUT_FAMILIES
from ibrl_jax.domains.dond.grammar import ErrorCode
from ibrl_jax.domains.dond.metrics import MEASURES
from ibrl_jax.domains.dond.referee import EndReason
from ibrl_jax.domains.telesales.customers import FAMILIES as CUSTOMERS
from ibrl_jax.domains.telesales.metrics import measured
from ibrl_jax.domains.telesales.referee import EndReason as CallEnd
from ibrl_jax.domains.telesales.sellers import SELLERS
from ibrl_jax.fields import Field
from ibrl_jax.settings import ENDPOINT

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
CONFIGS = DOCUMENTS["docs/configs.md"]
OURS = [p for domain in ("dond", "telesales") for p in (ROOT / "configs" / domain).glob("*.py")]
FILES = [p for p in OURS if p.stem != "__init__"]
EXPERIMENTS = sorted(p.stem if p.parent.name == "dond" else f"telesales/{p.stem}" for p in FILES)
"""As the documents name them: those of the second domain with their folder."""


def shown(value: Any) -> str:
    """A value as the documents write it: lists without brackets, numbers in their shortest form."""
    if isinstance(value, tuple):
        return ", ".join(map(shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys with their values as shown."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, shown(value)


def settings(name: str) -> dict[str, str]:
    """Every setting of an experiment, or the defaults of a domain."""
    if name.startswith("defaults"):
        config = default_config(name.removeprefix("defaults of ") if " " in name else "dond")
    else:
        config = load(str(ROOT / "configs" / (name if "/" in name else f"dond/{name}")) + ".py")
    return dict(flat(config.to_dict()))


def fields() -> Iterator[tuple[str, Field]]:
    """Every setting, by the name that the documents give it: roles and endpoints have any name."""
    for key, field in describe():
        yield re.sub(r"^roles\.\w+\.", "roles.<role>.", key), field
    for key, field in ENDPOINT.items():
        yield f"endpoints.<name>.{key}", field


def documented() -> dict[str, tuple[str, str]]:
    """Setting -> (default, the rest of its row) in docs/configs.md."""
    rows = re.findall(r"^\| `([\w.<>]+)` \| (`[^`]+`|empty) \| (.+) \|$", CONFIGS, re.MULTILINE)
    assert len({key for key, *_ in rows}) == len(rows), "a setting has two rows"
    return {key: (default.strip("`"), meaning) for key, default, meaning in rows}


def test_every_setting_stands_in_the_table_with_its_default_and_its_choices():
    found = documented()
    assert set(found) == {key for key, _ in fields()}
    for key, field in fields():
        default, meaning = found[key]
        right = shown(field.default) or "empty"
        assert default == right, f"docs/configs.md: the default of {key} is {right}"
        for choice in field.choices:
            named = f"`{choice}`" in meaning or choice == field.default
            assert named, f"docs/configs.md: {key} may be {choice} too"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_stands_with_exactly_what_it_changes(name: str):
    section = re.search(
        rf"^### `{name}\.py`\n\n(.*?)(?=\n##|\Z)", CONFIGS, re.DOTALL | re.MULTILINE
    )
    assert section is not None, f"docs/configs.md has no section ### `{name}.py`"
    base = re.match(r"On (?:the (defaults(?: of \w+)?)|`([\w/-]+)\.py`)", section[1])
    assert base is not None, "a section begins with what it builds on"
    before, now = settings(base[1] or base[2]), settings(name)
    assert now.pop("name") == name.replace("/", "-"), (
        "an experiment's runs lie under the name of its file"
    )
    changed = {f"{key} = {value}" for key, value in now.items() if before.get(key) != value}
    block = re.search(r"^```\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)
    assert block is not None
    wrong = "docs/configs.md, {}.py: the block should read\n{}"
    assert set(block[1].splitlines()) == changed, wrong.format(name, "\n".join(sorted(changed)))


def test_a_setting_quoted_with_a_value_has_it_in_some_config():
    values: dict[str, set[str]] = {}
    for name in ("defaults", "defaults of telesales", *EXPERIMENTS):
        for key, value in settings(name).items():
            values.setdefault(key, set()).add(value)
    quoted = [
        (document, key, value)
        for document, text in DOCUMENTS.items()
        for key, value in re.findall(r"`([a-z_]+(?:\.\w+)+) = ([^`]+)`", text)
    ]
    assert quoted
    for document, key, value in quoted:
        assert value in values.get(key, ()), f"{document} quotes {key} = {value}"


def test_every_setting_that_a_command_changes_exists_and_takes_the_value():
    for document, text in DOCUMENTS.items():
        for line in re.findall(r"^make .*", text, re.MULTILINE):
            options = re.findall(r"--config\.[\w.]+=[^\s\"]+", line)
            config = re.search(r"CONFIG=(\S+)", line)
            file = config[1] if config else "configs/dond/mini.py"
            load(str(ROOT / file), [option for option in options if "<" not in option])
            isolated = [o for o in options if ".isolation." in o or ".stabilise." in o]
            named = any(o.startswith("--config.name=") for o in options)
            assert named or not isolated, f"{document}: another config needs another name: {line}"


def test_the_readme_lists_every_job():
    jobs = re.findall(r"^([a-z][a-z0-9-]*):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for job in jobs:
        assert f"`make {job}" in DOCUMENTS["README.md"] or job == "help", f"README.md lacks {job}"


def test_every_label_that_a_run_writes_is_explained():
    text = DOCUMENTS["docs/reading-the-report.md"]
    first_try = [f"first_try_{m.key}" for m in MEASURES if m.first_try]
    for label in (*EndReason, *ErrorCode, *(m.key for m in MEASURES), *first_try):
        assert f"`{label}`" in text, f"docs/reading-the-report.md lacks {label}"
    text = DOCUMENTS["docs/telesales.md"]
    for label in (*CallEnd, *(m.key for m in measured(3)), *SELLERS, *CUSTOMERS):
        assert f"`{label}`" in text, f"docs/telesales.md lacks {label}"


def test_every_scripted_family_is_named():
    text = DOCUMENTS["docs/counterparts.md"]
    for family in (*DEVELOPMENT_FAMILIES, *HELD_OUT_FAMILIES):
        assert f"`{family}`" in text, f"docs/counterparts.md lacks {family}"


def test_what_how_it_works_names_is_there() -> None:
    """Every `Class.attribute` and `path/file.py` in backticks."""
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    package = ROOT / "ibrl_jax"
    for path in set(re.findall(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`", text)):
        assert (package / path).is_file() or list(package.rglob(path)) or (ROOT / path).is_file(), (
            path
        )
    code = "\n".join(file.read_text() for file in package.rglob("*.py"))
    for name, attribute in set(re.findall(r"`([A-Z]\w+)\.(\w+)(?:\(\))?`", text)):
        assert re.search(rf"^class {name}\b", code, re.MULTILINE), name
        assert re.search(rf"(def {attribute}\b|\b{attribute}:|self\.{attribute}\b)", code), (
            attribute
        )
