"""What has come of a cell and is not in its file yet: lines of JSON beside it, as they come.

```
<cell>.jsonl.part      dialogues of the block that is being played, where an endpoint speaks
<cell>.jsonl.audits    what an auditor behind an endpoint found, a call a line
```

Each line says under which key it came and which of the cell's dialogues it is of. A line that was
cut short, is damaged or of another key is dropped. Once the lines are in the cell's own file, they
go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ibrl_jax.whole import replacing

DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading a line raises that is not what we wrote."""


class Journal:
    """One such file. `rows` are its lines by the index of their dialogue, the last of each.

    `check` raises one of `DAMAGE` for a line that lacks what it is kept for.
    """

    def __init__(self, file: Path, key: str, check: Callable[[dict[str, Any]], object]) -> None:
        self._file, self._key, self._check = file, key, check
        self.rows: dict[int, dict[str, Any]] = {}

    def read(self) -> None:
        """Take what is there of this key; the file holds nothing else from then on."""
        if not self._file.is_file():
            return
        whole = True
        with self._file.open("rb") as lines:
            for line in lines:
                row = self._row(line)
                if row is None or row.get("key") != self._key:
                    whole = False
                else:
                    self.rows[row["index"]] = row
        if not whole:
            self._write()

    def keep(self, index: int, values: Mapping[str, Any]) -> None:
        """Add what came of a dialogue."""
        row = {**values, "key": self._key, "index": index}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as file:  # flushed as it closes: a kill loses nothing
            file.write(json.dumps(row).encode() + b"\n")
        self.rows[index] = row

    def forget(self, indices: Iterable[int]) -> None:
        """Drop what is kept of these dialogues."""
        gone = self.rows.keys() & set(indices)
        if gone:
            for index in gone:
                del self.rows[index]
            self._write()

    def _row(self, line: bytes) -> dict[str, Any] | None:
        """A line's object; None if it was cut short or is no such line."""
        if not line.endswith(b"\n"):
            return None
        try:
            row = json.loads(line)
            self._check(row)
            return row if isinstance(row["index"], int) else None
        except DAMAGE:
            return None

    def _write(self) -> None:
        """The file anew, whole or not at all; none where there is nothing."""
        if not self.rows:
            self._file.unlink(missing_ok=True)
            return
        with replacing(self._file) as beside:
            beside.write_bytes(b"".join(json.dumps(r).encode() + b"\n" for r in self.rows.values()))
