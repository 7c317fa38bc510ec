"""Can an endpoint serve as a counterpart and as a judge, and what does it lack?

A dozen small requests, in under a minute; each finding is one plain line.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ibrl_jax.endpoints.answers import parse_answer, strip_leading_thoughts, strip_thoughts
from ibrl_jax.endpoints.call import MODES, Call
from ibrl_jax.endpoints.errors import RETRIED, STOPS, AttemptFailed
from ibrl_jax.endpoints.settings import LIMITS, EndpointSettings
from ibrl_jax.endpoints.wire import Reply, Wire, stop

_TOTAL_S = 55.0
_ONE_REQUEST_S = 20.0
_LONGEST_WAIT_S = 5.0
_ANSWER_TOKENS = 256
_AT_ONCE = 4


@dataclass(frozen=True, kw_only=True)
class Finding:
    """`ok` is None where nothing could be told."""

    topic: str
    ok: bool | None
    detail: str

    def __str__(self) -> str:
        mark = {True: "yes", False: "no", None: "?"}[self.ok]
        return f"{self.topic:<20} {mark:<4} {self.detail}"


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Findings in the order they were made; `schema_mode` is the strictest that works, or None."""

    endpoint: str
    findings: tuple[Finding, ...]
    schema_mode: str | None

    @property
    def serves_counterpart(self) -> bool:
        """It chats, and it tells an answer that was cut off from one that ended."""
        return self._holds("chat") and self._holds("max_tokens")

    @property
    def serves_judge(self) -> bool:
        """It chats, and gives valid JSON in some mode."""
        return self._holds("chat") and self.schema_mode is not None

    def __str__(self) -> str:
        lines = [self.endpoint, *map(str, self.findings)]
        lines.append(f"as a counterpart     {'yes' if self.serves_counterpart else 'no'}")
        advice = f"  set schema_mode = {self.schema_mode!r}" if self.serves_judge else ""
        lines.append(f"as a judge           {'yes' if self.serves_judge else 'no '}{advice}")
        return "\n".join(lines)

    def _holds(self, topic: str) -> bool:
        return any(finding.topic == topic and finding.ok for finding in self.findings)


def endpoint_check(
    settings: EndpointSettings, *, say: Callable[[str], None] = print
) -> CheckReport:
    """Ask an endpoint a dozen things and say what was found, in a minute at most.

    The settings' cache, budget, concurrency and retries are not used.

    Raises:
        EndpointStop: the key, the address or the model is at fault.
    """
    report = asyncio.run(_Check(settings).report())
    say(str(report))
    return report


class _Days(BaseModel):
    model_config = ConfigDict(extra="forbid")

    days: int = Field(ge=1, le=31)
    remark: str


class _Check:
    def __init__(self, settings: EndpointSettings) -> None:
        self._settings = replace(settings, timeout_s=min(settings.timeout_s, _ONE_REQUEST_S))
        self._wire = Wire(self._settings)
        self._ends = time.monotonic() + _TOTAL_S
        self._latencies: list[float] = []
        self._schema_mode: str | None = None

    async def report(self) -> CheckReport:
        try:
            findings = await self._findings()
        finally:
            await self._wire.aclose()
        where = f"{self._settings.base_url} ({self._settings.model})"
        return CheckReport(endpoint=where, findings=tuple(findings), schema_mode=self._schema_mode)

    async def _findings(self) -> list[Finding]:
        probes: dict[str, Callable[[], Awaitable[Finding]]] = {
            "chat": self._chat,
            "temperature 0": self._temperature,
            "max_tokens": self._max_tokens,
            "stop": self._stop,
            "logprobs": self._logprobs,
            **{mode: lambda mode=mode: self._schema(mode) for mode in MODES[:2]},
            "json by prompt": lambda: self._schema(MODES[2]),
            "parallel calls": self._parallel,
            "latency": self._latency,
        }
        findings: list[Finding] = []
        for topic, probe in probes.items():
            if findings and not findings[0].ok:
                findings.append(Finding(topic=topic, ok=None, detail="not tried"))
                continue
            try:
                async with asyncio.timeout(max(0.0, self._ends - time.monotonic())):
                    findings.append(await probe())
            except TimeoutError:
                findings.append(Finding(topic=topic, ok=None, detail="not told: out of time"))
            except AttemptFailed as failure:
                if failure.kind in STOPS:
                    raise stop(self._settings, failure) from None
                findings.append(Finding(topic=topic, ok=False, detail=str(failure)))
        return findings

    async def _chat(self) -> Finding:
        reply = await self._ask("Say in one short sentence that you are ready.")
        text = strip_thoughts(reply.text)
        usage = "counts tokens" if reply.tokens_out is not None else "does not count tokens"
        thoughts = "; thinks aloud" if text != reply.text.strip() else ""
        said = f"{len(text)} characters" if text else "an empty answer"
        return Finding(topic="chat", ok=bool(text), detail=f"{said}; {usage}{thoughts}")

    async def _temperature(self) -> Finding:
        first, second = [
            (await self._ask("Invent a short story about a boat.", max_tokens=32)).text
            for _ in range(2)
        ]
        if not first.strip():
            return Finding(topic="temperature 0", ok=None, detail="not told: empty answers")
        same = first == second
        detail = "the same twice" if same else "two answers to one prompt differ"
        return Finding(topic="temperature 0", ok=same, detail=detail)

    async def _max_tokens(self) -> Finding:
        reply = await self._ask("Count from 1 to 100 in words.", max_tokens=8)
        counted = "" if reply.tokens_out is None else f", {reply.tokens_out} of 8 tokens"
        kept = reply.tokens_out is None or reply.tokens_out <= 8
        return Finding(
            topic="max_tokens",
            ok=reply.finish == "length" and kept,
            detail=f"finish_reason is {reply.finish!r}{counted}",
        )

    async def _stop(self) -> Finding:
        reply = await self._ask(
            "Write the numbers 1 2 3 4 5 6 7 8 9 and nothing else.", extra={"stop": ["6"]}
        )
        text = strip_thoughts(reply.text)
        if not text or "5" not in text:
            return Finding(topic="stop", ok=None, detail="not told: it did not count")
        stopped = "6" not in text and "7" not in text
        detail = "ends before the stop sequence" if stopped else "the stop sequence is passed"
        return Finding(topic="stop", ok=stopped, detail=detail)

    async def _logprobs(self) -> Finding:
        reply = await self._ask("Say yes.", max_tokens=8, extra={"logprobs": True})
        detail = "of each sampled token" if reply.logprobs else "asked for, not given"
        return Finding(topic="logprobs", ok=reply.logprobs, detail=detail)

    async def _schema(self, mode: str) -> Finding:
        """First without a word on the format, so that only an enforced schema can give it."""
        topic = "json by prompt" if mode == "none" else mode
        question = "How many days does a week have?"
        told = " Answer with one JSON object: days (a whole number) and remark (a few words)."
        if mode == "json_schema" and await self._valid(question, mode):
            works, detail = True, "enforced"
        else:
            works = await self._valid(question + told, mode)
            detail = "valid where the prompt says the format" if works else "no valid answer"
        if works and self._schema_mode is None:
            self._schema_mode = mode
        return Finding(topic=topic, ok=works, detail=detail)

    async def _valid(self, prompt: str, mode: str) -> bool:
        reply = await self._ask(prompt, schema=_Days, mode=mode)
        try:
            parse_answer(strip_leading_thoughts(reply.text), _Days)
        except AttemptFailed:
            return False
        return reply.finish != "length"

    async def _parallel(self) -> Finding:
        async def timed(number: int) -> float:
            started = time.perf_counter()
            await asyncio.gather(
                *(self._ask(f"Name a town, try {i}.", max_tokens=16) for i in range(number))
            )
            return time.perf_counter() - started

        one, many = await timed(1), await timed(_AT_ONCE)
        return Finding(
            topic="parallel calls",
            ok=many < 0.75 * _AT_ONCE * one,
            detail=f"{_AT_ONCE} at once took {many / one:.1f} times as long as one",
        )

    async def _latency(self) -> Finding:
        middle, worst = statistics.median(self._latencies), max(self._latencies)
        detail = f"median {middle:.2f} s, worst {worst:.2f} s of {len(self._latencies)} requests"
        return Finding(topic="latency", ok=worst < self._settings.timeout_s / 2, detail=detail)

    async def _ask(
        self,
        prompt: str,
        *,
        max_tokens: int = _ANSWER_TOKENS,
        schema: type[BaseModel] | None = None,
        mode: str = "none",
        extra: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One request at temperature 0, sent once more if the first try fails by chance.

        Whatever `extra_body` calls the longest answer is `max_tokens` here too.
        """
        own = self._settings.extra_body
        limits = {name: max_tokens for name in LIMITS if own.get(name) is not None}
        settings = replace(self._settings, extra_body={**own, **limits, **(extra or {})})
        body = Call(
            settings,
            [{"role": "user", "content": prompt}],
            sample_index=0,
            schema=schema,
            temperature=0.0,
            max_tokens=max_tokens,
        ).body(mode)
        started = time.perf_counter()
        try:
            reply = await self._wire.send(body)
        except AttemptFailed as failure:
            if failure.kind not in RETRIED:
                raise
            await asyncio.sleep(min(failure.wait_s or 0.5, _LONGEST_WAIT_S))
            started = time.perf_counter()
            reply = await self._wire.send(body)
        self._latencies.append(time.perf_counter() - started)
        return reply
