"""Whom nobody has trained with: the counterparts of the held-out columns, by scale.

Of the miniature: four fresh families of scripted negotiators, written before any policy met them;
neither the supervised start nor any run knows one of them.
"""

from __future__ import annotations

from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Column

HELD_OUT_A, HELD_OUT_B = "held-out A", "held-out B"

MINI = (
    Column(
        name=HELD_OUT_A,
        counterparts=("scripted:anchor", "scripted:tally"),
        printed=paper.VS_GLM,
    ),
    Column(
        name=HELD_OUT_B,
        counterparts=("scripted:patient", "scripted:swapper"),
        printed=paper.VS_DS,
    ),
)
PAPER = (
    Column(name=paper.VS_GLM, counterparts=("api:glm",), printed=paper.VS_GLM),
    Column(name=paper.VS_DS, counterparts=("api:deepseek",), printed=paper.VS_DS),
)
