"""How a call can fail: a kind for each way, and never a value in its place.

`EndpointError` is the failure of one call: a judge turns it into `Failed`, an agent into a turn
that ended in error. `EndpointStop` is a user's to mend, so it is a `UserError` and *not* an
`EndpointError`: code that records failed calls cannot swallow it, and the run stops.
"""

from __future__ import annotations

from enum import StrEnum

from ibrl_jax.errors import UserError


class Kind(StrEnum):
    """The ways in which a call fails."""

    TIMEOUT = "timeout"
    RATE_LIMITED = "rate_limited"
    SERVER = "server"  # a status of 5xx, or a reply that is no chat completion
    CONNECTION = "connection"
    AUTH = "auth"
    NOT_FOUND = "not_found"
    BAD_REQUEST = "bad_request"
    FILTERED = "filtered"  # the provider's content filter let no prompt in or no answer out
    EMPTY = "empty"
    TRUNCATED = "truncated"
    PARSE = "parse"
    SCHEMA = "schema"
    BUDGET = "budget"


RETRIED = frozenset(
    {
        Kind.TIMEOUT,
        Kind.RATE_LIMITED,
        Kind.SERVER,
        Kind.CONNECTION,
        Kind.EMPTY,
        Kind.PARSE,
        Kind.SCHEMA,
    }
)
"""Kinds that another attempt may mend."""

STOPS = frozenset({Kind.AUTH, Kind.NOT_FOUND, Kind.BUDGET})
"""Kinds that end the run: every further call would fail alike."""


class EndpointError(Exception):
    """One call failed. The message holds no key, no prompt and no completion."""

    def __init__(self, kind: Kind, endpoint: str, detail: str, attempts: int) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"endpoint {endpoint!r}: {kind} after {tries}: {detail}")
        self.kind = kind
        self.endpoint = endpoint
        self.detail = detail
        self.attempts = attempts


class EndpointStop(UserError):
    """The endpoint cannot be used as it is configured, or its budget is spent."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class AttemptFailed(Exception):
    """One attempt failed; the client decides between another one and an error.

    `wait_s` is what the server asked to wait, in seconds; `billed` says whether the server may
    have charged tokens that it did not report.
    """

    def __init__(
        self, kind: Kind, detail: str, *, wait_s: float | None = None, billed: bool = False
    ) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail
        self.wait_s = wait_s
        self.billed = billed
