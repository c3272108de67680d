"""One run of a sweep: a value that can be sent to another process, and written down."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from rankscope.arguments import checked
from rankscope.errors import InputError

Setting = str | int | float | bool | None
"""A value along an axis, which becomes a column of the table."""


@checked
@dataclass(frozen=True)
class Run:
    """What is to be computed, and the key its result is filed under.

    ``axes`` are the settings along the grid's axes, in the grid's order; ``fields`` everything that
    was said about the experiment, axes included that are fields of it, in what JSON has. Paths in
    ``fields`` are relative to ``folder``.

    >>> run = Run("0123456789ab", "trace", {"layers": 2}, {"layers": 2, "width": 8})
    >>> Run.from_json(run.to_json()) == run
    True
    """

    key: str
    experiment: str
    axes: Mapping[str, Setting]
    fields: Mapping[str, Any]
    folder: str = ""

    def to_json(self) -> dict[str, Any]:
        """The run in what JSON has."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """The run that was written down."""
        names = [each.name for each in fields(cls)]
        if sorted(content) != sorted(names):
            raise InputError(f"got {', '.join(content)}, expected a run: {', '.join(names)}.")
        return cls(**content)

    def __str__(self) -> str:
        settings = ", ".join(f"{name}={value}" for name, value in self.axes.items())
        return f"{self.experiment} ({settings})" if settings else self.experiment


Work = Callable[[Run], Any]
"""What a run comes to: for a sweep, the long table of its result."""
