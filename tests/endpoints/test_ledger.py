"""Totals, and budgets that are checked before they are exceeded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ibrl_jax.endpoints import Budget, EndpointSettings
from ibrl_jax.endpoints.ledger import Ledger, Reservation, token_bound
from ibrl_jax.errors import UserError

HELD = Reservation(tokens_in=100, tokens_out=50)
NO_LIMIT = dict.fromkeys(("max_calls", "max_tokens", "max_cost"))


def request(
    ledger: Ledger, outcome: str = "ok", tokens: tuple[int, int] | None = (60, 20), **more: Any
) -> None:
    ledger.leave(HELD)
    fields = {"billed": outcome == "ok", "latency_s": 1.0} | more
    tokens_in, tokens_out = tokens or (None, None)
    ledger.settle(HELD, outcome=outcome, tokens_in=tokens_in, tokens_out=tokens_out, **fields)


@pytest.fixture
def make(make_settings: Callable[..., EndpointSettings]) -> Callable[..., Ledger]:
    def ledger(file: Path | None = None, **budget: Any) -> Ledger:
        limits = Budget(**(NO_LIMIT | budget))
        return Ledger(make_settings(budget=limits, price_in=2.0, price_out=10.0), file)

    return ledger


def test_totals_are_what_was_asked_and_answered(make: Callable[..., Ledger]) -> None:
    ledger = make()
    ledger.answered(outcome="ok", cached=True)
    request(ledger, "timeout", None, billed=True)
    request(ledger, "rate_limited", None)
    request(ledger)
    ledger.answered(outcome="ok", cached=False)
    request(ledger, "timeout", None, billed=True)
    ledger.answered(outcome="timeout", cached=False)
    total = ledger.summary()
    assert total == json.loads(json.dumps(total))
    assert (total["calls"], total["cached"], total["answered"]) == (3, 1, 1)
    assert total["failures"] == {"timeout": 1}
    assert total["requests"] == 4
    assert total["failed_requests"] == {"rate_limited": 1, "timeout": 2}
    assert total["retries"] == {"rate_limited": 1, "timeout": 1}
    assert (total["tokens_in"], total["tokens_out"]) == (60, 20)
    assert total["tokens_unreported_at_most"] == 300
    assert total["cost"] == pytest.approx((60 * 2 + 20 * 10) / 1e6)
    assert total["cost_at_most"] == pytest.approx((260 * 2 + 120 * 10) / 1e6)


def test_totals_are_told_on_one_line(make: Callable[..., Ledger]) -> None:
    ledger = make()
    assert ledger.told() == (
        "judge (scripted): 0 calls, 0 answered; 0 requests; 0 tokens in and 0 out; cost 0"
    )
    ledger.answered(outcome="ok", cached=True)
    request(ledger, "timeout", None, billed=True)
    request(ledger, tokens=(60_000, 20))
    ledger.answered(outcome="ok", cached=False)
    request(ledger, "filtered", (60, 0))
    ledger.answered(outcome="filtered", cached=False)
    assert ledger.told() == (
        "judge (scripted): 3 calls, 2 answered (1 from the cache), failed filtered 1; "
        "3 requests, tried again timeout 1; 60,060 tokens in and 20 out, "
        "and at most 150 more that were not reported; cost 0.1203, and at most 0.0007 more; "
        "1 s a request (median; 99 in 100 in 1)"
    )


def test_latency_quantiles_are_within_one_percent(make: Callable[..., Ledger]) -> None:
    ledger = make()
    for i in range(1, 101):
        request(ledger, latency_s=i / 10)
    quantiles = ledger.summary()["latency_s"]
    assert quantiles == pytest.approx({"p50": 5.0, "p90": 9.0, "p99": 9.9}, rel=0.0101)


def test_a_ledger_without_requests_has_no_latency(make: Callable[..., Ledger]) -> None:
    assert make().summary()["latency_s"] == {"p50": None, "p90": None, "p99": None}


@pytest.mark.parametrize(
    ("budget", "fits"),
    [
        ({"max_calls": 3}, 3),
        ({"max_tokens": 150}, 1),
        ({"max_tokens": 149}, 0),
        ({"max_tokens": 230}, 2),  # 80 spent, and 150 may be
        ({"max_tokens": 229}, 1),
        ({"max_cost": 700e-6}, 1),
        ({"max_cost": 699e-6}, 0),
    ],
)
def test_a_request_fits_if_its_bound_does(
    budget: dict[str, float], fits: int, make: Callable[..., Ledger]
) -> None:
    ledger = make(**budget)
    for _ in range(fits):
        assert ledger.exceeded_by(HELD) is None
        request(ledger)
    assert str(ledger.exceeded_by(HELD)).startswith(next(iter(budget)))


def test_requests_in_flight_count_as_reserved(make: Callable[..., Ledger]) -> None:
    ledger = make(max_tokens=300)
    ledger.leave(HELD)
    assert ledger.exceeded_by(HELD) is None
    ledger.leave(HELD)
    assert ledger.exceeded_by(HELD) == "max_tokens = 300"
    ledger.settle(
        HELD, outcome="ok", tokens_in=60, tokens_out=20, billed=True, latency_s=1.0
    )  # fmt: skip
    assert ledger.in_flight == 1
    assert ledger.exceeded_by(Reservation(tokens_in=50, tokens_out=20)) is None


def test_tokens_that_may_have_been_billed_count_as_reserved(make: Callable[..., Ledger]) -> None:
    ledger = make(max_tokens=299)
    request(ledger, "server", None, billed=False)
    assert ledger.exceeded_by(HELD) is None
    request(ledger, "timeout", None, billed=True)
    assert ledger.exceeded_by(HELD) is not None


def test_a_killed_run_goes_on_from_its_ledger(make: Callable[..., Ledger], tmp_path: Path) -> None:
    file = tmp_path / "run" / "ledger.jsonl"
    first = make(file, max_calls=2)
    request(first)
    first.answered(outcome="ok", cached=False)
    before = first.summary()
    first.close()
    with file.open("a") as torn:
        torn.write('{"event": "request", "outc')
    second = make(file, max_calls=2)
    assert second.summary() == before
    request(second)
    assert second.exceeded_by(HELD) == "max_calls = 2"
    second.close()
    request(second, "timeout", None)  # a closed ledger opens again
    second.close()
    assert make(file).summary()["requests"] == 3


def test_a_ledger_file_that_cannot_be_used_is_one_sentence(
    make: Callable[..., Ledger], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="ledger .* cannot be written"):
        make(tmp_path / "file" / "ledger.jsonl")
    with pytest.raises(UserError, match="ledger .* cannot be read"):
        make(tmp_path)


def test_a_prompt_has_no_more_tokens_than_the_bound() -> None:
    messages = [{"role": "system", "content": "ab"}, {"role": "user", "content": "你好"}]
    plain = token_bound(messages, None)
    assert plain >= len("systemabuser") + len("你好".encode())
    assert token_bound(messages, {"type": "object"}) > plain
    tools = {"tools": [{"function": {"name": "查", "description": "价" * 100}}]}
    assert token_bound(messages, None, tools) >= plain + len("价".encode()) * 100
