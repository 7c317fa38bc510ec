"""A scripted server, and settings that point at it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ibrl_jax.endpoints import Budget, EndpointSettings
from tests.endpoints.fault_server import FaultServer, Script

KEY = "sk-marker-that-must-never-be-seen"
KEY_ENV = "IBRL_TEST_ENDPOINT_KEY"


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FaultServer]]:
    """Start servers that end with the test."""
    monkeypatch.setenv(KEY_ENV, KEY)
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as stack:

        def start(script: Script, **more: Any) -> FaultServer:
            return stack.enter_context(FaultServer(script, **more))

        yield start


@pytest.fixture
def make_settings() -> Callable[..., EndpointSettings]:
    """Quick settings; a test names what it is about."""

    def make(base_url: str = "http://127.0.0.1:9/v1", **changes: object) -> EndpointSettings:
        fields: dict[str, object] = {
            "name": "judge",
            "base_url": base_url,
            "model": "scripted",
            "key_env": KEY_ENV,
            "temperature": 0.5,
            "max_tokens": 64,
            "timeout_s": 5.0,
            "retries": 2,
            "backoff_s": 0.001,
            "max_wait_s": 0.5,
            "concurrency": 8,
            "requests_per_minute": None,
            "budget": Budget(max_calls=None, max_tokens=None, max_cost=None),
            "price_in": None,
            "price_out": None,
            "cache_dir": None,
            "schema_mode": "auto",
            "extra_body": {},
        }
        return EndpointSettings(**(fields | changes))  # pyright: ignore[reportArgumentType]

    return make
