"""Table 2: does training against a static counterpart fail where it meets others, or itself?

Command: make table2
"""

from __future__ import annotations

from dataclasses import replace

from experiments import heldout
from experiments.settings import DEALS, MINI, PAPER, TINY_NETWORKS, endpoint
from ibrl_jax.studies import paper
from ibrl_jax.studies.declare import Design, Printed, Reference, Row, Run, Study
from ibrl_jax.studies.figures import bars
from ibrl_jax.studies.odds import odds_of_failing
from ibrl_jax.studies.tables import printed_table, result_table, seed_table
from ibrl_jax.studies.training import what_runs_had
from ibrl_jax.studies.verdict import verdict

ALONE = {"roles.agent1.train": False, "roles.agent0.update_every": 1}


def ib_rl(size: str) -> tuple[Row, Row]:
    """Both roles beside the paper's of one size."""
    return (
        Row(label="IB-RL agent 0", policy="agent0", printed=f"{size} IB-RL agent 0"),
        Row(label="IB-RL agent 1", policy="agent1", printed=f"{size} IB-RL agent 1"),
    )


mini = Design(
    runs=(
        Run(
            label="IB-RL",
            name="ib-rl",
            file="configs/dond/mini.py",
            changes=MINI,
            rows=(Row(label="SFT start", policy="start"), *ib_rl("9B")),
        ),
        Run(
            label="unilateral vs frozen base",
            name="unilateral-frozen",
            file="configs/dond/unilateral-frozen.py",
            changes=MINI,
            rows=(
                Row(
                    label="unilateral vs frozen base",
                    policy="agent0",
                    printed="9B unilateral vs Qwen-3.5-9B",
                ),
                Row(
                    label="unilateral vs frozen base at equal updates",
                    policy="agent0",
                    at=0.5,
                ),
            ),
        ),
        Run(
            label="unilateral vs one scripted",
            name="unilateral-scripted",
            file="configs/dond/unilateral-scripted.py",
            changes=MINI,
            rows=(
                Row(
                    label="unilateral vs one scripted",
                    policy="agent0",
                    printed="9B unilateral vs DS V4 Pro",
                ),
            ),
        ),
    ),
    references=(
        Reference(label="scripted fair", policy="scripted:fair", printed="frontier GLM-5.2"),
        Reference(
            label="scripted splitter", policy="scripted:splitter", printed="frontier DS V4 Pro"
        ),
    ),
    columns=heldout.MINI,
    against="IB-RL",
    measures=DEALS,
    judged=("agreement", "expected_utility"),
    remark=TINY_NETWORKS + " Scripted counterparts stand in for the paper's endpoints.",
)


def of_size(size: str) -> tuple[Run, ...]:
    """The runs that the paper has of each size, 9B or 4B."""
    file, suffix = f"configs/dond/qwen3_5-{size.lower()}.py", size.lower()
    return (
        Run(
            label="IB-RL",
            name=f"ib-rl-{suffix}",
            file=file,
            changes=PAPER,
            rows=(Row(label="start", policy="start"), *ib_rl(size)),
        ),
        Run(
            label=f"unilateral vs Qwen-3.5-{size}",
            name=f"unilateral-frozen-{suffix}",
            file=file,
            changes=PAPER | ALONE | {"roles.agent1.counterpart": ("frozen:start",)},
            rows=(
                Row(
                    label=f"unilateral vs Qwen-3.5-{size}",
                    policy="agent0",
                    printed=f"{size} unilateral vs Qwen-3.5-{size}",
                ),
            ),
        ),
        Run(
            label="unilateral vs DS V4 Pro",
            name=f"unilateral-deepseek-{suffix}",
            file=file,
            changes=PAPER
            | ALONE
            | {"roles.agent1.counterpart": ("api:deepseek",)}
            | endpoint("deepseek"),
            rows=(
                Row(
                    label="unilateral vs DS V4 Pro",
                    policy="agent0",
                    printed=f"{size} unilateral vs DS V4 Pro",
                ),
            ),
        ),
    )


at_scale = Design(
    runs=of_size("9B"),
    references=(
        Reference(label="GLM-5.2", policy="api:glm", printed="frontier GLM-5.2"),
        Reference(label="DS V4 Pro", policy="api:deepseek", printed="frontier DS V4 Pro"),
    ),
    columns=heldout.PAPER,
    seeds=(0,),
    against="IB-RL",
    measures=DEALS,
    judged=("agreement", "expected_utility"),
    evaluation={  # the paper's 1,000: 200 distinct scenarios, each five times in each seat
        "evaluation.scenarios": 0,
        "evaluation.seeds": 5,
        **endpoint("glm"),
        **endpoint("deepseek"),
    },
)

at_4b = replace(at_scale, runs=of_size("4B"), references=())

STUDY = Study(
    name="table2",
    title="Table 2: Deal-or-No-Deal, trained against a static counterpart or with a learning one",
    about=(
        "Does a policy that learned against a static counterpart fail in self-play and against "
        "counterparts that nobody trained with, relative to the one it trained with, and does "
        "IB-RL not?"
    ),
    designs={"mini": mini, "paper": at_scale, "paper-4b": at_4b},
    printed=Printed(
        title="The paper's Table 2 (Qwen3.5-4B and 9B; expected utility is ours, agreement x own):",
        rows={
            row: {column: cell.values() for column, cell in cells.items()}
            for row, cells in paper.TABLE2.items()
        },
        percent=("agreement",),
        note="Its self-play of DS V4 Pro and GLM-5.2 cannot be right: `make paper-check` says why.",
    ),
    parts={
        "Results": result_table,
        "Figure": bars,
        "What the figures say": verdict,
        "The paper's own": printed_table,
        "Comparisons of the policies": odds_of_failing,
        "Seeds": seed_table,
        "What training had": what_runs_had,
    },
)
