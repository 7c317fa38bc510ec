"""TeleSales whole: a start, an iteration, an evaluation, its audits and the report, in one go."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ibrl_jax import train
from ibrl_jax.domains.telesales.metrics import STAND_IN
from tests.endpoints.fault_server import FaultServer
from tests.telesales.answers import ANSWERS, answered, script
from tests.telesales.smoke import SMOKE
from tests.trainer.conftest import quick_compile


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all runs, so that they share one start."""
    return tmp_path_factory.mktemp("runs")


def go(server: FaultServer, root: Path, settings: Sequence[str], *flags: str) -> str:
    """What `train` says of a run of the smoke config, made as small as it goes."""
    small = [
        f"run.root={root}",
        "iterations=1",
        "telesales.train_profiles=8",
        "sft.families=reader,rule_v1",
        "sft.dialogues=8",
        "sft.steps=40",  # until it ends most of its turns
        "rollout.draws=1",
        "rollout.max_new_tokens=64",
        "rollout.max_view_tokens=384",
        "rollout.retries=8",
        "engine.rows=4,",
        "optimiser.micro_batch=4",
        "roles.sales.judge=judge",
    ]
    for name in ANSWERS:
        small += [f"endpoints.{name}.base_url={server.url}", f"endpoints.{name}.model={name}"]
    small += ["endpoints.judge.temperature=0", "endpoints.auditor.temperature=0"]
    argv = [f"--config={SMOKE}", *(f"--config.{setting}" for setting in (*small, *settings))]
    out = io.StringIO()
    with quick_compile():
        train.main([*argv, *flags], Console(file=out, width=1000))
    return out.getvalue()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().split("\n") if line]


def expected(call: dict[str, Any]) -> float:
    """R of the agent, worked out from the words of its turns."""
    own = [turn for turn in call["turns"] if turn["role"] == "sales"]
    scores = [0.25 * (turn["valid"] and answered(turn["payload"]["words"])) for turn in own]
    weights = [0.9**k for k in range(len(scores))]
    return 0.2 * sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)


def check_rewards(run: Path) -> dict[str, Any]:
    """The iteration's metrics, whose rewards of the agent are the judge's."""
    (row,) = lines(run / "metrics.jsonl")
    calls = lines(run / "dialogues" / "iter_000000.jsonl")
    assert len(calls) == row["roles"]["sales"]["rows"] == 4
    assert row["coverage"] == 1.0
    for call in calls:
        reward = call["rewards"]["sales"]
        assert (reward["detail"]["judge"], reward["detail"]["model"]) == ("judge", "judge")
        assert reward["scored"] == pytest.approx(expected(call))
    paid = [call["rewards"]["sales"]["scored"] for call in calls]
    assert row["roles"]["sales"]["reward"] == pytest.approx(sum(paid) / len(paid))
    assert row["roles"]["sales"]["updated"]
    assert row["roles"]["sales"]["trained_tokens"] > 0
    return row


# a run leaves the ledgers of its endpoints open until the process ends
open_ledgers = pytest.mark.filterwarnings(
    "ignore:unclosed file .*/endpoints/.*jsonl:ResourceWarning"
)


@open_ledgers
@pytest.mark.timeout(300)
def test_a_start_learns_is_judged_evaluated_audited_and_reported(
    serve: Callable[..., FaultServer], root: Path
) -> None:
    server = serve(script)
    settings = (
        "name=whole",
        "roles.customer.train=False",
        "roles.customer.counterpart=api:friend:record",
        "evaluation.counterparts=api:sim:simulator",
        "evaluation.auditor=auditor",
        "evaluation.retries=8",
        "evaluation.scenarios=1",
        "evaluation.seeds=1",
    )
    said = go(server, root, settings, "--quickstart")
    run = root / "whole" / "seed0"

    row = check_rewards(run)
    assert row["speakers"]["customer"].keys() == {"api:friend:record"}
    assert {path.name for path in (run / "policies").iterdir()} == {"start", "sales"}

    table = json.loads((run / "evaluation.json").read_text())
    assert table["auditor"] == "auditor"
    assert table["coverage"] == {"planned": 4, "scored": 4}
    assert table["unfinished"]["unaudited"] == 0
    assert [r["policy"] for r in table["rows"]] == ["SFT start", "sales"]
    cells = [r["cells"][column] for r in table["rows"] for column in ("sim:simulator", "in-system")]
    assert sum(cell["audited"] for cell in cells) > 0
    assert {cell["label_agreement"] for cell in cells if cell["labels_checked"]} == {0.0}
    # the rubric's hits are counted here, whatever the simulator says that they come to
    assert max(r["cells"]["sim:simulator"]["delta_willingness"] for r in table["rows"]) > 0
    assert len((run / "outcomes.csv").read_text().splitlines()) == 1 + 4

    asked = Counter(request.body["model"] for request in server.asked)
    assert asked.keys() == ANSWERS.keys()
    for name, count in asked.items():
        events = Counter(event["event"] for event in lines(run / "endpoints" / f"{name}.jsonl"))
        assert events["request"] == events["answer"] == count
    summary = json.loads((run / "summary.json").read_text())
    assert summary["endpoints"]["judge"]["answered"] == asked["judge"]
    assert summary["evaluation"].keys() == {"SFT start", "sales"}
    assert said.rstrip().endswith(f"see {run / 'report.html'}")
    report = (run / "report.html").read_text()
    for words in ("sim:simulator", "Checks of the calls", "auditor", "SFT start"):
        assert words in report


@open_ledgers
@pytest.mark.timeout(300)
def test_both_roles_learn_each_from_its_own_judge(
    serve: Callable[..., FaultServer], root: Path
) -> None:
    """Both train, as in `make telesales`; an endpoint judges the agent, and rules the customer."""
    server = serve(script)
    go(server, root, ("name=both", "roles.sales.update_every=1", "roles.customer.update_every=2"))
    run = root / "both" / "seed0"
    row = check_rewards(run)
    assert row["roles"]["customer"]["rows"] == 4
    assert row["roles"]["customer"]["updated"]
    assert row["matchups"] == {"customer+sales": 4}
    assert {role: pool["size"] for role, pool in row["pool"].items()} == {"sales": 1, "customer": 1}
    for call in lines(run / "dialogues" / "iter_000000.jsonl"):
        assert STAND_IN in call["rewards"]["customer"]["detail"]["judge"]
    assert {path.name for path in (run / "policies").iterdir()} == {"start", "sales", "customer"}
    assert {request.body["model"] for request in server.asked} == {"judge"}
