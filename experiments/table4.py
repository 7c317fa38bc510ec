"""Table 4: a pool of three static counterparts. What is earned against each, and what comes of it?

Command: make table4
"""

from __future__ import annotations

from experiments import heldout, table1, table2
from experiments.settings import DEALS, MINI, TINY_NETWORKS
from ibrl_jax.studies.declare import Design, Row, Run, Study
from ibrl_jax.studies.odds import odds_of_failing
from ibrl_jax.studies.returns import printed_returns, returns_of
from ibrl_jax.studies.tables import result_table, seed_table
from ibrl_jax.studies.training import what_runs_had
from ibrl_jax.studies.verdict import verdict

POOL = "unilateral vs pool of 3"

mini = Design(
    runs=(
        *table2.mini.runs,
        Run(
            label=POOL,
            name="unilateral-pool",
            file="configs/dond/unilateral-pool.py",
            changes=MINI,
            rows=(Row(label=POOL, policy="agent0"),),
        ),
    ),
    columns=heldout.MINI,
    against=POOL,
    measures=DEALS,
    judged=("agreement", "expected_utility"),
    remark=(
        f"{TINY_NETWORKS} The paper's Table 4 is of TeleSales; this is of Deal-or-No-Deal, and "
        "three scripted negotiators stand in for its endpoints. The other runs are Table 2's."
    ),
)

at_scale = Design(
    runs=table1.at_scale.runs,
    columns=table1.at_scale.columns,
    seeds=(0,),
    against=POOL,
    measures=table1.MEASURES,
    judged=("success",),
    in_system=False,
    self_play=False,
    evaluation=table1.at_scale.evaluation,
)

STUDY = Study(
    name="table4",
    title="Table 4: unilateral training against a pool of three static counterparts",
    about=(
        "Does a policy that learned against three counterparts, one drawn a scenario, do better "
        "with strangers than one that learned against one of them? In the paper it did worse than "
        "each single-counterpart baseline."
    ),
    designs={"mini": mini, "paper": at_scale},
    parts={
        "Returns in training": returns_of(POOL),
        "The paper's own": printed_returns,
        "Held-out results": result_table,
        "What the figures say": verdict,
        "Comparisons of the policies": odds_of_failing,
        "Seeds": seed_table,
        "What training had": what_runs_had,
    },
)
