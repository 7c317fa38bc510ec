"""From a completion's text to an answer: thoughts taken off, JSON found, a schema enforced.

Which texts hold a JSON answer is decided here, and strictly, since what is parsed by luck is
a score by luck: every opening brace of the text begins a complete object, and there is exactly
one such object. A fence or prose may surround it. Half an object, two objects, a list, a key
that stands twice, NaN and infinities are refused.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ibrl_jax.endpoints.errors import AttemptFailed, Kind

Model = TypeVar("Model", bound=BaseModel)

_PAIR = re.compile(r"<think>.*?</think>", re.DOTALL)


def strip_thoughts(text: str) -> str:
    """A plain utterance without its thoughts, wherever they stand; outer white space goes too.

    A thought whose opening tag was part of the prompt ends at its closing tag; one that was
    never closed reaches to the end.
    """
    text = _PAIR.sub("", text)
    text = text.rpartition("</think>")[2]
    return text.partition("<think>")[0].strip()


def strip_leading_thoughts(text: str) -> str:
    """A JSON answer without the thoughts before it.

    Tags inside the answer stay: an answer may quote a dialogue, and a dialogue that holds a tag
    must not be able to cut a judge's verdict.
    """
    text = text.strip()
    while text.startswith("<think>"):
        text = text.partition("</think>")[2].strip()
    if "</think>" in text and not text.startswith(("{", "```")):
        text = text.partition("</think>")[2].strip()  # its opening tag was part of the prompt
    return text


def parse_answer(text: str, schema: type[Model]) -> Model:
    """The answer that `text` holds.

    Raises:
        AttemptFailed: kind `parse` where there is no single JSON object, `schema` where there
            is one and it is not what was asked for.
    """
    value = find_object(text)
    try:
        return schema.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the object"
        raise AttemptFailed(Kind.SCHEMA, f"{where}: {first['msg']}") from None


def find_object(text: str) -> dict[str, Any]:
    """The one JSON object in `text`; raises AttemptFailed of kind `parse`."""
    found: list[dict[str, Any]] = []
    start = text.find("{")
    while start >= 0:
        if text[:start].rstrip().endswith("["):
            raise AttemptFailed(Kind.PARSE, "a JSON list where one object was asked for")
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            raise AttemptFailed(
                Kind.PARSE, f"broken JSON in an answer of {len(text)} characters"
            ) from None
        found.append(value)
        start = text.find("{", end)
    if len(found) != 1:
        raise AttemptFailed(
            Kind.PARSE, f"{len(found)} JSON objects in an answer of {len(text)} characters"
        )
    return found[0]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys each stand once."""
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key stands twice")
    return result


def _finite(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"{literal} is not a finite number")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite, strict=False
)
