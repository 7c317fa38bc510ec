"""Table 3: what each part of the isolation is for, by leaving it out.

Command: make table3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments import heldout
from experiments.calls import ablation, large
from experiments.settings import DEALS, MINI, TINY_NETWORKS
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Design, Printed, Row, Run, Study
from ibrl_jax.studies.figures import bars
from ibrl_jax.studies.odds import odds_of_failing
from ibrl_jax.studies.tables import printed_table, result_table, seed_table
from ibrl_jax.studies.training import curve_table, what_runs_had
from ibrl_jax.studies.verdict import verdict

FULL = "IB-RL (full)"


def deals(label: str, name: str, file: str, *, start: bool = False) -> Run:
    rows = [Row(label="SFT start", policy="start")] if start else []
    rows += [Row(label=f"{label} agent {i}", policy=f"agent{i}") for i in (0, 1)]
    return Run(
        label=label, name=name, file=f"configs/dond/{file}.py", changes=MINI, rows=tuple(rows)
    )


mini = Design(
    runs=(
        deals(FULL, "ib-rl", "mini", start=True),
        deals("shared reward", "shared-reward", "shared-reward"),
        deals("joint norm", "joint-norm", "joint-norm"),
        deals("all turns trained on", "mask-all", "mask-all"),
        deals("one policy for both", "tied", "tied"),
    ),
    columns=heldout.MINI,
    against=FULL,
    measures=DEALS,
    judged=("agreement", "expected_utility"),
    remark=TINY_NETWORKS + " The paper's Table 3 is of TeleSales; this is of Deal-or-No-Deal.",
)

ARMS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (FULL, "ib-rl", {}),
    ("shared reward", "shared-reward", {"isolation.reward": "shared"}),
    ("joint norm", "joint-norm", {"isolation.advantage": "joint"}),
    ("all turns trained on", "mask-all", {"isolation.mask": "all"}),
)
at_scale = ablation(
    [large(*arm, printed=arm[0], start="" if arm[0] == FULL else None) for arm in ARMS],
    FULL,
)

STUDY = Study(
    name="table3",
    title="Table 3: ablations of isolation",
    about=(
        "What does IB-RL lose where a role is paid for the other's reward, where both roles' "
        "rewards normalise each other's advantages, and (beyond the paper) where a role is trained "
        "on the other's turns, or both roles are one policy?"
    ),
    designs={"mini": mini, "paper": at_scale},
    printed=Printed(
        title="The paper's Table 3 (TeleSales, 9B):",
        rows={row: {"held-out simulator": values} for row, values in paper.TABLE3.items()},
        percent=("success@1", "success@2", "hallucination"),
    ),
    parts={
        "Results": result_table,
        "Figure": bars,
        "What the figures say": verdict,
        "The paper's own": printed_table,
        "Comparisons of the policies": odds_of_failing,
        "Seeds": seed_table,
        "Rewards in training": curve_table,
        "What training had": what_runs_had,
    },
)
