"""How an evaluation names policies.

```
frozen:<run folder>:<role>              the final policy of a run
frozen:<run folder>:<role>@<iteration>  a snapshot of it
frozen:<run folder>:start               what its roles grew from
frozen:<policy folder>
scripted:<family>                       `scripted:` may be left out
api:<endpoint>, api:<endpoint>:<form>
```

An entry of a list of them may have a label before an equals sign; a column may pool several names,
with plus signs between them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KINDS = ("frozen", "scripted", "api")
ALL_HELD_OUT = "all held-out"
"""The column in which an evaluation pools its held-out ones."""
CROSSPLAY = ("crossplay.csv", "crossplay.json", "crossplay.svg", "crossplay.png")
"""The files of an evaluation's cross-play."""

_LABEL = re.compile(r"([^:=/+]+)=(.*)", re.DOTALL)
_NEXT = re.compile(r"\s*\+\s*(?=(?:frozen|scripted|api):)")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An entry of a list: its label (empty if it has none), and the names that it holds."""

    label: str
    names: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The label, or what the names say without their kinds."""
        return self.label or "+".join(bare(name) for name in self.names)


def read_entry(text: str) -> Entry:
    """`label=name+name` taken apart; names are given in full. An empty name stays empty."""
    labelled = _LABEL.fullmatch(text)
    label, rest = (labelled[1].strip(), labelled[2]) if labelled else ("", text)
    names: list[str] = []
    for part in _NEXT.split(rest):
        head, colon, tail = part.rpartition(":")
        if head == "frozen":  # a path alone, which may hold a plus sign
            names.append(part)
        else:
            first, *others = tail.split("+")
            names += [head + colon + first, *others]
    return Entry(label=label, names=tuple(full(name.strip()) for name in names))


def full(name: str) -> str:
    """A name with its kind; one without any is a scripted family's."""
    return name if ":" in name or not name else f"scripted:{name}"


def kind_of(name: str) -> str:
    return name.partition(":")[0]


def bare(name: str) -> str:
    """A name without its kind."""
    return name.partition(":")[2]
