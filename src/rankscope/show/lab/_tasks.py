"""What a worker does: a task's name and a query string in, a body of text out."""

import json
import math
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from rankscope.show.lab._compute import first, second
from rankscope.show.lab._network import input_of, network_of, spec_of
from rankscope.show.lab._snippet import snippet
from rankscope.show.lab._state import State

_FIRST = ("residual", "plane", "sphere", "spectrum")


def run_task(task: str, query: str, chart: str = "") -> bytes:
    """The body of one reply; errors of rankscope say what is wrong with the state."""
    state = State.read(query)
    return _TASKS[task](state, chart).encode()


def warm() -> None:
    """Run in the process that workers are forked from, so that all is loaded and has run once.

    First calls look up kernels and import what is imported late; a worker forked after them answers
    its first request as fast as its hundredth. One thread alone, for a fork keeps no other.
    """
    for part in ("first", "second"):
        run_task(part, "")


def _figures(part: Callable[[State], dict[str, Any]]) -> Callable[[State, str], str]:
    def written(state: State, _chart: str) -> str:
        return json.dumps(clean(part(state)), allow_nan=False, separators=(",", ":"))

    return written


def _snippet(state: State, _chart: str) -> str:
    network_of(state)(input_of(state))  # a program that would end in an error is of no use
    return snippet(state)


def _picture(state: State, chart: str) -> str:
    # Altair brings polars, which starts threads; a process that is forked must have none.
    from rankscope.show.lab._charts import ROWS, picture

    found = (first if chart in _FIRST else second)(state)
    about = textwrap.wrap(f"{spec_of(state).describe()}; seed {state.seed}", 100)
    rows, ticks = clean(found[ROWS.get(chart, chart)]), found["ticks"].get(chart, ())
    return picture(chart, rows, subtitle=about, ticks=ticks)


_TASKS: dict[str, Callable[[State, str], str]] = {
    "first": _figures(first),
    "second": _figures(second),
    "snippet": _snippet,
    "picture": _picture,
}


def clean(value: Any) -> Any:
    """What JSON can hold: numbers that are not finite become nothing."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: clean(inner) for key, inner in value.items()}
    return [clean(inner) for inner in value] if isinstance(value, list) else value
