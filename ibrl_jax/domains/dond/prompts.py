"""The prompt of a seat: the rules, the same for all, then its own private input.

`full` holds every rule of the paper's Table 17 in our words; `short` squeezes them into two lines
for tiny policies. A user can name a folder that holds a `role.txt` of his own instead.
Placeholders:

    {input}    the six numbers "count0 value0 count1 value1 count2 value2"
    {parsed}   the same spoken: "item0 count 2 value 3 item1 count 1 value 4 item2 count 3 value 0"
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ibrl_jax.domains.base import Role, Scenario
from ibrl_jax.errors import UserError

BUILT_IN = ("full", "short")
USER_FILE = "role.txt"
_KNOWN = ("input", "parsed")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, kw_only=True)
class PromptTemplate:
    """A checked template; `source` is where it came from."""

    source: Path
    text: str

    def render(self, scenario: Scenario, role: Role) -> str:
        """The prompt of `role`: it holds that role's private observation and no other's."""
        observation = scenario.private[role]
        counts, values = observation["counts"], observation["values"]
        filling = {
            "input": " ".join(f"{c} {v}" for c, v in zip(counts, values, strict=True)),
            "parsed": " ".join(
                f"item{j} count {c} value {v}"
                for j, (c, v) in enumerate(zip(counts, values, strict=True))
            ),
        }
        return _PLACEHOLDER.sub(lambda match: filling[match[1]], self.text)


def load_prompt(name: str) -> PromptTemplate:
    """`full`, `short`, or the path of a folder with a `role.txt`.

    Raises UserError if there is no such file, if it is no UTF-8, if it lacks `{parsed}`, or if it
    has an unknown placeholder.
    """
    if name in BUILT_IN:
        path = Path(__file__).parent / "prompts" / f"{name}.txt"
    else:
        path = Path(name) / USER_FILE
        if not path.is_file():
            raise UserError(
                f"config.dond.prompt is {name!r}, but {path} does not exist; "
                f"use full, short, or a folder that holds a {USER_FILE}."
            )
    try:
        text = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is no UTF-8 text ({error.reason}); a prompt is a text file in UTF-8."
        ) from error
    found = _PLACEHOLDER.findall(text)
    if "parsed" not in found:
        raise UserError(
            f"{path} lacks the placeholder {{parsed}}, where the private input goes; add it at "
            "the end."
        )
    for placeholder in found:
        if placeholder not in _KNOWN:
            raise UserError(
                f"{path} has the unknown placeholder {{{placeholder}}}; the known ones are "
                "{input} and {parsed}."
            )
    return PromptTemplate(source=path, text=text)
