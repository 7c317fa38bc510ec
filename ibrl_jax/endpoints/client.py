"""The one client: a chat call either gives an `Answer` or raises how it failed.

```
chat -> cache hit ------------------------------------------------------> Answer
     -> attempt -> place, pace, budget -> one HTTP request -> read, parse -> Answer, cached
            ^                                   |
            +---- wait: back-off, Retry-After --+-> EndpointError, EndpointStop
```

A rate limit is waited for up to `RATE_LIMIT_WAITS` times, where a failure is tried again `retries`
times: it says nothing of the call, and judges of many dialogues meet it together.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, overload

from pydantic import BaseModel

from ibrl_jax.endpoints.answers import parse_answer, strip_leading_thoughts, strip_thoughts
from ibrl_jax.endpoints.cache import Cache, Entry
from ibrl_jax.endpoints.call import MODES, Call, Messages, backoff_s
from ibrl_jax.endpoints.errors import (
    RETRIED,
    STOPS,
    AttemptFailed,
    EndpointError,
    EndpointStop,
    Kind,
)
from ibrl_jax.endpoints.faults import BROKEN_OFF, CUT_OFF, WITHHELD
from ibrl_jax.endpoints.lane import Lane
from ibrl_jax.endpoints.ledger import Ledger, Reservation
from ibrl_jax.endpoints.settings import EndpointSettings
from ibrl_jax.endpoints.wire import read_key, stop

Model = TypeVar("Model", bound=BaseModel)
Parsed = TypeVar("Parsed")

RATE_LIMIT_WAITS = 8
"""How often a call that meets a rate limit is asked again, if `retries` is not more."""

_LONGEST_TOKEN = 256
"""Characters; an answer with more for each token that was asked for is none."""


@dataclass(frozen=True, kw_only=True)
class Answer(Generic[Parsed]):
    """What came back of one call.

    Attributes:
        text: the completion without thoughts.
        parsed: the validated object; None where no schema was asked.
        finish: the server's word for why it ended, in lower case: `stop`, `length`, ...
        tokens_in: of the prompt; None where the server does not say.
        tokens_out: of the completion, thoughts included; None where the server does not say.
        latency_s: seconds of the request that was answered, waits excluded.
        cached: it was read from the disk cache.
        attempts: HTTP requests that it took; 0 where it was cached.
    """

    text: str
    parsed: Parsed
    finish: str
    tokens_in: int | None
    tokens_out: int | None
    latency_s: float
    cached: bool
    attempts: int


class Endpoint:
    """One model behind one address. Any number of calls may run at once in one event loop."""

    def __init__(self, settings: EndpointSettings, *, ledger_file: Path | None = None) -> None:
        """`ledger_file`: JSON lines that the ledger goes on from and appends to, or None.

        Raises:
            EndpointStop: the key's environment variable is not set.
            UserError: the cache folder or the ledger cannot be written.
        """
        read_key(settings)
        self.settings = settings
        self.ledger = Ledger(settings, ledger_file)
        self._cache = None if settings.cache_dir is None else Cache(Path(settings.cache_dir))
        self._lane: Lane | None = None
        self._stopped: tuple[Kind, str] | None = None
        self._accepted: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"Endpoint({self.settings.name!r}, {self.settings.base_url}, {self.settings.model})"

    @overload
    async def chat(
        self,
        messages: Messages,
        *,
        sample_index: int = 0,
        schema: None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Answer[None]: ...

    @overload
    async def chat(
        self,
        messages: Messages,
        *,
        sample_index: int = 0,
        schema: type[Model],
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Answer[Model]: ...

    async def chat(
        self,
        messages: Messages,
        *,
        sample_index: int = 0,
        schema: type[BaseModel] | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> Answer[Any]:
        """Ask, and ask again as the settings say.

        The prompt has to describe the format itself: a server may not know of schemas.

        Args:
            messages: `role` and `content` each.
            sample_index: tells apart draws from one prompt; a rerun replays each its own.
            schema: what the answer is validated against.
            temperature: instead of the settings'.
            max_tokens: instead of the settings'.

        Raises:
            EndpointError: this call failed, and how.
            EndpointStop: the key, the address, the model or the budget is at fault.
        """
        settings = self.settings
        call = Call(
            settings,
            messages,
            sample_index=sample_index,
            schema=schema,
            temperature=settings.temperature if temperature is None else temperature,
            max_tokens=settings.max_tokens if max_tokens is None else max_tokens,
        )
        earlier = self._cache.get(call.key) if self._cache else None
        if earlier is not None:
            try:
                answer = _answer(earlier, schema, attempts=0)
            except AttemptFailed:
                pass  # what counts as an answer has changed since: ask again
            else:
                self.ledger.answered(outcome="ok", cached=True)
                return answer
        outcome = "cancelled"
        try:
            answer = await self._ask(call, replace=earlier is not None)
            outcome = "ok"
            return answer
        except (EndpointError, EndpointStop) as error:
            outcome = str(error.kind)
            raise
        finally:
            self.ledger.answered(outcome=outcome, cached=False)

    async def aclose(self) -> None:
        """Close the connections and the ledger's file. The endpoint may be used again."""
        lane, self._lane = self._lane, None
        if lane is not None and lane.loop is asyncio.get_running_loop():
            await lane.aclose()
        self.ledger.close()

    async def _ask(self, call: Call, *, replace: bool) -> Answer[Any]:
        requests = failures = limited = 0
        lane = await self._open_lane()
        modes = self._modes(call)
        while True:
            requests += 1
            try:
                entry = await self._attempt(lane, call, modes[0])
                if self._cache:
                    entry = self._cache.put(call.key, entry, replace=replace)
                return _answer(entry, call.schema, attempts=requests)
            except AttemptFailed as failure:
                if failure.kind is Kind.BAD_REQUEST and len(modes) > 1:
                    modes = modes[1:]
                    continue
                if failure.kind in STOPS:
                    error = stop(self.settings, failure)
                    self._stopped = (failure.kind, str(error))
                    raise error from None
                retries, waits = self.settings.retries, failure.kind is Kind.RATE_LIMITED
                failures, limited = failures + (not waits), limited + waits
                spent = limited > max(retries, RATE_LIMIT_WAITS) if waits else failures > retries
                if failure.kind not in RETRIED or spent:
                    raise EndpointError(
                        failure.kind, self.settings.name, failure.detail, requests
                    ) from None
                wait_s = self._wait_s(lane, call, failure, limited if waits else failures)
            await asyncio.sleep(wait_s)

    async def _attempt(self, lane: Lane, call: Call, mode: str) -> Entry:
        """One request, settled in the ledger whatever becomes of it; raises AttemptFailed."""
        async with lane.places:
            await lane.turn()
            await self._wait_for_budget(lane, call.reservation)
            if self._stopped is not None:
                raise EndpointStop(*self._stopped)
            self.ledger.leave(call.reservation)
            started = time.perf_counter()
            reply, outcome, billed = None, "cancelled", True
            try:
                reply = await lane.wire.send(call.body(mode))
                latency_s = time.perf_counter() - started
                if call.form is not None:
                    self._accepted[call.form] = mode
                if len(reply.text) > _LONGEST_TOKEN * call.reservation.tokens_out:
                    raise AttemptFailed(
                        Kind.SERVER,
                        f"an answer of {len(reply.text)} characters, where "
                        f"{call.reservation.tokens_out} tokens were asked for at most",
                    )
                strip = strip_thoughts if call.schema is None else strip_leading_thoughts
                text = strip(reply.text.encode("utf-8", "replace").decode())
                _judge(text, reply.finish, call.schema)
                outcome = "ok"
                return Entry(
                    text=text,
                    finish=reply.finish,
                    tokens_in=reply.tokens_in,
                    tokens_out=reply.tokens_out,
                    latency_s=latency_s,
                )
            except AttemptFailed as failure:
                outcome = str(failure.kind)
                billed = failure.billed or reply is not None
                raise
            finally:
                self.ledger.settle(
                    call.reservation,
                    outcome=outcome,
                    tokens_in=reply.tokens_in if reply else None,
                    tokens_out=reply.tokens_out if reply else None,
                    billed=billed,
                    latency_s=time.perf_counter() - started,
                )
                lane.settled.set()

    async def _wait_for_budget(self, lane: Lane, reservation: Reservation) -> None:
        """Requests in flight may turn out cheaper than reserved: only without any it is final."""
        while (limit := self.ledger.exceeded_by(reservation)) is not None:
            if self.ledger.in_flight == 0:
                raise EndpointStop(
                    Kind.BUDGET,
                    f"endpoint {self.settings.name!r}: one more call could exceed "
                    f"budget.{limit}; raise the budget to go on from here",
                )
            lane.settled.clear()
            await lane.settled.wait()

    def _modes(self, call: Call) -> list[str]:
        """How to ask for a schema, in the order to try while the server refuses the request.

        In `auto`, a mode that has been answered once for a schema is settled.
        """
        if call.form is None:
            return ["none"]
        if self.settings.schema_mode != "auto":
            return [self.settings.schema_mode]
        accepted = self._accepted.get(call.form)
        return list(MODES) if accepted is None else [accepted]

    def _wait_s(self, lane: Lane, call: Call, failure: AttemptFailed, failures: int) -> float:
        """Seconds before the next attempt. What the server asks for holds all calls back."""
        wait_s = backoff_s(self.settings, call.key, failures)
        if failure.wait_s is None:
            return wait_s
        asked_s = min(failure.wait_s, self.settings.max_wait_s)
        lane.hold(asked_s)
        return max(wait_s, asked_s)

    async def _open_lane(self) -> Lane:
        if self._lane is None or self._lane.loop is not asyncio.get_running_loop():
            self._lane = lane = Lane(self.settings)
            await lane.open()
            return lane
        return self._lane


def _judge(text: str, finish: str, schema: type[BaseModel] | None) -> None:
    """Raises AttemptFailed for a text that is no answer."""
    if finish in BROKEN_OFF:
        raise AttemptFailed(Kind.SERVER, f"the server broke the answer off ({finish})")
    if finish in WITHHELD:
        raise AttemptFailed(Kind.FILTERED, f"a content filter held the answer back ({finish})")
    if finish in CUT_OFF and (schema is not None or not text):
        raise AttemptFailed(Kind.TRUNCATED, f"the answer was cut off ({finish})")
    if not text:
        raise AttemptFailed(Kind.EMPTY, "the completion is empty")
    if schema is not None:
        parse_answer(text, schema)


def _answer(entry: Entry, schema: type[BaseModel] | None, *, attempts: int) -> Answer[Any]:
    """Raises AttemptFailed if the entry is no answer, or not what the schema asks for."""
    _judge(entry.text, entry.finish, schema)
    return Answer(
        text=entry.text,
        parsed=None if schema is None else parse_answer(entry.text, schema),
        finish=entry.finish,
        tokens_in=entry.tokens_in,
        tokens_out=entry.tokens_out,
        latency_s=entry.latency_s,
        cached=attempts == 0,
        attempts=attempts,
    )
