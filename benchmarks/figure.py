"""A line of the bench's second table, of ours alone."""

from __future__ import annotations

from typing import Any

Figures = dict[str, list[dict[str, Any]]]


def figure(
    name: str, value: float, told: str, goal: str, met: bool | None, **detail: Any
) -> Figures:
    """One line: what it is, its value as a number and as told, its goal, whether that was met
    (None: there is no goal), and what it was read from."""
    one = dict(figure=name, value=value, told=told, goal=goal, met=met, detail=detail)
    return {"figures": [one]}
