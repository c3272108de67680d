"""Rows of figures: read off traces, or a reason why there are none."""

from collections.abc import Callable
from typing import Any

from rankscope.core.tracing import Trace
from rankscope.errors import RankscopeError

Rows = list[dict[str, Any]]


def by_layer(traced: Trace, metric: str) -> dict[int, float]:
    """One metric of a single sample."""
    columns = traced.columns
    every = zip(columns["layer"], columns["metric"], columns["value"], strict=True)
    return {layer: value for layer, name, value in every if name == metric}


def or_reason(name: str, compute: Callable[[], Rows], notes: dict[str, str]) -> Rows:
    """The rows, or none and a note that says why."""
    try:
        return compute()
    except RankscopeError as error:
        notes[name] = str(error)
        return []
