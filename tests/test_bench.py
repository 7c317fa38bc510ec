"""The bench's own machinery: workers that answer, fail and die, and what is told of the results."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import choices
from benchmarks.ours import Ours
from benchmarks.own import SHOWN, no_growth, slope_of
from benchmarks.plot import draw
from benchmarks.protocol import Worker, WorkerError
from benchmarks.results import Case, Results, markdown, table
from benchmarks.speed import LOGITS, LOSSES, Call, check_updates, differences, measure
from benchmarks.training import _verdict
from ibrl_jax.domains.telesales.verdicts import CustomerVerdict, SalesVerdict, covering
from ibrl_jax.errors import UserError

WORKER = """
import os
from benchmarks.protocol import serve

def echo(**args):
    print("a library says something")
    os.system("echo a child too")
    return args

def fail():
    raise ValueError("seven is odd")

def die():
    os.write(2, b"out of luck")
    os._exit(3)

serve({"echo": echo, "fail": fail, "die": die})
"""


@pytest.fixture
def worker():
    with Worker("echoist", [sys.executable, "-c", WORKER], {}) as made:
        yield made


def test_a_worker_answers_with_what_its_handler_gives(worker: Worker) -> None:
    sent = {"ids": np.arange(3), "share": np.float32(0.5), "to": Path("a/b"), "none": None}
    back = {"ids": [0, 1, 2], "share": 0.5, "to": "a/b", "none": None}
    assert worker.call("echo", **sent) == back
    assert worker.call("echo", again=[[1], [2]]) == {"again": [[1], [2]]}


def test_a_worker_that_fails_says_why_and_goes_on(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="echoist could not do 'fail': ValueError: seven is odd"):
        worker.call("fail")
    with pytest.raises(WorkerError, match="'nothing'"):
        worker.call("nothing")
    assert worker.call("echo", still=1) == {"still": 1}


def test_a_worker_that_dies_leaves_its_last_words(worker: Worker) -> None:
    with pytest.raises(WorkerError, match=r"died in 'die' \(exit code 3\)\n.*out of luck"):
        worker.call("die")
    with pytest.raises(WorkerError, match="died in 'echo'"):
        worker.call("echo")


# Who computes something else is not timed


class Told(Worker):
    """A worker that has one answer to each method."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers = answers

    def call(self, method: str, **args: Any) -> dict[str, Any]:
        return self.answers[method]


def with_logits(folder: Path, **gaps: float) -> dict[str, Worker]:
    """Workers whose logits are so far from 1 in one place."""
    made: dict[str, Worker] = {}
    for name, gap in gaps.items():
        values = np.ones((4, 3, 5), np.float32)
        values[1, 2, 3] += gap
        np.save(folder / f"{name}.npy", values)
        made[name] = Told(logits={"path": str(folder / f"{name}.npy")})
    return made


def test_logits_that_are_near_enough_are_told(tmp_path: Path) -> None:
    gaps = differences(with_logits(tmp_path, ours=0, tunix=0.5 * LOGITS, torch=-0.5 * LOGITS), 40)
    assert gaps == {name: pytest.approx(0.5 * LOGITS, rel=0.01) for name in ("tunix", "torch")}


@pytest.mark.parametrize("gap", [2 * LOGITS, -2 * LOGITS, np.nan])
def test_another_network_is_not_timed(tmp_path: Path, gap: float) -> None:
    with pytest.raises(UserError, match=r"logits of torch are .* another network: nothing was"):
        differences(with_logits(tmp_path, ours=0, tunix=0, torch=gap), 40)


def updates(**changes: dict[str, float]) -> dict[str, Worker]:
    """Workers that took a step of loss -0.5 and gradient norm 3, but for these changes."""
    usual = {"loss": -0.5, "grad_norm": 3.0}
    return {name: Told(update=usual | change) for name, change in changes.items()}


def test_steps_that_are_near_enough_are_one() -> None:
    near = {"loss": -0.5 * (1 + 0.9 * LOSSES), "grad_norm": 3 * (1 - 0.9 * LOSSES)}
    check_updates(updates(ours={}, tunix=near, TRL={}))


@pytest.mark.parametrize("what", ["loss", "grad_norm"])
@pytest.mark.parametrize("factor", [1 + 2 * LOSSES, 1 - 2 * LOSSES, -1.0, np.nan])
def test_an_update_that_takes_another_step_is_not_timed(what: str, factor: float) -> None:
    other = {what: {"loss": -0.5, "grad_norm": 3.0}[what] * factor}
    with pytest.raises(UserError, match=f"update of TRL has {what} .* nothing was timed"):
        check_updates(updates(ours={}, tunix={}, TRL=other))


# What is told of the results


CASE = Case(name="talk", title="talking", unit="tokens", sizes=("small",), goals={"peer": 3.0})


def results(folder: Path, ours: list[float], theirs: list[float]) -> Results:
    """Of a case in which a hundred tokens are said, in so many seconds each time."""
    made = Results(folder)
    made.values["about"] = {"date": "today", "machine": "a machine", "versions": {"ours": "all 1"}}
    each = {
        name: {"seconds": seconds, "amounts": [100] * len(seconds), "first_call": 9.0}
        for name, seconds in (("ours", ours), ("peer", theirs))
    }
    made.put("cases", "talk/small", {"implementations": each, "load": [0.5] * len(ours)})
    return made


def test_speeds_are_medians_with_their_spread(tmp_path: Path) -> None:
    [line] = results(tmp_path, [1.0, 4.0, 2.0], [10.0, 10.0, 40.0]).lines([CASE])
    assert (line.ours.median, line.ours.least, line.ours.most) == (50.0, 25.0, 100.0)
    assert line.ours.told("tokens") == "50 (25 to 100)"
    assert line.ours.told("iterations") == "0.02 s (0.01 to 0.04)"
    assert (line.ratio, line.verdict) == (5.0, "met")


def test_a_goal_that_was_missed_says_by_how_much(tmp_path: Path) -> None:
    found = results(tmp_path, [1.0], [2.25])
    [line] = found.lines([CASE])
    assert line.verdict == "missed by 25%"
    text = markdown(found, [CASE])
    assert (
        "| talking | small | 100 (100 to 100) | peer | 44 (44 to 44) | 2.2 | 3 | missed by 25% |"
        in text
    )
    assert "| talk/small | ours 9.0, peer 9.0 | 1 | 0.5 |" in text


def test_what_was_measured_is_on_disk_and_goes_on(tmp_path: Path) -> None:
    results(tmp_path, [1.0, 2.0], [3.0, 4.0])
    again = Results(tmp_path)
    assert again.has("cases", "talk/small")
    assert not again.has("cases", "talk/large")
    assert table(again, [CASE]).splitlines()[1:] == [
        "talk,small,ours,0,1.0000,100,0.5",
        "talk,small,ours,1,2.0000,100,0.5",
        "talk,small,peer,0,3.0000,100,0.5",
        "talk,small,peer,1,4.0000,100,0.5",
    ]


def test_the_figure_has_a_panel_a_case(tmp_path: Path) -> None:
    draw(results(tmp_path, [1.0], [3.0]), [CASE], tmp_path)
    assert (tmp_path / "bench.png").stat().st_size > 1000
    assert "talking" in (tmp_path / "bench.svg").read_text()


def spoken(seconds: float) -> Call:
    return lambda seed: {"seconds": seconds, "tokens": 8 + seed}


def test_repeats_go_round_until_there_are_enough_of_them() -> None:
    order = []

    def call(name: str, seed: int) -> dict[str, float]:
        order.append((name, seed))
        return {"seconds": 1.0, "tokens": 8}

    calls = {name: partial(call, name) for name in ("ours", "peer")}
    found = measure(calls, None, repeats=2, budget=60)
    assert [name for name, _ in order] == ["ours", "peer"] * 3
    assert [seed for name, seed in order if name == "ours"] == [0, 2, 3]
    assert found["implementations"]["peer"]["seconds"] == [1.0, 1.0]
    assert len(found["load"]) == 2


def test_a_slow_case_has_one_round() -> None:
    found = measure({"ours": spoken(5.0)}, 1, repeats=5, budget=0)
    assert found["implementations"]["ours"]["amounts"] == [1]


def test_two_trainers_are_told_with_and_without_the_second_rollout() -> None:
    answer = {"seconds": 10.0, "shared_seconds": 6.0}
    found = measure({"TRL": lambda seed: answer}, 1, repeats=1, budget=1)
    assert found["implementations"]["TRL, one rollout"] == {"seconds": [6.0], "amounts": [1]}


def test_the_slope_of_memory_has_an_error_that_knows_its_noise() -> None:
    at = np.arange(400)
    noise = 50 * np.sin(at)
    slope, error = slope_of(at, 1e5 + noise)
    assert abs(slope) <= error < 0.5
    slope, error = slope_of(at, 1e5 + 3 * at + noise)
    assert abs(slope - 3) <= error < 0.5


def test_no_growth_is_claimed_only_where_a_small_one_would_be_seen() -> None:
    assert no_growth(3.0, SHOWN - 1) is True
    assert no_growth(-3.0, SHOWN - 1) is True
    assert no_growth(-7.7, 157.2) is None
    assert no_growth(9.0, 8.0) is False
    assert no_growth(200.0, 157.2) is False
    assert no_growth(-9.0, 8.0) is None


def test_how_the_rows_of_our_update_were_cut_is_told(tmp_path: Path) -> None:
    found = results(tmp_path, [1.0], [2.25])
    assert "rows a pass" not in markdown(found, [CASE])
    cut = {"micro_batch": 8, "lengths": [209], "lanes": 2}
    ours = found.values["cases"]["talk/small"]["implementations"]["ours"]
    ours["answers"] = [{"seconds": 1.0, "cut": cut}]
    assert "small: 8 rows a pass, 2 side by side." in markdown(found, [CASE])


def test_choices_are_run_by_turns_from_one_start_and_warm_iterations_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[str, ...]] = []

    class Pretended:
        def __init__(self, config: str, root: Path, options: tuple[str, ...]) -> None:
            self.folder = root / "mini" / "seed0"
            self.slow = "stale=0" in options
            begun.append(tuple(options))

        def finish(self) -> list[dict]:
            return [
                {"seconds": {"total": s}} for s in ([9, 4, 6, 4] if self.slow else [9, 1, 3, 1])
            ]

    monkeypatch.setattr(choices, "Run", Pretended)
    both = {"exact": ["stale=0"], "stale": ["stale=1"]}
    of = choices._seconds("total")
    found = choices.by_turns("a.py", tmp_path, ["sft=1"], ["n=4"], both, of, skip=1)
    assert found == {"exact": [4] * choices.ROUNDS, "stale": [1] * choices.ROUNDS}
    assert begun[0] == ("sft=1", "iterations=1")
    assert [options[-1] for options in begun[1:]] == ["stale=0", "stale=1"] * choices.ROUNDS
    (start,) = {options[0] for options in begun[1:]}
    assert start == f"policy.start={tmp_path / 'kept' / 'mini' / 'seed0' / 'policies' / 'start'}"
    (line,) = choices._compared("iteration", "stale", "exact", found)["figures"]
    assert (line["value"], line["told"], line["met"]) == (0.25, "0.25 (1.00 s for 4.00 s)", None)


def test_the_slow_judge_approves_of_every_turn_it_is_asked_about() -> None:
    lines = [
        {"turn": 0, "role": "customer", "text": "Hello?"},
        {"turn": 1, "role": "sales", "text": "Good day"},
        {"turn": 2, "role": "customer", "text": "No"},
        {"turn": 3, "role": "sales", "text": "Well"},
    ]
    call = "\n".join(json.dumps(line) for line in lines)
    of_sales = _verdict(f'{{"informed_deferral": false}}\nThe call, with turn numbers: {call}')
    covering(SalesVerdict, (1, 3)).model_validate_json(json.dumps(of_sales))
    of_customer = _verdict(f"The call, with turn numbers: {call}")
    covering(CustomerVerdict, (2,)).model_validate_json(json.dumps(of_customer))


# Ours, at the size of a toy


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ours]:
    """Ours' worker with two seats of the smallest network."""
    folder = tmp_path_factory.mktemp("bench") / "small"
    with closing(Ours()) as ours:
        assert ours.make(str(folder), "0.1M") == {"parameters": 164288, "vocab": 640}
        assert ours.load(str(folder), 2) == {"parameters": 164288}
        yield ours


def test_a_rollout_says_as_many_tokens_as_it_is_asked_for(loaded: Ours) -> None:
    prompts = {role: [[9, 10, 11], [12, 13, 14]] for role in ("a", "b")}
    found = loaded.rollout(prompts, turns=4, turn_tokens=3, stop_ids=[], seed=0)
    assert found["tokens"] == 2 * 4 * 3
    assert found["seconds"] > 0
    held = [engine for pair in loaded._engines.values() for engine in pair]
    assert all(len(engine._free) == 2 for engine in held)


def test_the_batch_for_all_ends_with_a_trained_token(loaded: Ours, tmp_path: Path) -> None:
    file = str(tmp_path / "batch.npz")
    sizes = dict(rows=4, prompt=6, turns=3, turn_tokens=2, seed=0)
    assert loaded.write_batch(file, **sizes)["length"] == 6 + 3 * 7 - 2
    with np.load(file) as batch:
        mask, gap = batch["loss_mask"], batch["behaviour_logp"] - batch["reference_logp"]
    assert mask.sum() == 4 * 2 * 2
    assert mask[:, -1].all()
    assert not mask[:, :9].any()
    assert 0 < np.abs(gap[mask]).max() < 2
