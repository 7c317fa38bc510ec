"""Each wrong setting is one sentence that names the endpoint, the field and what is right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ibrl_jax.config import load
from ibrl_jax.dialogue.build import build_endpoints
from ibrl_jax.endpoints import Budget, Endpoint, EndpointSettings, EndpointStop, Kind
from ibrl_jax.endpoints.call import Call
from ibrl_jax.errors import UserError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_url", "localhost:8000/v1"),
        ("base_url", "http://user:secret@host/v1"),
        ("base_url", "http://host/v1?key=secret"),
        ("base_url", "http://user:secret@[::1"),
        ("base_url", "http://user:se/secret@host/v1"),
        ("base_url", "http://host/v1#secret"),
        ("base_url", "http://ho st/v1"),
        ("base_url", "http://host/v1\n"),
        ("base_url", "http://[::1"),
        ("base_url", "http://host:99999/v1"),
        ("temperature", -0.1),
        ("max_tokens", 0),
        ("timeout_s", 0),
        ("retries", -1),
        ("backoff_s", -1.0),
        ("max_wait_s", -1.0),
        ("concurrency", 0),
        ("requests_per_minute", 0),
        ("price_in", -1.0),
        ("schema_mode", "strict"),
    ],
)
def test_a_wrong_field_is_named(
    field: str, value: object, make_settings: Callable[..., EndpointSettings]
) -> None:
    with pytest.raises(UserError, match=f"^endpoint 'judge': {field} ") as caught:
        make_settings(**{field: value})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("field", ["max_calls", "max_tokens", "max_cost"])
def test_a_budget_of_zero_is_refused(
    field: str, make_settings: Callable[..., EndpointSettings]
) -> None:
    limits: dict[str, float | None] = dict.fromkeys(("max_calls", "max_tokens", "max_cost"))
    budget = Budget(**(limits | {field: 0}))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=rf"budget\.{field} is 0; it must be more than 0"):
        make_settings(budget=budget, price_in=1.0, price_out=1.0)


def test_a_budget_of_money_needs_prices(make_settings: Callable[..., EndpointSettings]) -> None:
    budget = Budget(max_calls=None, max_tokens=None, max_cost=1.0)
    with pytest.raises(UserError, match="needs price_in and price_out"):
        make_settings(budget=budget, price_in=1.0)
    assert make_settings(budget=budget, price_in=1.0, price_out=0.0).cost(2, 3) == 2e-6


@pytest.mark.parametrize("limit", ["max_tokens", "max_cost"])
def test_a_budget_needs_answers_of_a_known_length(
    limit: str, make_settings: Callable[..., EndpointSettings]
) -> None:
    limits: dict[str, float | None] = dict.fromkeys(("max_calls", "max_tokens", "max_cost"))
    fields: dict[str, Any] = {
        "budget": Budget(**limits | {limit: 1000}),  # pyright: ignore[reportArgumentType]
        "price_in": 1.0,
        "price_out": 1.0,
    }
    unbounded = {"max_tokens": None, "top_p": 0.9}
    with pytest.raises(UserError, match="takes max_tokens out of the request, so an answer may"):
        make_settings(extra_body=unbounded, **fields)
    make_settings(extra_body=unbounded)
    settings = make_settings(extra_body=unbounded | {"max_completion_tokens": 900}, **fields)
    assert settings.other_limits == [900]


def test_an_address_that_only_the_library_refuses_is_one_sentence(
    make_settings: Callable[..., EndpointSettings],
) -> None:
    endpoint = Endpoint(make_settings("http://1.2.3.999/v1", key_env=None))
    with pytest.raises(EndpointStop, match="no such address.*; check base_url and model"):
        asyncio.run(endpoint.chat([{"role": "user", "content": "hi"}]))


@pytest.mark.parametrize("key", ["sk-secret\nsecond", "sk-secret two", "“sk-secret”", "sk-sécret"])
def test_what_is_no_key_stops_before_it_is_sent_or_shown(
    key: str, make_settings: Callable[..., EndpointSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", key)
    with pytest.raises(EndpointStop, match="variable SOME_KEY holds blanks, line br") as caught:
        Endpoint(make_settings(key_env="SOME_KEY"))
    assert caught.value.kind is Kind.AUTH
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("key", ["sk-secret", "secret.of.glm", "0secret", f"secret{'a1' * 16}", ""])
def test_a_key_in_place_of_its_variables_name_is_refused_and_not_shown(
    key: str, make_settings: Callable[..., EndpointSettings]
) -> None:
    with pytest.raises(UserError, match="key_env must be the name of an environment var") as caught:
        make_settings(key_env=key)
    assert "secret" not in str(caught.value)
    for name in ("KEY", "deepseek_key", "THE_KEY_OF_A_VERY_LONG_NAMED_PROVIDER_2"):
        assert make_settings(key_env=name).key_env == name


@pytest.mark.parametrize("value", [None, "", "  "])
def test_a_missing_key_stops_before_anything_is_asked(
    value: str | None,
    make_settings: Callable[..., EndpointSettings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(EndpointStop, match="variable SOME_KEY is not set") as caught:
        Endpoint(make_settings(key_env="SOME_KEY"))
    assert caught.value.kind is Kind.AUTH
    assert isinstance(caught.value, UserError)


# ------------------------------------------------------------------------- out of a config


def of_config(extra: str) -> EndpointSettings:
    option = "--config.endpoints.guest"
    config = load(
        "configs/dond/smoke.py",
        [f"{option}.base_url=http://127.0.0.1:9/v1", f"{option}.extra_body={extra}"],
    )
    return build_endpoints(config, None)["guest"].settings


def test_a_config_may_change_what_a_request_says() -> None:
    """Models differ in how they take a limit, or are told not to think first."""
    assert of_config("").extra_body == {}
    extra = '{"max_tokens": null, "max_completion_tokens": 9, "thinking": {"type": "disabled"}}'
    body = Call(
        of_config(extra),
        [{"role": "user", "content": "hi"}],
        sample_index=0,
        schema=None,
        temperature=0.0,
        max_tokens=512,
    ).body("none")
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["thinking"]) == (9, {"type": "disabled"})


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ("{", "it must be a JSON object such as"),
        ("[1]", "it must be a JSON object such as"),
        ("thinking", "it must be a JSON object such as"),
        ('{"n": 4}', "extra_body has n, which is not its to say"),
    ],
)
def test_what_cannot_be_merged_into_a_request_is_told(extra: str, why: str) -> None:
    with pytest.raises(UserError, match="^endpoint 'guest': extra_body ") as caught:
        of_config(extra)
    assert why in str(caught.value)
