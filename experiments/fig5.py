"""Figure 5: checkpoints of training against a fixed counterpart, and against held-out ones.

The runs are Table 2's (at the paper's scale, Table 1's); only the evaluations are new.

Command: make fig5
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from experiments import heldout, table1, table2
from experiments.settings import DEALS, MINI, TINY_NETWORKS
from ibrl_jax.studies.curves import checkpoint_changes, checkpoint_curves, checkpoint_table
from ibrl_jax.studies.declare import Column, Design, Row, Run, Study
from ibrl_jax.studies.plan import START
from ibrl_jax.studies.verdict import verdict

IB_RL, UNILATERAL = "IB-RL", "unilateral vs the start"
SNAPSHOTS = MINI["iterations"] // MINI["run.snapshots_every"]
FIXED = Column(name="fixed start", counterparts=(START,), known=True)


def checkpoints(run: Run, label: str, roles: Sequence[str], count: int) -> Run:
    """A run's start, if it measures it, and its policies at `count` equal steps of training."""
    first = tuple(row for row in run.rows if row.policy == "start")
    rows = tuple(
        Row(label=f"{label} {role} {n} of {count}", policy=role, at=n / count)
        for role in roles
        for n in range(1, count + 1)
    )
    return replace(run, label=label, rows=first + rows)


mini = Design(
    runs=(
        checkpoints(table2.mini.runs[0], IB_RL, ("agent0", "agent1"), SNAPSHOTS),
        checkpoints(table2.mini.runs[1], UNILATERAL, ("agent0",), SNAPSHOTS),
    ),
    columns=(
        FIXED,
        Column(
            name="held-out",
            counterparts=tuple(name for column in heldout.MINI for name in column.counterparts),
        ),
    ),
    against=IB_RL,
    measures=DEALS,
    judged=("agreement", "expected_utility"),
    in_system=False,
    self_play=False,
    evaluation={"evaluation.scenarios": 40},
    remark=(
        f"{TINY_NETWORKS} The fixed counterpart is the supervised start, which the unilateral run "
        "trains against; 40 scenarios, both seats."
    ),
)

at_scale = Design(
    runs=(
        checkpoints(table1.at_scale.runs[0], IB_RL, ("sales",), 9),
        checkpoints(table1.at_scale.runs[1], UNILATERAL, ("sales",), 9),
    ),
    columns=(FIXED, *table1.at_scale.columns),
    seeds=(0,),
    against=IB_RL,
    measures=table1.MEASURES,
    judged=("success",),
    in_system=False,
    self_play=False,
    evaluation={"evaluation.scenarios": 100, "evaluation.seeds": 1},
)

STUDY = Study(
    name="fig5",
    title="Figure 5: checkpoints against a fixed counterpart and against held-out ones",
    about=(
        "In the paper unilateral training rises against its fixed counterpart and stays there, and "
        "IB-RL rises, then declines, since it follows a partner that moves. Does that happen here, "
        "and what do held-out counterparts say of the same checkpoints?"
    ),
    designs={"mini": mini, "paper": at_scale},
    parts={
        "Checkpoints": checkpoint_curves,
        "Change in training": checkpoint_changes,
        "All checkpoints": checkpoint_table,
        "At the end": verdict,
    },
)
