"""The folder of a run: what is in it, and how it survives being stopped at any instant.

```
runs/<name>/seed<k>/
  config.json  contents.json  metrics.jsonl  dialogues/iter_000012.jsonl  checkpoints/<iteration>/
  policies/<role>/  policies/<role>@<iteration>/  tensorboard/
  evaluation.json  outcomes.csv  evaluation/  report.html  summary.json
  log.txt (where `make seeds` or a table started it)
```

Whatever is written whole is written beside its place and moved there. Rows of iterations that a
checkpoint does not cover are dropped when a run goes on, since they will be made again, bit for
bit.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from ibrl_jax import config as configs
from ibrl_jax.errors import UserError
from ibrl_jax.names import CROSSPLAY
from ibrl_jax.settings import ROLES
from ibrl_jax.trainer import written
from ibrl_jax.whole import replacing

MAY_DIFFER = (
    "iterations",
    "run",
    "rewards.min_coverage",
    "pipeline.early_updates",
    "evaluation",
    "statistics",
    "mesh",
    "placement",
    "hosts",
    "endpoints.*.base_url",
    "endpoints.*.key_env",
)
"""What may change between a run's starts: how far it goes, what it writes, how it is measured, and
where it runs."""


def may_differ(config: ConfigDict) -> tuple[str, ...]:
    """`MAY_DIFFER` of a config, with the settings of other domains.

    With `pipeline.max_staleness=1` how often it is saved shapes a run, since it catches up there.
    """
    others = (domain for domain in ROLES if domain != config.domain)
    if not config.pipeline.max_staleness:
        return (*MAY_DIFFER, *others)
    of_run = (f"run.{key}" for key in config.run if key != "checkpoint_every")
    return (*(key for key in MAY_DIFFER if key != "run"), *of_run, *others)


class RunFolder:
    """Paths and writers of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, config: ConfigDict) -> RunFolder:
        return cls(Path(config.run.root) / config.name / f"seed{config.seed}")

    @classmethod
    def existing(cls, path: str) -> RunFolder:
        """The folder of a finished or stopped run.

        Raises:
            UserError: there is no run there.
        """
        folder = cls(Path(path))
        if not (folder.path / "config.json").is_file():
            raise UserError(
                f"{path} is not a run folder (it has no config.json); "
                "runs lie in runs/<name>/seed<seed>"
            )
        return folder

    def config(self) -> ConfigDict:
        return configs.from_dict(read_json(self.path / "config.json"))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the folder while a run writes to it. Raises UserError if another process does."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # as under /proc, where nobody can make one
            raise UserError(
                f"{self.path} cannot be made ({error.strerror}); choose another --config.run.root"
            ) from error
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is training in {self.path}; wait for it, or choose another "
                    "--config.name or --config.seed"
                ) from error
            try:
                yield
            except UserError:
                if os.listdir(self.path) == [".lock"]:  # nothing came of it
                    shutil.rmtree(self.path)
                raise

    def check(self, config: ConfigDict) -> None:
        """Raises UserError if the folder holds a run of another config that got anywhere, or this
        one's beyond its last iteration."""
        if self.begun and not (self.path / "config.json").is_file():
            raise UserError(
                f"{self.path} holds a run without its config.json; restore that file, or choose "
                "another --config.name or --config.seed"
            )
        difference = self._difference(config)
        if difference and self.begun:
            key, old, new = difference
            raise UserError(
                f"{self.path} holds a run with config.{key} = {old!r}, not {new!r}; "
                "choose another --config.name or --config.seed, or delete the folder"
            )
        if self.saved > config.iterations:
            raise UserError(
                f"{self.path} has run {self.saved} iterations by now, and config.iterations is "
                f"{config.iterations}; give it {self.saved} or more, or choose another "
                "--config.name or --config.seed"
            )

    def claim(self, config: ConfigDict) -> None:
        """Make the folder this config's; what another one left before its first iteration goes."""
        if self._difference(config):
            for name in self._own_policies():
                written.forget(self.policy(name))
        write_json(self.path / "config.json", configs.to_dict(config))

    @property
    def begun(self) -> bool:
        """Whether an iteration was recorded or saved here."""
        return self.metrics.is_file() or bool(self._checkpoints())

    @property
    def saved(self) -> int:
        """The iterations that the newest checkpoint holds; 0 where there is none."""
        return max((int(p.name) for p in self._checkpoints() if p.name.isdecimal()), default=0)

    def _checkpoints(self) -> list[Path]:
        saved = self.path / "checkpoints"
        return [*saved.iterdir()] if saved.is_dir() else []

    @property
    def ended(self) -> int:
        """The iterations that the run has ended with, by its summary; 0 where it never ended."""
        file = self.path / "summary.json"
        said = read_json(file).get("iterations") if file.is_file() else 0
        return said if isinstance(said, int) else 0

    def _difference(self, config: ConfigDict) -> tuple[str, Any, Any] | None:
        file = self.path / "config.json"
        if not file.is_file():
            return None
        return difference(read_json(file), as_json(config), may_differ(config))

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def dialogues(self, iteration: int) -> Path:
        return self.path / "dialogues" / f"iter_{iteration:06d}.jsonl"

    def policy(self, role: str) -> Path:
        return self.path / "policies" / role

    def _own_policies(self) -> list[str]:
        """The names in `policies/` that a run gives: its start, its roles, their snapshots."""
        roles = "|".join(role for names in ROLES.values() for role in names)
        ours = re.compile(rf"{written.START}|({roles})(@\d+)?")
        there = sorted((self.path / "policies").glob("*"))
        return [path.name for path in there if path.is_dir() and ours.fullmatch(path.name)]

    def need_policies(self, names: Iterable[str]) -> None:
        """Raises UserError unless the run has ended and left these policies."""
        if not all((self.policy(name) / "policy.json").is_file() for name in names):
            raise UserError(
                f"{self.path} has no policies yet; a run writes them when it ends: give the same "
                "make train command again, and it goes on from its last checkpoint"
            )

    def rewind(self, iteration: int) -> None:
        """Drop what was recorded of `iteration` and later ones.

        Raises:
            UserError: the rows of earlier iterations are not all there.
        """
        lines = self.metrics.read_text().splitlines(keepends=True) if self.metrics.is_file() else []
        kept = [line for line in lines if 0 <= _iteration(line) < iteration]
        if [_iteration(line) for line in kept] != list(range(iteration)):
            raise UserError(
                f"{self.metrics} does not hold one row for each of the {iteration} iterations that "
                "the checkpoint has; restore it, or choose another --config.name"
            )
        if lines:
            write_text(self.metrics, "".join(kept))
        for file in (self.path / "dialogues").glob("iter_*.jsonl"):
            number = file.stem.removeprefix("iter_")
            if number.isdigit() and int(number) >= iteration:
                file.unlink()

    def record(self, row: Mapping[str, Any]) -> None:
        """Append one iteration's metrics."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def forget_end(self, learners: Sequence[str]) -> bool:
        """The policies of an earlier end of this run, and what was measured of them, are no longer
        its own. Whether there were any."""
        there = any((self.policy(role) / "policy.json").is_file() for role in learners)
        for role in learners:
            written.forget(self.policy(role))
        for name in ("evaluation.json", "outcomes.csv", *CROSSPLAY):
            (self.path / name).unlink(missing_ok=True)
        file = self.path / "summary.json"
        if file.is_file():
            write_json(file, {k: v for k, v in read_json(file).items() if k != "evaluation"})
        return there

    def summary(self, values: Mapping[str, Any]) -> None:
        """Add to `summary.json` what a command found out."""
        file = self.path / "summary.json"
        known = read_json(file) if file.is_file() else {}
        write_json(file, {**known, **values})


def read_json(file: Path) -> dict[str, Any]:
    """The object that a file of ours holds. Raises UserError if it is cut short, or holds none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserError(f"{file} is not whole JSON ({error.msg} in line {error.lineno})") from error
    except (UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{file} is no JSON object; restore it, or remove its folder")
    return found


def write_json(file: Path, values: Any) -> None:
    write_text(file, json.dumps(values, indent=1, sort_keys=False) + "\n")


def write_lines(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """JSON lines, whole or not at all."""
    write_text(file, "".join(json.dumps(row) + "\n" for row in rows))


def write_text(file: Path, text: str) -> None:
    """A text, whole or not at all; its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as beside:
        beside.write_text(text)


def _iteration(line: str) -> int:
    """The iteration of a line of metrics; -1 for one that was cut short or is none."""
    try:
        return int(json.loads(line)["iteration"]) if line.endswith("\n") else -1
    except (ValueError, KeyError, TypeError):
        return -1


def as_json(config: ConfigDict) -> Any:
    """A config as its file gives it back."""
    return json.loads(json.dumps(configs.to_dict(config)))


def named_by(key: str, patterns: Sequence[str]) -> bool:
    """Whether a setting is one of these (`*`: any name)."""
    return any(fnmatchcase(key, pattern) for pattern in patterns)


def difference(
    old: Any, new: Any, but: Sequence[str], prefix: str = ""
) -> tuple[str, Any, Any] | None:
    """The first key whose value differs, with both values; what `but` names (`*`: any) is not."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(set(old) | set(new)):
            if named_by(f"{prefix}{key}", but):
                continue
            found = difference(old.get(key), new.get(key), but, f"{prefix}{key}.")
            if found:
                return found
        return None
    return None if old == new else (prefix.rstrip("."), old, new)
