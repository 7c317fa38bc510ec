"""Table 1: the sales agent against customers that nobody trained with.

Command: make table1
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.calls import SIMULATED, large
from experiments.settings import endpoint
from ibrl_jax.domains.telesales.metrics import STAND_IN
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import (
    Column,
    Design,
    Measured,
    Piece,
    Printed,
    Reference,
    Row,
    Run,
    Study,
)
from ibrl_jax.studies.figures import bars
from ibrl_jax.studies.odds import odds_of_failing
from ibrl_jax.studies.results import Results
from ibrl_jax.studies.returns import returns_of
from ibrl_jax.studies.tables import printed_table, result_table, seed_table
from ibrl_jax.studies.training import what_runs_had
from ibrl_jax.studies.verdict import verdict

HELD_OUT = "held-out"
MINI: dict[str, Any] = {"run.snapshots_every": 10, "run.dialogues_every": 10}
ALONE = {"roles.customer.train": False, "roles.customer.judge": ""}
AGAINST_POOL = "unilateral vs pool of 3"
POOL = ("frozen:start", "scripted:rule_v1", "scripted:rule_mix")
RECORD = {
    name: endpoint(name) for name in ("deepseek", "glm", "qwen")
}  # customers that speak in the record's form

MEASURES = (
    Measured(key="success", title="Success", form="percent"),
    *(
        Measured(key=f"success@{n}", title=f"Success@{n}", form="percent", of="success", at_least=n)
        for n in (1, 2, 3)
    ),
    Measured(key="hallucination", title="Hallucination", form="percent"),
    Measured(key="delta_willingness", title="Change of willingness", form="signed"),
    Measured(key="delta_patience", title="Change of patience", form="signed"),
)


def small(label: str, name: str, file: str, printed: str, **changes: Any) -> Run:
    """A run of the miniature, on rule-based stand-ins."""
    return Run(
        label=label,
        name=f"telesales-{name}",
        file=f"configs/telesales/{file}.py",
        changes=MINI | changes,
        rows=(Row(label=label, policy="sales", printed=printed),),
    )


def with_start(run: Run) -> Run:
    first = Row(label="SFT start", policy="start", printed="9B SFT")
    return replace(run, rows=(first, *run.rows))


mini = Design(
    runs=(
        with_start(small("IB-RL", "ib-rl", "mini", "9B IB-RL")),
        small(
            "unilateral vs SFT customer",
            "unilateral-frozen",
            "unilateral-frozen",
            "9B unilateral vs SFT user",
        ),
        small(
            "unilateral vs rule_v1",
            "unilateral-scripted",
            "unilateral-scripted",
            "9B unilateral vs DS V4 Pro",
        ),
        small(
            AGAINST_POOL,
            "unilateral-pool",
            "unilateral-frozen",
            "9B unilateral vs pool of 3",
            **{"roles.customer.counterpart": POOL},
        ),
    ),
    references=tuple(
        Reference(label=f"scripted {name}", policy=f"scripted:{name}")
        for name in ("competent", "polite", "liar")
    ),
    columns=(
        Column(name=HELD_OUT, counterparts=("scripted:rule_v2",), printed="held-out simulator"),
    ),
    seeds=(0, 1, 2),
    against="IB-RL",
    measures=MEASURES,
    judged=("success",),
    in_system=False,
    self_play=False,
    evaluation={"evaluation.scenarios": 0},
    remark=(
        f"{STAND_IN[0].upper()}{STAND_IN[1:]}. Networks of 230 thousand parameters, in English; "
        "the held-out customers are the rules `rule_v2`. The pool is of the start and the rules "
        "`rule_v1` and `rule_mix`, which the start has learned from too."
    ),
)

AGAINST_ENDPOINT = ALONE | {"roles.customer.counterpart": ("api:deepseek:record",)}
AGAINST_ENDPOINTS = ALONE | {
    "roles.customer.counterpart": tuple(f"api:{name}:record" for name in RECORD)
}


def of_size(size: str) -> tuple[Run, ...]:
    """The runs that the paper has of both sizes."""
    return (
        large("IB-RL", "ib-rl", {}, size=size, printed=f"{size} IB-RL", start=f"{size} SFT"),
        large(
            "unilateral vs SFT customer",
            "unilateral-frozen",
            ALONE | {"roles.customer.counterpart": ("frozen:start",)},
            size=size,
            printed=f"{size} unilateral vs SFT user",
        ),
        large(
            "unilateral vs DS V4 Pro",
            "unilateral-deepseek",
            AGAINST_ENDPOINT | RECORD["deepseek"],
            size=size,
            printed=f"{size} unilateral vs DS V4 Pro",
        ),
    )


at_scale = Design(
    runs=(
        *of_size("9B"),
        large(
            AGAINST_POOL,
            "unilateral-pool",
            AGAINST_ENDPOINTS | RECORD["deepseek"] | RECORD["glm"] | RECORD["qwen"],
            printed="9B unilateral vs pool of 3",
        ),
    ),
    references=(
        Reference(label="Qwen 122B", policy="api:qwen:seller", printed="frontier Qwen-3.5-122B"),
        Reference(label="GLM-5.2", policy="api:glm:seller", printed="frontier GLM-5.2"),
        Reference(label="DS V4 Pro", policy="api:deepseek:seller", printed="frontier DS V4 Pro"),
    ),
    columns=(
        Column(
            name=HELD_OUT,
            counterparts=SIMULATED,
            printed="held-out simulator",
        ),
    ),
    seeds=(0,),
    against="IB-RL",
    measures=MEASURES,
    judged=("success",),
    in_system=False,
    self_play=False,
    evaluation={
        "evaluation.scenarios": 0,
        **RECORD["deepseek"],
        **RECORD["glm"],
        **RECORD["qwen"],
    },
)
at_4b = replace(at_scale, runs=of_size("4B"), references=(), evaluation={"evaluation.scenarios": 0})


def returns(results: Results) -> Piece:
    """What was earned against each of the pool; this page's figure is another."""
    return replace(returns_of(AGAINST_POOL)(results), figure=None)


STUDY = Study(
    name="table1",
    title="Table 1: Vehicle TeleSales, held-out customers",
    about=(
        "Does an agent that learned with a learning customer win over customers that it never met "
        "more often than one that learned against a static one, or against a pool of them?"
    ),
    designs={"mini": mini, "paper": at_scale, "paper-4b": at_4b},
    printed=Printed(
        title="The paper's Table 1 (Success, the share of conversations, is ours):",
        rows={
            label: {
                "held-out simulator": {"success": sum(row.success) / len(row.success)}
                | row.values()
            }
            for label, row in paper.TABLE1.items()
        },
        percent=("success", "success@1", "success@2", "success@3", "hallucination"),
    ),
    parts={
        "Results": result_table,
        "Figure": bars,
        "What the figures say": verdict,
        "Odds of failing": odds_of_failing,
        "The paper's own": printed_table,
        "Seeds": seed_table,
        "What training had": what_runs_had,
        "Returns in training": returns,
    },
)
