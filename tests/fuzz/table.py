"""The table of good calls: one at least of every public name, small enough to be made often."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Row(NamedTuple):
    """A public name, the function behind it, and good arguments, made anew for every call.

    Names of arguments that begin with ``*`` are given by place.
    """

    name: str
    call: Callable[..., Any]
    good: Callable[[], dict[str, Any]]

    @property
    def area(self) -> str:
        """The room."""
        return self.name.partition(".")[0]

    @property
    def weight(self) -> float:
        """How often it is called: what takes long, less often."""
        return 0.1 if self.name in SLOW else 1.0


ROWS: list[Row] = []
SLOW = {f"experiments.run[{id_}]" for id_ in ("wu", "D3")}
SLOW |= {"experiments.advise", "report.write", "figures.save", "run.reproduce", "run.reproductions"}


def add(name, call, /, **good):
    """A row whose arguments can be used again and again."""
    ROWS.append(Row(name, call, lambda: dict(good)))


def fresh(name, call, good):
    """A row whose arguments a call may change."""
    ROWS.append(Row(name, call, good))
