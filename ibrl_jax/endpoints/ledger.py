"""What an endpoint was asked, what came back, and what it cost.

The totals are a fold over events: one a request, one an answer. With a file the events are
appended to it as JSON lines, and a ledger that opens the same file again goes on from there, so
that a budget is a run's and not a process's. Events hold counts, never a text.

A budget is checked against an upper bound before a request leaves (`token_bound`): a token of
a byte-level tokenizer is at least one byte, so a prompt has at most as many tokens as bytes,
plus what a chat template adds.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ibrl_jax.endpoints.settings import EndpointSettings
from ibrl_jax.errors import UserError

_TEMPLATE_TOKENS = 64
_TEMPLATE_TOKENS_A_MESSAGE = 16
_LATENCY_STEP = 1.02


def token_bound(
    messages: Sequence[Mapping[str, str]],
    schema: Mapping[str, Any] | None,
    extra: Mapping[str, Any] | None = None,
) -> int:
    """The most prompt tokens that a request can have; `extra` may say what becomes part of one."""
    texts = [value for message in messages for value in message.values()]
    texts += [json.dumps(more, ensure_ascii=False) for more in (schema, extra) if more]
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    return size + _TEMPLATE_TOKENS + _TEMPLATE_TOKENS_A_MESSAGE * len(messages)


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Tokens that a request in flight may use at most."""

    tokens_in: int
    tokens_out: int


class Ledger:
    """Totals of one endpoint. Not shared between threads."""

    def __init__(self, settings: EndpointSettings, file: Path | None) -> None:
        """`file`: the JSON lines to go on from and to append to; None keeps totals only.

        Raises:
            UserError: the file cannot be written.
        """
        self._settings = settings
        self._in_flight: Counter[Reservation] = Counter()
        self._sums: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._latencies: Counter[int] = Counter()
        self._path = file
        self._file: TextIO | None = None
        if file is not None:
            torn = file.exists() and self._replay(file)
            self._append("\n" if torn else "")
            self.close()

    def exceeded_by(self, reservation: Reservation) -> str | None:
        """The budget that one more request would exceed, in words; None if none.

        Requests in flight count with what they may use at most (see `in_flight`).
        """
        limits, spent = self._settings.budget, self._sums
        if limits.max_calls is not None and spent["requests"] + self.in_flight >= limits.max_calls:
            return f"max_calls = {limits.max_calls}"
        tokens_in = spent["tokens_in"] + spent["unreported_in"] + reservation.tokens_in
        tokens_out = spent["tokens_out"] + spent["unreported_out"] + reservation.tokens_out
        for held, count in self._in_flight.items():
            tokens_in += count * held.tokens_in
            tokens_out += count * held.tokens_out
        if limits.max_tokens is not None and tokens_in + tokens_out > limits.max_tokens:
            return f"max_tokens = {limits.max_tokens}"
        cost = self._settings.cost(tokens_in, tokens_out)
        if limits.max_cost is not None and cost is not None and cost > limits.max_cost:
            return f"max_cost = {limits.max_cost:g}"
        return None

    @property
    def in_flight(self) -> int:
        """Requests that have left and are not settled; only these may give budget back."""
        return self._in_flight.total()

    def leave(self, reservation: Reservation) -> None:
        """A request leaves."""
        self._in_flight[reservation] += 1

    def settle(
        self,
        reservation: Reservation,
        *,
        outcome: str,
        tokens_in: int | None,
        tokens_out: int | None,
        billed: bool,
        latency_s: float,
    ) -> None:
        """A request has ended: `outcome` is `ok` or the kind of its failure.

        Tokens that were `billed`, or may have been, and not reported count as reserved.
        """
        self._in_flight[reservation] -= 1
        self._in_flight += Counter()  # drops the zeros
        event: dict[str, Any] = {
            "event": "request",
            "outcome": outcome,
            "latency_s": round(latency_s, 4),
        }
        for side, known, bound in (
            ("in", tokens_in, reservation.tokens_in),
            ("out", tokens_out, reservation.tokens_out),
        ):
            if known is not None:
                event[f"tokens_{side}"] = known
            elif billed:
                event[f"unreported_{side}"] = bound
        self._record(event)

    def answered(self, *, outcome: str, cached: bool) -> None:
        """A call has ended, by an answer (`ok`) or by the failure of its last attempt."""
        self._record({"event": "answer", "outcome": outcome, "cached": cached})

    def summary(self) -> dict[str, Any]:
        """The totals, JSON-able. Latencies are of answered requests, in seconds, within 1%."""
        sums, attempts = self._sums, self._attempts
        failures = {kind: n for kind, n in sorted(self._answers.items()) if kind != "ok"}
        failed_attempts = {kind: n for kind, n in sorted(attempts.items()) if kind != "ok"}
        retries = Counter(failed_attempts)
        retries.subtract(failures)
        return {
            "endpoint": self._settings.name,
            "model": self._settings.model,
            "calls": sums["cached"] + self._answers.total(),
            "cached": sums["cached"],
            "answered": self._answers["ok"],
            "failures": failures,
            "requests": sums["requests"],
            "failed_requests": failed_attempts,
            "retries": {kind: n for kind, n in retries.items() if n > 0},
            "tokens_in": sums["tokens_in"],
            "tokens_out": sums["tokens_out"],
            "tokens_unreported_at_most": sums["unreported_in"] + sums["unreported_out"],
            "cost": self._settings.cost(sums["tokens_in"], sums["tokens_out"]),
            "cost_at_most": self._settings.cost(
                sums["tokens_in"] + sums["unreported_in"],
                sums["tokens_out"] + sums["unreported_out"],
            ),
            "latency_s": {f"p{q}": self._latency(q / 100) for q in (50, 90, 99)},
        }

    def told(self) -> str:
        """The totals on one line, for a person."""
        sums, wait = self.summary(), self.summary()["latency_s"]
        parts = [
            f"{sums['calls']:,} calls, {sums['answered'] + sums['cached']:,} answered"
            + (f" ({sums['cached']:,} from the cache)" if sums["cached"] else "")
            + _counted(", failed", sums["failures"]),
            f"{sums['requests']:,} requests" + _counted(", tried again", sums["retries"]),
            f"{sums['tokens_in']:,} tokens in and {sums['tokens_out']:,} out"
            + _at_most(sums["tokens_unreported_at_most"], "{:,} more that were not reported"),
        ]
        if sums["cost"] is None:
            parts.append("cost not known, without prices")
        else:
            rest = sums["cost_at_most"] - sums["cost"]
            parts.append(f"cost {sums['cost']:.4g}" + _at_most(rest, "{:.4g} more"))
        if wait["p50"] is not None:
            parts.append(f"{wait['p50']:.3g} s a request (median; 99 in 100 in {wait['p99']:.3g})")
        return f"{sums['endpoint']} ({sums['model']}): " + "; ".join(parts)

    def close(self) -> None:
        """Close the file; a later event opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _record(self, event: dict[str, Any]) -> None:
        self._apply(event)
        stamped = {"time": round(time.time(), 3), "endpoint": self._settings.name, **event}
        self._append(json.dumps(stamped) + "\n")

    def _append(self, line: str) -> None:
        if self._path is None:
            return
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = self._path.open("a", encoding="utf-8", buffering=1)
            self._file.write(line)
        except OSError as error:
            raise UserError(
                f"the ledger {self._path} cannot be written: {error.strerror}"
            ) from None

    def _apply(self, event: Mapping[str, Any]) -> None:
        outcome = event["outcome"]
        if event["event"] == "answer":
            if event["cached"]:
                self._sums["cached"] += 1
            else:
                self._answers[outcome] += 1
            return
        self._sums["requests"] += 1
        self._attempts[outcome] += 1
        for field in ("tokens_in", "tokens_out", "unreported_in", "unreported_out"):
            self._sums[field] += event.get(field, 0)
        if outcome == "ok":
            bucket = math.log(max(event["latency_s"], 1e-4), _LATENCY_STEP)
            self._latencies[round(bucket)] += 1

    def _replay(self, file: Path) -> bool:
        """Take up an earlier process's events; true if its last line was torn by a kill."""
        try:
            content = file.read_text("utf-8", errors="replace")
        except OSError as error:
            raise UserError(f"the ledger {file} cannot be read: {error.strerror}") from None
        for line in content.splitlines():
            try:
                event = json.loads(line)
                if event["endpoint"] == self._settings.name:
                    self._apply(event)
            except (ValueError, KeyError, TypeError):
                continue  # a torn line: its request goes uncounted
        return bool(content) and not content.endswith("\n")

    def _latency(self, quantile: float) -> float | None:
        rank = math.ceil(quantile * self._latencies.total())
        for bucket in sorted(self._latencies):
            rank -= self._latencies[bucket]
            if rank <= 0:
                return round(_LATENCY_STEP**bucket, 4)
        return None


def _counted(what: str, kinds: Mapping[str, int]) -> str:
    return f"{what} " + ", ".join(f"{kind} {n:,}" for kind, n in kinds.items()) if kinds else ""


def _at_most(amount: float, text: str) -> str:
    return ", and at most " + text.format(amount) if amount else ""
