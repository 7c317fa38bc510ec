"""The dialogues a report carries: which groups, and each in the compact form that the page reads.

A report must stay a file that opens at once, so it holds a sample: a few iterations evenly spaced
from the first to the last, the first groups of each in the order in which they were drawn (never
picked by their rewards), as far as a budget of bytes reaches. The sample is described in a
sentence beside the transcripts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ibrl_jax.reporting.runs import read_lines

ITERATIONS = 6
"""Iterations that a report shows, the first, a middle and the last among them."""

GROUPS = 3
"""Groups of each such iteration."""

BYTES = 3_000_000
"""What all groups may weigh as JSON; at paper scale this is what limits the sample."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Groups in order of iteration, and the sentence that says how they were chosen."""

    groups: Sequence[Mapping[str, Any]]
    note: str


def sample_groups(dialogues: Mapping[int, Path], limit: int = BYTES) -> Sample:
    """Groups of a run's dialogue files, within `limit` bytes.

    The budget is spent on the last iteration first, then the first, then those between. A group
    that does not fit any more keeps its dialogues but loses its tokens, or is left out.
    """
    chosen = _spread(sorted(dialogues), ITERATIONS)
    order = sorted(chosen, key=lambda k: (k != chosen[-1], k != chosen[0], k)) if chosen else []
    kept: list[dict[str, Any]] = []
    left, bare, dropped = limit, 0, 0
    for iteration in order:
        for group in _first_groups(dialogues[iteration], GROUPS):
            full = _weight(group)
            if full > left:
                group = _without_tokens(group)
                if _weight(group) > left:
                    dropped += 1
                    continue
                bare += 1
            left -= _weight(group)
            kept.append(group)
    kept.sort(key=lambda group: group["iteration"])  # stable: draws keep their order
    shown = list(dict.fromkeys(group["iteration"] for group in kept))
    note = (
        f"A sample: the first {GROUPS} groups drawn at {_plural(len(shown), 'iteration')} of the "
        f"{len(dialogues)} with dialogues on disk, evenly spaced from first to last."
    )
    if bare:
        note += f" {_plural(bare, 'group')} shown without tokens, to keep this file small."
    if dropped:
        note += f" {_plural(dropped, 'group')} left out, to keep this file small."
    return Sample(groups=kept, note=note)


def embed(value: Any) -> str:
    """JSON that is safe inside a script element: no tag opens or closes in it, and NaN is null."""
    text = json.dumps(_jsonable(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _spread(numbers: Sequence[int], count: int) -> list[int]:
    places = np.linspace(0, len(numbers) - 1, min(count, len(numbers)))
    return [numbers[round(place)] for place in places]


def _first_groups(path: Path, count: int) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in read_lines(path):
        draw = str(record["draw"])
        if draw in groups or len(groups) < count:
            groups.setdefault(draw, []).append(record)
    return [_group(draw, records) for draw, records in groups.items()]


def _group(draw: str, records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    scenario = records[0]["scenario"]
    return {
        "iteration": records[0]["iteration"],
        "draw": draw,
        "scenario": scenario["id"],
        "public": scenario["public"],
        "private": scenario["private"],
        "roles": list(scenario["private"]),
        "rollouts": [_rollout(r) for r in sorted(records, key=lambda r: r["rollout"])],
    }


def _rollout(record: Mapping[str, Any]) -> dict[str, Any]:
    outcome = record["outcome"]
    paid = {}
    for role, reward in record["rewards"].items():
        paid[role] = {
            "reward": reward.get("scored"),
            "failed": reward.get("failed"),
            "advantage": record.get("advantages", {}).get(role),
            "retries": record.get("retries", {}).get(role, 0),
        }
    return {
        "rollout": record["rollout"],
        "first": record["first"],
        "speakers": record["speakers"],
        "success": outcome["success"],
        "end_reason": outcome["end_reason"],
        "offender": outcome.get("offender"),
        "facts": outcome.get("facts", {}),
        "paid": paid,
        "turns": record["turns"],
        "views": {role: _by_turn(view) for role, view in record.get("views", {}).items()},
    }


def _by_turn(view: Mapping[str, Any]) -> dict[str, list[list[Any]]]:
    """Turn index -> tokens [piece, segment, mask, log-prob or null]; "-1" is the opening prompt."""
    turns: dict[str, list[list[Any]]] = {}
    columns = (view[k] for k in ("pieces", "turn_index", "segment", "loss_mask", "behaviour_logp"))
    for piece, turn, segment, mask, logp in zip(*columns, strict=True):
        turns.setdefault(str(turn), []).append(
            [piece, int(segment), int(mask), round(logp, 3) if mask else None]
        )
    return turns


def _without_tokens(group: Mapping[str, Any]) -> dict[str, Any]:
    rollouts = [{**rollout, "views": {}} for rollout in group["rollouts"]]
    return {**group, "rollouts": rollouts}


def _weight(group: Mapping[str, Any]) -> int:
    return len(embed(group).encode())


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
