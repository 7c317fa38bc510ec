"""TensorBoard without TensorFlow: scalars of every iteration and transcripts as text.

Events go through TensorBoard's own event writer. A run that resumes opens a new event file whose
first record tells readers to forget every step from `purge_step` on, so that the steps which are
run again replace those that the killed run had already written.
"""

# The generated protocol messages have no stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
from tensorboard.plugins.text import metadata as text_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ibrl_jax.reporting.stages import tokens_per_second

_TOP = {"iteration", "seconds", "roles", "dialogues", "pool", "format_failures"}


class Board:
    """Writes to one folder. `purge_step` is the first step that will be written again, or None."""

    def __init__(self, directory: Path, purge_step: int | None = None):
        _wait_for_a_later_name(Path(directory))
        self._writer = EventFileWriter(str(directory))
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(purge_step, session_log=start)
            self._writer.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """One number a tag, on disk when this returns."""
        found = [
            summary_pb2.Summary.Value(tag=tag, simple_value=float(value))
            for tag, value in values.items()
        ]
        self._write(step, summary=summary_pb2.Summary(value=found))
        self._writer.flush()

    def text(self, tag: str, step: int, markdown: str) -> None:
        """One Markdown text, on disk when this returns."""
        tensor = tensor_pb2.TensorProto(
            dtype=types_pb2.DT_STRING,
            string_val=[markdown.encode()],
            tensor_shape=tensor_shape_pb2.TensorShapeProto(
                dim=[tensor_shape_pb2.TensorShapeProto.Dim(size=1)]
            ),
        )
        value = summary_pb2.Summary.Value(
            tag=tag, tensor=tensor, metadata=text_metadata.create_summary_metadata(tag, "")
        )
        self._write(step, summary=summary_pb2.Summary(value=[value]))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _write(self, step: int, **what: Any) -> None:
        self._writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, **what))


def flatten_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    """A row of metrics.jsonl as TensorBoard tags; what is null has no point.

    `agent0/reward`, `dialogues/agreement`, `end_reasons/deal`, `format_failures/agent0/bad_number`,
    `pool/agent0/size`, `seconds/rollout`, `seconds/within/sampling`,
    `throughput/tokens_per_second`, `run/compilations`.
    """
    flat: dict[str, float] = {}

    def add(prefix: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, Mapping):
                add(f"{prefix}/{name}", value)
            elif isinstance(value, (bool, int, float)):
                flat[f"{prefix}/{name}"] = float(value)

    for role, values in row.get("roles", {}).items():
        add(role, values)
    for name in ("dialogues", "format_failures", "pool", "seconds"):
        add(name, row.get(name, {}))
    rest = {name: value for name, value in row.items() if name not in _TOP}
    for name, value in rest.items():
        add(*((name, value) if isinstance(value, Mapping) else ("run", {name: value})))
    rates, total = tokens_per_second(row), row.get("seconds", {}).get("total")
    for name, stage in (("tokens_per_second", "rollout"), ("update_tokens_per_second", "update")):
        if stage in rates:
            flat[f"throughput/{name}"] = rates[stage]
    if total and (count := row.get("dialogues", {}).get("count")) is not None:
        flat["throughput/dialogues_per_second"] = count / total
    return flat


def transcript_markdown(record: Mapping[str, Any]) -> str:
    """A dialogue as Markdown: its public part, result and rewards; no private observation."""
    scenario, outcome = record["scenario"], record["outcome"]
    speakers = ", ".join(f"{role} = `{who}`" for role, who in record["speakers"].items())
    lines = [
        f"**iteration {record['iteration']}, draw {_code(record['draw'])}, "
        f"rollout {record['rollout']}**: {speakers}",
        f"public: {_code(str(dict(scenario['public'])))}",
    ]
    for turn in record["turns"]:
        label = turn["action"] if turn["valid"] else f"malformed, {turn['error_code']}"
        lines.append(f"**{turn['role']}** ({label})\n\n{_fence(turn['text'])}")
    result = "success" if outcome["success"] else "no success"
    lines.append(f"**{outcome['end_reason']}** ({result})")
    for role, reward in record["rewards"].items():
        advantage = record.get("advantages", {}).get(role)
        paid = (
            f"reward {reward['scored']:.3f}"
            if "scored" in reward
            else f"no reward ({reward.get('failed', 'pending')})"
        )
        trained = "not trained on" if advantage is None else f"advantage {advantage:+.3f}"
        lines.append(f"{role}: {paid}, {trained}")
    return "\n\n".join(lines)


def _fence(text: str) -> str:
    """A code block that `text` cannot close."""
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _code(text: str) -> str:
    return f"`{text.replace('`', chr(39))}`"


def _wait_for_a_later_name(directory: Path) -> None:
    """Event files are read in the order of their names, which start with the second of birth."""
    born = [int(file.name.split(".")[3]) for file in directory.glob("events.out.tfevents.*")]
    while born and int(time.time()) <= max(born) <= time.time() + 2:
        time.sleep(0.05)
