"""Bodies of errors as providers write them: what each is taken for, by kind."""

from __future__ import annotations

from typing import Any

import pytest

from ibrl_jax.endpoints.errors import Kind
from ibrl_jax.endpoints.faults import error_in, kind_of, retry_after, said_in


def openai(message: str, kind: str | None = "invalid_request_error", **more: Any) -> dict[str, Any]:
    return {"message": message, "type": kind, "param": None, "code": None} | more


AZURE = openai(
    "The response was filtered due to the prompt triggering Azure OpenAI's content management "
    "policy. Please modify your prompt and retry.",
    None,
    code="content_filter",
    innererror={"code": "ResponsibleAIPolicyViolation"},
)
QWEN = "<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate"
VLLM = "This model's maximum context length is 2048 tokens. However, you requested 2300 tokens."
CALM = openai("You exceeded your current quota, please check your plan.", "insufficient_quota")

BODIES: dict[str, tuple[int, Any, Kind]] = {
    # a content filter
    "azure": (400, AZURE, Kind.FILTERED),
    "azure through a proxy": (400, AZURE | {"code": "400"}, Kind.FILTERED),
    "deepseek, risk": (400, openai("Content Exists Risk", code="invalid_request_error"),
        Kind.FILTERED),
    "deepseek, of old": (400, {"detail": "Content Exists Risk"}, Kind.FILTERED),
    "glm, 1301": (400, {"code": "1301", "message": "系统检测到输入或生成内容可能包含敏感内容"},
        Kind.FILTERED),
    "qwen": (400, openai("Input data may be bad.", "data_inspection_failed"), Kind.FILTERED),
    "qwen, new words": (400, openai(f"{QWEN} content."), Kind.FILTERED),
    "moonshot": (400, {"message": "The request was rejected because it was considered high risk",
        "type": "content_filter"}, Kind.FILTERED),
    "openrouter": (403, {"code": 403, "message": "This model requires moderation on OpenRouter. "
        "Your input was flagged for x"}, Kind.FILTERED),
    # an empty account
    "deepseek, balance": (402, openai("Insufficient Balance", "unknown_error"), Kind.BUDGET),
    "openai, quota": (429, CALM | {"code": "insufficient_quota"}, Kind.BUDGET),
    "openai, spend limit": (429, CALM | {"code": "project_spend_limit_exceeded"}, Kind.BUDGET),
    "glm, 1113": (429, {"code": "1113", "message": "余额不足或无可用资源包,请充值。"}, Kind.BUDGET),
    "moonshot, quota": (429, openai("stop", "exceeded_current_quota_error"), Kind.BUDGET),
    "siliconflow": (403, {"code": 30001, "message": "Sorry, your account balance is insufficient"},
        Kind.BUDGET),
    "volcano": (403, openai("The request failed", "Forbidden", code="AccountOverdueError"),
        Kind.BUDGET),
    # a model that there is not
    "openai, model": (404, openai("The model `x` does not exist or you do not have access to it.",
        code="model_not_found"), Kind.NOT_FOUND),
    "deepseek, model": (400, openai("Model Not Exist"), Kind.NOT_FOUND),
    "glm, 1211": (400, {"code": "1211", "message": "模型不存在，请检查模型代码。"}, Kind.NOT_FOUND),
    "ollama": (404, 'model "x" not found, try pulling it first', Kind.NOT_FOUND),
    "glm, wrong path": (404, {"code": 500, "msg": "404 NOT_FOUND", "success": False},
        Kind.NOT_FOUND),
    # a key
    "deepseek, key": (401, openai("Authentication Fails (no such user)", "authentication_error"),
        Kind.AUTH),
    "glm, key": (401, {"code": "1002", "message": "Authorization Token非法"}, Kind.AUTH),
    "glm, locked": (429, {"code": "1112", "message": "您的账户已被锁定"}, Kind.AUTH),
    "a proxy's page": (403, "<html><title>Access denied</title></html>", Kind.AUTH),
    # what passes
    "openai, rate": (429, openai("Rate limit reached for gpt-x in organization org-y",
        "tokens", code="rate_limit_exceeded"), Kind.RATE_LIMITED),
    "glm, 1302": (429, {"code": "1302", "message": "您的账户已达到速率限制"}, Kind.RATE_LIMITED),
    "deepseek, busy": (503, openai("Service is too busy.", "service_unavailable_error"),
        Kind.SERVER),
    "anthropic": (529, {"type": "overloaded_error", "message": "Overloaded"}, Kind.SERVER),
    "a proxy's 502": (502, "<html><h1>502 Bad Gateway</h1></html>", Kind.SERVER),
    "a gateway's 504": (504, "upstream request timeout", Kind.SERVER),
    # one call's own fault
    "vllm, too long": (400, openai(VLLM, "BadRequestError", code=400), Kind.BAD_REQUEST),
    "nginx, too large": (413, "<html>413 Request Entity Too Large</html>", Kind.BAD_REQUEST),
    "fastapi": (422, {"detail": [{"loc": ["body", "n"], "msg": "no", "input": "secret"}]},
        Kind.BAD_REQUEST),
    "deepseek, form": (400, openai("This response_format type is unavailable now"),
        Kind.BAD_REQUEST),
    "llama.cpp, form": (500, "'type' of response_format", Kind.BAD_REQUEST),
    "a redirect": (307, "", Kind.NOT_FOUND),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_a_body_has_one_kind(name: str) -> None:
    status, body, kind = BODIES[name]
    assert kind_of(status, said_in(body)) is kind


def test_of_a_body_its_message_alone_is_told() -> None:
    assert said_in({"message": "a\n b"}).message == "a b"
    refused = {"detail": [{"loc": ["body", "n"], "msg": "no", "input": "secret"}]}
    assert said_in(refused).message == "body.n: no"
    assert said_in("busy\nnow").message == "busy now"
    for silent in ("<html>page</html>", " <!doctype html>", None, 3, [], {}, {"message": {"a": 1}}):
        assert said_in(silent).message == ""


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ({"error": {"message": "busy", "code": 429}}, (429, {"message": "busy", "code": 429})),
        ({"error": {"message": "x", "code": "1301"}}, (500, {"message": "x", "code": "1301"})),
        ({"error": "no model loaded"}, (500, "no model loaded")),
        (
            {"base_resp": {"status_code": 1008, "status_msg": "insufficient balance"}},
            (500, {"code": 1008, "message": "insufficient balance"}),
        ),
        ({"code": 401, "msg": "no", "success": False}, (401, {"code": 401, "msg": "no"})),
        ({"choices": []}, None),
        ({"error": None}, None),
        ({"error": {}}, None),
        ([], None),
        ("text", None),
    ],
)
def test_an_error_in_a_reply_of_200_is_found(reply: Any, found: Any) -> None:
    got = error_in(reply)
    if found is None or got is None:
        assert got is found
    else:
        assert got[0] == found[0]
        assert said_in(got[1]) == said_in(found[1])


def test_a_wait_that_makes_no_sense_is_none() -> None:
    for value in ("", "soon", "²", "Mon, 99 Jan 2026 00:00:00 GMT", "-3"):
        assert retry_after({"retry-after": value}) is None
    assert retry_after({"retry-after-ms": "250"}) == 0.25
    assert retry_after({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}) == 0.0
