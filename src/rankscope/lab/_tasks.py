"""What a worker does: a task's name and a query string in, a body of text out."""

import json
import textwrap
from collections.abc import Callable

from rankscope.lab._charts import ROWS, TITLES, clean, picture
from rankscope.lab._compute import first, second
from rankscope.lab._network import spec_of
from rankscope.lab._snippet import snippet
from rankscope.lab._state import State

_FIRST = ("residual", "plane", "sphere", "spectrum")


def run_task(task: str, query: str, chart: str = "") -> bytes:
    """The body of one reply; errors of rankscope say what is wrong with the state."""
    state = State.read(query)
    return _TASKS[task](state, chart).encode()


def _figures(part: Callable[[State], dict[str, object]]) -> Callable[[State, str], str]:
    def written(state: State, _chart: str) -> str:
        return json.dumps(clean(part(state)), allow_nan=False, separators=(",", ":"))

    return written


def _snippet(state: State, _chart: str) -> str:
    spec_of(state)  # a program that would end in an error is of no use
    return snippet(state)


def _picture(state: State, chart: str) -> str:
    found = (first if chart in _FIRST else second)(state)
    about = textwrap.wrap(f"{spec_of(state).describe()}; seed {state.seed}", 100)
    return picture(chart, clean(found[ROWS.get(chart, chart)]), subtitle=about)


_TASKS: dict[str, Callable[[State, str], str]] = {
    "first": _figures(first),
    "second": _figures(second),
    "snippet": _snippet,
    "picture": _picture,
}
assert set(_FIRST) <= set(TITLES)
