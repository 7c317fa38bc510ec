"""What one chat call asks for: its cache key, its bound on tokens, its request in each mode."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ibrl_jax.endpoints.cache import request_key
from ibrl_jax.endpoints.ledger import Reservation, token_bound
from ibrl_jax.endpoints.settings import EndpointSettings

Messages = Sequence[Mapping[str, str]]

MODES = ("json_schema", "json_object", "none")
"""How a schema is asked of a server, the strictest first."""


class Call:
    """One call, the same in all its attempts."""

    def __init__(
        self,
        settings: EndpointSettings,
        messages: Messages,
        *,
        sample_index: int,
        schema: type[BaseModel] | None,
        temperature: float,
        max_tokens: int,
    ) -> None:
        self.schema = schema
        self._schema_json = None if schema is None else schema.model_json_schema()
        self.form = None if schema is None else json.dumps(self._schema_json, sort_keys=True)
        """The schema as a server sees it; None where none is asked for."""
        self._settings = settings
        self._base = {
            "model": settings.model,
            "messages": [dict(message) for message in messages],
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
        self.key = request_key(
            settings,
            messages,
            temperature=temperature,
            max_tokens=max_tokens,
            schema=self._schema_json,
            sample_index=sample_index,
        )
        self.reservation = Reservation(
            tokens_in=token_bound(messages, self._schema_json, settings.extra_body),
            tokens_out=max([max_tokens, *settings.other_limits]),
        )

    def body(self, mode: str) -> dict[str, Any]:
        """The request's JSON with the schema asked for in `mode`."""
        body = self._base | _response_format(mode, self._schema_json)
        for field, value in self._settings.extra_body.items():
            if value is None:
                body.pop(field, None)
            else:
                body[field] = value
        return body


def backoff_s(settings: EndpointSettings, key: str, failures: int) -> float:
    """Seconds to wait after so many failures: doubling, with a jitter that a rerun repeats."""
    digest = hashlib.sha256(f"{key}/{failures}".encode()).digest()
    jitter = 0.5 + 0.5 * int.from_bytes(digest[:4], "big") / 2**32
    return min(settings.backoff_s * 2.0 ** (failures - 1) * jitter, settings.max_wait_s)


def _response_format(mode: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    if schema is None or mode == "none":
        return {}
    if mode == "json_object":
        return {"response_format": {"type": "json_object"}}
    asked = {"name": schema.get("title", "answer"), "schema": schema, "strict": _strict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": asked}}


def _strict(schema: Mapping[str, Any]) -> bool:
    """Whether every object in a JSON schema forbids extra fields and requires all of its own.

    Servers that tell strict from loose refuse strict for any other schema.
    """
    objects = [schema, *schema.get("$defs", {}).values()]
    return all(
        part.get("additionalProperties") is False
        and set(part.get("required", ())) == set(part["properties"])
        for part in objects
        if "properties" in part
    )
