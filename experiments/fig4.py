"""Figure 4: both roles' rewards in IB-RL training.

The run is Table 2's (at the paper's scale, Table 1's).

Command: make fig4
"""

from __future__ import annotations

from experiments import table1, table2
from experiments.settings import DEALS, TINY_NETWORKS
from ibrl_jax.studies.curves import printed_course
from ibrl_jax.studies.declare import Design, Study
from ibrl_jax.studies.figures import reward_curves
from ibrl_jax.studies.training import curve_table, what_runs_had

mini = Design(
    runs=table2.mini.runs[:1],
    against="IB-RL",
    measures=DEALS,
    in_system=False,
    self_play=False,
    remark=(
        f"{TINY_NETWORKS} The paper's Figure 4 is of TeleSales, where customer and agent are paid "
        "for different things; this is of Deal-or-No-Deal."
    ),
)

at_scale = Design(
    runs=table1.at_scale.runs[:1],
    seeds=(0,),
    against="IB-RL",
    measures=table1.MEASURES,
    in_system=False,
    self_play=False,
)

STUDY = Study(
    name="fig4",
    title="Figure 4: rewards of both roles in IB-RL training",
    about="Do both roles' rewards grow, or does one live off the other?",
    designs={"mini": mini, "paper": at_scale},
    parts={
        "Where the curves went": curve_table,
        "Reward in training": reward_curves,
        "The paper's own": printed_course,
        "What training had": what_runs_had,
    },
)
