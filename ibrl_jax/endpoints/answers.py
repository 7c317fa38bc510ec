"""From a completion's text to an answer: thoughts taken off, JSON found, a schema enforced.

Which texts hold a JSON answer is decided here, and strictly, since what is parsed by luck is
a score by luck: every opening brace of the text begins a complete object, and there is exactly
one such object. A fence or prose may surround it. Half an object, two objects, a list, a key
that stands twice, NaN and infinities are refused.
"""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ibrl_jax.endpoints.errors import AttemptFailed, Kind

Model = TypeVar("Model", bound=BaseModel)


def strip_thoughts(text: str) -> str:
    """A plain utterance without its thoughts, wherever they stand; outer white space goes too.

    A thought whose opening tag was part of the prompt ends at its closing tag; one that was
    never closed reaches to the end.
    """
    kept, begin = [], 0
    while (opened := text.find("<think>", begin)) >= 0:
        closed = text.find("</think>", opened)
        if closed < 0:
            break
        kept.append(text[begin:opened])
        begin = closed + len("</think>")
    text = "".join([*kept, text[begin:]])
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
    found: dict[str, Any] | None = None
    start = text.find("{")
    while start >= 0:
        if found is not None:
            raise _no_object("more than one JSON object", text)
        if text[:start].rstrip().endswith("["):
            raise AttemptFailed(Kind.PARSE, "a JSON list where one object was asked for")
        try:
            found, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            raise _no_object("broken JSON", text) from None
        start = text.find("{", end)
    if found is None:
        raise _no_object("no JSON object", text)
    return found


def _no_object(what: str, text: str) -> AttemptFailed:
    return AttemptFailed(Kind.PARSE, f"{what} in an answer of {len(text)} characters")


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
