"""What a row of metrics.jsonl says of speed: tokens a second, and medians of the stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def tokens_per_second(row: Mapping[str, Any]) -> dict[str, float]:
    """Tokens sampled a second of `rollout`, and tokens that were learned from a second of `update`.

    A stage without tokens, or without time, has no rate.
    """
    seconds, rates = row.get("seconds", {}), {}
    saved = seconds.get("within", {}).get("saved", 0.0)
    amounts = {
        "rollout": (row.get("dialogues", {}).get("tokens", 0), seconds.get("rollout", 0.0) + saved),
        "update": (
            sum(values.get("batch_tokens", 0) for values in row.get("roles", {}).values()),
            seconds.get("update", 0.0),
        ),
    }
    for stage, (tokens, spent) in amounts.items():
        if tokens and spent > 0:
            rates[stage] = tokens / spent
    return rates


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median of every figure over the rows that have it; figures of a group stand by theirs."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            for key, number in value.items() if isinstance(value, Mapping) else ((name, value),):
                found[key].append(number)
    return {key: median(numbers) for key, numbers in found.items()}
