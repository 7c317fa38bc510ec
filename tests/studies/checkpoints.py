"""A small study of checkpoints against a fixed counterpart, and what they do there."""

from __future__ import annotations

from dataclasses import replace

from ibrl_jax.studies.declare import Column, Row
from ibrl_jax.studies.plan import START
from tests.studies.fakes import DESIGN

FIXED = "fixed start"


def checkpoints(policy: str) -> tuple[Row, ...]:
    return tuple(Row(label=f"{policy} {n}", policy=policy, at=n / 2) for n in (1, 2))


PAIR, ALONE = DESIGN.runs
MEASURED = replace(
    DESIGN,
    runs=(
        replace(PAIR, rows=(PAIR.rows[0], *checkpoints("agent0"), *checkpoints("agent1"))),
        replace(
            ALONE, rows=tuple(replace(r, label=f"alone {r.label}") for r in checkpoints("agent0"))
        ),
    ),
    columns=(Column(name=FIXED, counterparts=(START,), known=True), DESIGN.columns[0]),
    references=(),
    in_system=False,
    self_play=False,
)


def chance(policy: str, column: str, seed: int) -> float:
    """Up to .9 in the first half, and against the fixed counterpart down to .7 in the second."""
    if policy == "start":
        return 0.5
    late = 0.7 if column == FIXED else 0.9
    return (0.9 if policy.endswith("0.5") else late) + 0.02 * (seed % 2)
