"""`python -m ibrl_jax.endpoints`: what it prints, and how it ends."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from ibrl_jax.endpoints.__main__ import main
from ibrl_jax.errors import UserError
from tests.endpoints.conftest import KEY, KEY_ENV
from tests.endpoints.fault_server import Asked, FaultServer, Reply, status
from tests.endpoints.test_check import able, poor


def run(url: str, *more: str) -> tuple[str, object]:
    """What was printed, and the exit code; None where the command came to its end."""
    file, code = io.StringIO(), None
    try:
        main([f"--url={url}", "--model=scripted", *more], Console(file=file, width=60))
    except SystemExit as end:
        code = end.code
    return file.getvalue(), code


def test_an_endpoint_that_can_all_ends_well(serve: Callable[..., FaultServer]) -> None:
    server = serve(able)
    text, code = run(server.url, f"--key-env={KEY_ENV}")
    assert code is None
    assert f"{server.url} (scripted)" in text
    assert "as a judge           yes  set schema_mode = 'json_schema'" in text
    assert KEY not in text
    assert server.asked[0].headers["authorization"] == f"Bearer {KEY}"


def test_a_setting_of_a_config_is_refused(serve: Callable[..., FaultServer]) -> None:
    server = serve(able)
    with pytest.raises(UserError, match=r"--config\.seed is of a config, and the check reads none"):
        run(server.url, "--config.seed=1")
    assert not server.asked


def test_every_question_has_what_the_server_wants_otherwise(
    serve: Callable[..., FaultServer],
) -> None:
    """A server that takes a limit of another name, no temperature, and is told not to think."""

    def particular(asked: Asked) -> Reply:
        limit = asked.body.get("max_completion_tokens")
        if limit is None or "max_tokens" in asked.body or "temperature" in asked.body:
            return status(400, "unsupported parameter")
        return able(replace(asked, body=asked.body | {"max_tokens": limit}))

    extra = {"max_tokens": None, "max_completion_tokens": 2048, "temperature": None}
    more = {"thinking": {"type": "disabled"}}
    server = serve(particular)
    assert run(server.url)[1] == 1
    before = len(server.asked)
    text, code = run(server.url, f"--extra-body={json.dumps(extra | more)}")
    assert code is None, text
    asked = server.asked[before:]
    assert {str(a.body["thinking"]) for a in asked} == {"{'type': 'disabled'}"}
    assert {a.body["max_completion_tokens"] for a in asked} >= {8, 256}


def test_an_endpoint_that_lacks_something_ends_with_1(serve: Callable[..., FaultServer]) -> None:
    text, code = run(serve(poor).url)
    assert code == 1
    assert "as a counterpart     no" in text
    assert "as a judge           yes" in text


@pytest.mark.parametrize("code", [401, 404])
def test_a_wrong_key_or_address_is_one_sentence(
    serve: Callable[..., FaultServer], code: int
) -> None:
    with pytest.raises(UserError) as error:
        run(serve(lambda asked: status(code)).url)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "argv, says",
    [
        (["--model=x"], "--url is needed"),
        (["--url=http://127.0.0.1:9/v1"], "--model is needed"),
        (["--url=nonsense", "--model=x"], "base_url is 'nonsense'"),
        (["--url=http://127.0.0.1:9/v1", "--model=x", "--extra-body={"], "must be a JSON object"),
        (["--url=http://127.0.0.1:9/v1", "--model=x", "--key-env=NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_what_is_missing_or_wrong_is_named(argv: list[str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        main(argv, Console())
