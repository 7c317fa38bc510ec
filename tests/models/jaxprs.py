"""What a traced program holds, before any compiler sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.core import jaxprs_in_params


def shapes_in(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of all intermediate values, those of inner programs included."""
    for equation in jaxpr.eqns:
        for v in equation.outvars:
            yield v.aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from shapes_in(inner)
