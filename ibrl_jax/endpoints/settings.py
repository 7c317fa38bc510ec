"""What an endpoint is: where it answers, how patiently it is asked, and what it may cost.

A key never stands here: `key_env` is the *name* of the environment variable that holds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from ibrl_jax.errors import UserError

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
"""What servers call the longest answer; the first is what a request says of itself."""

SchemaMode = Literal["auto", "json_schema", "json_object", "none"]
"""How a schema is asked of the server; `auto` begins with the strictest that it accepts."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that one run may spend at an endpoint; None is no limit.

    Attributes:
        max_calls: HTTP requests, retries included.
        max_tokens: prompt and completion tokens together.
        max_cost: in the currency of `price_in` and `price_out`.
    """

    max_calls: int | None
    max_tokens: int | None
    max_cost: float | None


@dataclass(frozen=True, kw_only=True)
class EndpointSettings:
    """One OpenAI-compatible endpoint and one model behind it.

    Attributes:
        name: what messages, ledgers and tables call it.
        base_url: up to and without `/chat/completions`.
        model: the id the server knows it by.
        key_env: the name of the environment variable with the key; None where no key is needed.
        temperature: of a call that names none.
        max_tokens: of a completion, for a call that names none.
        timeout_s: seconds for a whole request, so that a slow drip is a time-out too.
        retries: further attempts after the first.
        backoff_s: seconds before the second attempt; doubles with each, shortened by jitter.
        max_wait_s: seconds, the longest single wait between attempts, `Retry-After` included.
        concurrency: requests in flight at once.
        requests_per_minute: requests are spaced evenly to stay below it; None is no limit.
        budget: the run stops before it is exceeded.
        price_in: per million prompt tokens, in any one currency; None is unknown.
        price_out: per million completion tokens, same currency; None is unknown.
        cache_dir: folder of the disk cache; None is no cache.
        schema_mode: how a schema is asked of the server; answers are validated in every mode.
        extra_body: merged into each request last; a value of None takes that field out of the
            request (`{"max_tokens": None, "max_completion_tokens": 512}`).
    """

    name: str
    base_url: str
    model: str
    key_env: str | None
    temperature: float
    max_tokens: int
    timeout_s: float
    retries: int
    backoff_s: float
    max_wait_s: float
    concurrency: int
    requests_per_minute: float | None
    budget: Budget
    price_in: float | None
    price_out: float | None
    cache_dir: str | None
    schema_mode: SchemaMode
    extra_body: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raises UserError for the first field that cannot be meant."""
        if any(sign in self.base_url for sign in "@?#"):
            raise UserError(
                f"endpoint {self.name!r}: base_url may carry neither credentials nor a query, "
                "since it is printed; name the key's environment variable in key_env"
            )
        if self.key_env is not None and not _is_variable(self.key_env):
            raise UserError(
                f"endpoint {self.name!r}: key_env must be the name of an environment variable, "
                "such as PARTNER_API_KEY; what it holds is none, and not shown: it may be the key"
            )
        self._require(
            _is_address(self.base_url), "base_url", "an address such as http://127.0.0.1:8000/v1"
        )
        at_least = {
            "temperature": (self.temperature, 0),
            "max_tokens": (self.max_tokens, 1),
            "retries": (self.retries, 0),
            "backoff_s": (self.backoff_s, 0),
            "max_wait_s": (self.max_wait_s, 0),
            "concurrency": (self.concurrency, 1),
        }
        for field, (value, least) in at_least.items():
            self._require(value >= least, field, f"at least {least}")
        self._require(self.timeout_s > 0, "timeout_s", "more than 0")
        above_zero = {
            "requests_per_minute": self.requests_per_minute,
            "budget.max_calls": self.budget.max_calls,
            "budget.max_tokens": self.budget.max_tokens,
            "budget.max_cost": self.budget.max_cost,
        }
        for field, value in above_zero.items():
            self._require(value is None or value > 0, field, "more than 0, or None for no limit")
        for field, value in (("price_in", self.price_in), ("price_out", self.price_out)):
            self._require(value is None or value >= 0, field, "at least 0, or None for unknown")
        modes = ("auto", "json_schema", "json_object", "none")
        self._require(self.schema_mode in modes, "schema_mode", "one of " + ", ".join(modes))
        if self.budget.max_cost is not None and not self.priced:
            raise UserError(
                f"endpoint {self.name!r}: budget.max_cost needs price_in and price_out "
                "(per million tokens) to be set"
            )
        unbounded = self.extra_body.get("max_tokens", 0) is None and not self.other_limits
        if unbounded and (self.budget.max_tokens or self.budget.max_cost):
            raise UserError(
                f"endpoint {self.name!r}: extra_body takes max_tokens out of the request, so an "
                "answer may cost anything and no budget holds; put the server's own limit in its "
                f"place ({', '.join(LIMITS[1:])})"
            )

    @property
    def other_limits(self) -> list[int]:
        """How long an answer may be by `extra_body`, in tokens."""
        limits = [self.extra_body.get(name) for name in LIMITS]
        return [n for n in limits if isinstance(n, int) and not isinstance(n, bool)]

    @property
    def priced(self) -> bool:
        return self.price_in is not None and self.price_out is not None

    def cost(self, tokens_in: int, tokens_out: int) -> float | None:
        """What so many tokens cost; None where a price is unknown."""
        if self.price_in is None or self.price_out is None:
            return None
        return (tokens_in * self.price_in + tokens_out * self.price_out) / 1e6

    def _require(self, holds: bool, field: str, right: str) -> None:
        if not holds:
            value: Any = self
            for part in field.split("."):
                value = getattr(value, part)
            raise UserError(f"endpoint {self.name!r}: {field} is {value!r}; it must be {right}")


def read_extra_body(name: str, text: str) -> dict[str, Any]:
    """The `extra_body` of an endpoint as a config has it: a JSON object, or nothing.

    Raises UserError for anything else, and for what the client itself has to say.
    """
    if not text.strip():
        return {}
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise UserError(
            f"endpoint {name!r}: extra_body is {text!r}; it must be a JSON object such as "
            '{"max_tokens": null, "max_completion_tokens": 512}'
        )
    for field in ("messages", "model", "n", "stream"):
        if field in fields:
            raise UserError(
                f"endpoint {name!r}: extra_body has {field}, which is not its to say; leave it out"
            )
    return fields


def _is_variable(text: str) -> bool:
    """Whether it can name a variable; a long word without a break is rather a key."""
    return bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text)) and (len(text) < 24 or "_" in text)


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        sound = text.isprintable() and " " not in text and bool(url.hostname)
        return sound and url.scheme in ("http", "https") and url.port != 0
    except ValueError:  # half an IPv6 address, or a port above 65535
        return False
