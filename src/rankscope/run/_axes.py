"""The axes of a grid: names, one or several that vary together, and their values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankscope.ask import nearest
from rankscope.errors import InputError
from rankscope.run._values import MOST_RUNS, dotted
from rankscope.tables import IN_RUN

_RANGE = ("from", "to", "step", "count", "spacing")
_RESERVED = (
    *("part", "run", "layer", "head", "index", "token", "other_token"),
    *("parameter", "setting", "sample", "metric", "value"),
    *("error", "doubt", "mean", "low", "median", "high"),
)
"""Columns of results, and of their medians, that are no field of any experiment."""
_DIGITS = 12
"""Of a number that was worked out, so that a hundredth is 0.01."""


@dataclass(frozen=True)
class Axis:
    """Names and, at every point, a value of each; ``key`` is where it stands in the grid."""

    key: str
    names: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]

    def place(self, point: int, name: str) -> str:
        """Where a value stands: ``axes.heads[2]``, ``axes."layers, width"[0][1]``."""
        inside = f"[{self.names.index(name)}]" if len(self.names) > 1 else ""
        return f"{self.key}[{point}]{inside}"


def read_axes(axes: Any) -> tuple[Axis, ...]:
    """The axes of a grid's table ``axes``, in its order; the last varies fastest."""
    if not isinstance(axes, Mapping):
        raise InputError(f"axes: got {shown(axes)}, expected a table of lists.")
    found = tuple(_axis(dotted("axes", name), name, values) for name, values in axes.items())
    seen: dict[str, str] = {}
    for axis in found:
        for name in axis.names:
            if name in seen:
                raise InputError(f"{axis.key}: {name} is an axis already, in {seen[name]}.")
            seen[name] = axis.key
    runs = math.prod(len(axis.points) for axis in found)
    if runs > MOST_RUNS:
        sizes = " × ".join(str(len(axis.points)) for axis in found)
        raise InputError(f"axes: {sizes} are {runs:,} runs, expected {MOST_RUNS:,} at most.")
    return found


def split_names(written: str) -> tuple[str, ...]:
    """The names of an axis.

    >>> split_names("layers, width")
    ('layers', 'width')
    """
    return tuple(each.strip() for each in written.split(","))


def _axis(key: str, written: str, values: Any) -> Axis:
    names = split_names(written)
    wrong = [name for name in names if not name.isidentifier()]
    if wrong:
        raise InputError(f"{key}: got the name {wrong[0]!r}, expected letters, digits and _.")
    for name in names:
        if name in _RESERVED or name.endswith(IN_RUN):
            raise InputError(f"{key}: {name} is a column of every table; name the axis otherwise.")
    points = _range(key, values) if isinstance(values, Mapping) else values
    if not isinstance(points, list):
        raise InputError(
            f"{key}: got {shown(points)}, expected a list, or a range {{ from = 0, to = 9 }}."
        )
    if not points:
        raise InputError(f"{key}: got an empty list, expected one value or more.")
    if len(names) == 1:
        return Axis(key, names, tuple((point,) for point in points))
    for place, point in enumerate(points):
        if not isinstance(point, list) or len(point) != len(names):
            raise InputError(
                f"{key}[{place}]: got {shown(point)}, expected a list of {len(names)} values, for "
                f"{', '.join(names)}."
            )
    return Axis(key, names, tuple(tuple(point) for point in points))


def _range(key: str, table: Mapping[str, Any]) -> list[Any]:
    for name in table:
        if name not in _RANGE:
            raise InputError(f"{dotted(key, name)} is unknown; {nearest(name, _RANGE)}")
    first, last = (_number(key, table, name) for name in ("from", "to"))
    if "count" not in table:
        return _steps(key, first, last, table)
    if "step" in table:
        raise InputError(f"{key}: step and count both say how many there are; give one of them.")
    count, spacing = table["count"], table.get("spacing", "linear")
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MOST_RUNS:
        raise InputError(f"{key}.count: got {shown(count)}, expected 2 to {MOST_RUNS:,}.")
    if spacing not in ("linear", "log"):
        raise InputError(f"{key}.spacing: got {shown(spacing)}, expected linear or log.")
    if spacing == "log" and not (first > 0 and last > 0):
        raise InputError(f"{key}: got {first} to {last}, expected numbers above 0 for log.")
    shares = (place / (count - 1) for place in range(count))
    if spacing == "log":
        inner = (math.exp((1 - s) * math.log(first) + s * math.log(last)) for s in shares)
    else:
        inner = ((1 - s) * first + s * last for s in shares)
    return _tidy(key, [first, *list(inner)[1:-1], last])


def _steps(key: str, first: float, last: float, table: Mapping[str, Any]) -> list[Any]:
    step = _number(key, {"step": 1, **table}, "step")
    if "spacing" in table:
        raise InputError(f"{key}.spacing: got {shown(table['spacing'])} without a count; add one.")
    if not all(isinstance(each, int) for each in (first, last, step)):
        raise InputError(f"{key}: got numbers that are not whole; say how many: count = 5.")
    if first > last or step < 1:
        raise InputError(f"{key}: got {first} to {last} in steps of {step}, expected it upwards.")
    if (last - first) // step >= MOST_RUNS:
        raise InputError(f"{key}: got {first} to {last}, expected {MOST_RUNS:,} values at most.")
    return list(range(int(first), int(last) + 1, int(step)))


def _number(key: str, table: Mapping[str, Any], name: str) -> float:
    value = table.get(name)
    if value is None:
        raise InputError(f"{key}: a range has no {name}; write {{ from = 0, to = 9 }}.")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**63:
        raise InputError(f"{key}.{name}: got {shown(value)}, expected a number.")
    return value


def _tidy(key: str, values: Sequence[float]) -> list[Any]:
    """Whole numbers if all of them are, else so many digits, without rounding's dust."""
    found = [float(f"{value:.{_DIGITS}g}") for value in values]
    if (found[0], found[-1]) != (values[0], values[-1]) or len({*found}) < len({*values}):
        raise InputError(
            f"{key}: got {values[0]} to {values[-1]}, whose values need more than {_DIGITS} digits;"
            " write them out as a list."
        )
    return [int(value) for value in found] if all(map(float.is_integer, found)) else found


def shown(value: Any) -> str:
    """A value of a grid in a few characters."""
    written = f'"{value}"' if isinstance(value, str) else repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"
