"""One setting: its default, its meaning, the values that it may take, and how it is read."""

from __future__ import annotations

import ast
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Field:
    """A setting: its default, what it means (with its unit), and the values it may take."""

    default: Any
    doc: str
    choices: tuple[Any, ...] = ()
    low: float | None = None
    high: float | None = None

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, or None."""
        listed = isinstance(value, tuple)
        if not _is(value, type(self.default)) or (
            listed and not all(_is(item, self._item()) for item in value)
        ):
            return f"must be {self._kind()}, not {value!r}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(map(str, self.choices))}, not {value!r}"
        for number in value if listed else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                return f"must be finite, not {value!r}"
            if self.low is not None and isinstance(number, int | float) and number < self.low:
                return f"must be at least {_bound(self.low)}, not {value!r}"
            if self.high is not None and isinstance(number, int | float) and number > self.high:
                return f"must be at most {_bound(self.high)}, not {value!r}"
        return None

    def parse(self, text: str) -> Any:
        """A value from the command line; text that is no Python literal stays text."""
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError):
            value = {"true": True, "false": False, "none": None}.get(text.lower(), text)
        if isinstance(self.default, str) and not isinstance(value, str):
            value = text
        if isinstance(self.default, tuple):
            if isinstance(value, str):  # names=one,two needs no quotes
                value = [name.strip() for name in value.split(",")]
            value = tuple(value) if isinstance(value, list | tuple) else (value,)
        return self.coerce(value)

    def coerce(self, value: Any) -> Any:
        """Whole numbers may stand where fractions are asked for, lists where tuples are."""
        if isinstance(self.default, float) and _is(value, int):
            return _decimal(value)
        if isinstance(self.default, tuple) and isinstance(value, list | tuple):
            decimals = self._item() is float
            return tuple(_decimal(x) if decimals and _is(x, int) else x for x in value)
        return value

    def _kind(self) -> str:
        if isinstance(self.default, tuple):
            items = {int: "whole numbers", float: "numbers", str: "names"}
            return f"a list of {items[self._item()]}"
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        return names[type(self.default)]

    def _item(self) -> type:
        """What a list holds; an empty default has names, or whole numbers if it has a bound."""
        if self.default:
            return type(self.default[0])
        return str if self.low is None else int


def _is(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; true and false are no numbers."""
    return isinstance(value, kind) and isinstance(value, bool) == (kind is bool)


def _bound(number: float) -> str:
    """A bound in a sentence: a large one is read by its thousands."""
    return f"{number:,.0f}" if abs(number) >= 1e4 else f"{number:g}"


def _decimal(value: int) -> float:
    """A whole number as a fraction; one beyond all fractions is infinite."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def listed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that went through JSON, with tuples for its lists again."""
    return {
        k: listed(v) if isinstance(v, Mapping) else tuple(v) if isinstance(v, list) else v
        for k, v in values.items()
    }


def suggest(name: str, schema: Mapping[str, Any]) -> str:
    """What a name that does not exist may have meant."""
    close = difflib.get_close_matches(name, schema, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(schema)}"
