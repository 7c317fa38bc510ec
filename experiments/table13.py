"""Table 13: do people see consent where the simulator recorded it?

Of an annotation of yours: IBRL_ANNOTATION=folder, with key.json, a.csv and b.csv.

Command: make table13
"""

from __future__ import annotations

from ibrl_jax.studies.declare import Design, Study
from ibrl_jax.studies.sheets import validation

STUDY = Study(
    name="table13",
    title="Table 13: human validation of recorded outcomes",
    about=(
        "Two people, blinded, judge from the words of a call alone whether the customer consented: "
        "how far do they agree with one another, and with what was recorded?"
    ),
    designs={"mini": Design(), "paper": Design()},
    seeds=(0,),
    parts={"Agreement": validation},
)
