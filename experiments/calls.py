"""Vehicle TeleSales at the paper's scale: what Tables 1 and 3 and Figure 3 share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.settings import CALLS, PAPER, endpoint
from ibrl_jax.studies.declare import Column, Design, Row, Run

SIMULATED = ("api:simulator:simulator",)
"""The held-out customer."""
ENDPOINTS = {
    **endpoint("judge", temperature=0.0),
    **endpoint("auditor", temperature=0.0),
    **endpoint("simulator"),
}
"""Of every run and its evaluation."""


def large(
    label: str,
    name: str,
    changes: Mapping[str, Any],
    *,
    size: str = "9B",
    printed: str = "",
    start: str | None = None,
) -> Run:
    """A run of one of the paper's sizes, 9B or 4B, measured as the sales agent.

    `printed`: the paper's row. `start`: that of the start, if it is measured with this run.
    """
    first = () if start is None else (Row(label="SFT start", policy="start", printed=start),)
    return Run(
        label=label,
        name=f"telesales-{name}-{size.lower()}",
        file=f"configs/telesales/qwen3_5-{size.lower()}.py",
        changes={**PAPER, **ENDPOINTS, **changes},
        rows=(*first, Row(label=label, policy="sales", printed=printed)),
    )


def ablation(runs: Sequence[Run], against: str) -> Design:
    """What is taken away from IB-RL, against the held-out simulator."""
    return Design(
        runs=tuple(runs),
        columns=(Column(name="held-out simulator", counterparts=SIMULATED),),
        seeds=(0,),
        against=against,
        measures=CALLS,
        judged=("success",),
        self_play=False,
    )
