"""Table 7: the composition of the evaluation profiles. A seed is that of the profiles.

Command: make table7
"""

from __future__ import annotations

from ibrl_jax.studies.declare import Design, Study
from ibrl_jax.studies.sheets import composition

STUDY = Study(
    name="table7",
    title="Table 7: the composition of the evaluation profiles",
    about="Are our 500 evaluation profiles made up as the paper's are?",
    designs={"mini": Design(), "paper": Design()},
    seeds=(0,),
    parts={"Composition": composition},
)
