"""What of an evaluation is still to be done, by its `evaluation.json`.

```
unfinished: {dialogues, broken_off, calls, unaudited}
```

Dialogues of all cells and those that an endpoint's failure broke off; where somebody audits, the
dialogues that there is something to look at in, and those that an auditor has not answered in full.
Another start of the same command plays or asks these again, and leaves the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def unfinished(evaluation: Mapping[str, Any]) -> tuple[str, ...]:
    """A clause on each thing that is still to be done; none of a finished evaluation."""
    counts = evaluation.get("unfinished")
    if counts is None:  # it was written before these were counted
        seen = evaluation.get("coverage") or {}
        planned, scored = seen.get("planned", 0), seen.get("scored", 0)
        counts = {"dialogues": planned, "broken_off": planned - scored}
    found = []
    if broken := counts["broken_off"]:
        found.append(
            f"{broken:,} of {counts['dialogues']:,} dialogues "
            f"{'was' if broken == 1 else 'were'} broken off"
        )
    if counts.get("unaudited"):
        found.append(f"{audited(evaluation)} in full")
    return tuple(found)


def audited(evaluation: Mapping[str, Any]) -> str:
    """How many calls are audited, of how many; empty where that was not counted."""
    counts = evaluation.get("unfinished") or {}
    if "calls" not in counts:
        return ""
    return f"{counts['calls'] - counts['unaudited']:,} of {counts['calls']:,} calls audited"
