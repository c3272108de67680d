"""A grid: the fields that all runs share, and the axes that vary."""

import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path, PurePath
from typing import Any

from rankscope.arguments import checked
from rankscope.ask import nearest, placed
from rankscope.errors import InputError, KindError, RankscopeError
from rankscope.tables import IN_RUN

MOST_RUNS = 1_000_000
"""Maximum size of a grid, and of an axis."""
_MOST = 2**63  # integers of a table are smaller
_DEEPEST = 32  # maximum nesting; more is a mistake, or a list that contains itself
_RANGE = ("from", "to", "step", "count", "spacing")
_RESERVED = (
    *("part", "run", "layer", "head", "index", "token", "other_token"),
    *("parameter", "setting", "sample", "metric", "value"),
    *("error", "doubt", "mean", "low", "median", "high"),
)
"""Columns of results and of their medians, which cannot name an axis."""
_DIGITS = 12  # significant digits of computed values, so that a hundredth is 0.01
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
"""``{name}``, replaced by the value of an axis; doubled braces are literal braces."""
_AXES, _QUICK = "axes", "quick"


@dataclass(frozen=True)
class Axis:
    """One or more names, and a value of each at every point; ``key`` is its key in the grid."""

    key: str
    names: tuple[str, ...]
    points: tuple[tuple[Any, ...], ...]

    def location(self, point: int, name: str) -> str:
        """The location of a value: ``axes.heads[2]``, ``axes."layers, width"[0][1]``."""
        inside = f"[{self.names.index(name)}]" if len(self.names) > 1 else ""
        return f"{self.key}[{point}]{inside}"


@checked
@dataclass(frozen=True)
class Grid:
    """Fields that all runs share, and axes; ``name`` is the file name, used in errors.

    >>> from rankscope.run import read_grid
    >>> grid = read_grid({"axes": {"layers": [2, 4], "seed": [0, 1, 2]}})
    >>> len(grid), grid.axis_names
    (6, ('layers', 'seed'))

    Paths are relative to ``folder``.
    """

    name: str
    folder: str
    fields: Mapping[str, Any]
    axes: tuple[Axis, ...] = ()

    def __len__(self) -> int:
        """The number of points."""
        return math.prod(len(axis.points) for axis in self.axes)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """The names of all axes, in order."""
        return tuple(name for axis in self.axes for name in axis.names)

    def points(self) -> Iterator[dict[str, Any]]:
        """The values at every point, the last axis fastest, with placeholders replaced."""
        templates = {name for _, name, value in self.values() if has_braces(value)}
        filled = [name for name in self.axis_names if name in templates]
        for chosen in product(*(axis.points for axis in self.axes)):
            point = dict(zip(self.axis_names, chain.from_iterable(chosen), strict=True))
            yield {**point, **{name: fill(point[name], point) for name in filled}}

    def settings(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The shared fields, with placeholders replaced by the values at a point."""
        if self._templates and not point.keys() >= set(self.axis_names):
            named, axes = ", ".join(point), ", ".join(self.axis_names)
            raise InputError(
                f"point: got {named or 'nothing'}, expected a value of each of {axes}."
            )
        filled = {name: fill(value, point) for name, value in self._templates.items()}
        return {**self.fields, **filled}

    def values(self) -> Iterator[tuple[str, str, Any]]:
        """Every value in the grid: its location, its name, and the value."""
        for name, value in self.fields.items():
            yield dotted("", name), name, value
        for axis in self.axes:
            for number, point in enumerate(axis.points):
                for name, value in zip(axis.names, point, strict=True):
                    yield axis.location(number, name), name, value

    @cached_property
    def referred(self) -> set[str]:
        """Axes that a placeholder refers to."""
        return names_in([value for _, _, value in self.values()])

    @cached_property
    def _templates(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if has_braces(value)}


@checked
def read_grid(source: str | Path | Mapping[str, Any], *, quick: bool = False) -> Grid:
    """Read a grid from a TOML file or a mapping.

    >>> grid = read_grid({"width": 64, "axes": {"layers": [2, 4], "seed": {"from": 0, "to": 2}}})
    >>> len(grid), list(grid.points())[:2]
    (6, [{'layers': 2, 'seed': 0}, {'layers': 2, 'seed': 1}])

    ``quick`` overrides fields and axes with those of the grid's table ``quick``.
    """
    if isinstance(source, Mapping):
        name, folder, content = "grid", Path.cwd(), source
    else:
        name = str(source)
        path = placed("", name, "grid")
        folder, content = path.resolve().parent, _toml(name, path)
    try:
        return _grid(name, str(folder), as_json(content, ""), quick=quick)
    except RankscopeError as error:
        raise type(error)(f"{name}: {error}") from None


def _toml(name: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except IsADirectoryError:
        raise InputError(f"{name} is a folder, expected a TOML file with a grid.") from None
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text: {error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{name} is not valid TOML: {error}.") from None


def _grid(name: str, folder: str, content: dict[str, Any], *, quick: bool) -> Grid:
    replaced = content.pop(_QUICK, {})
    if not isinstance(replaced, dict):
        raise InputError(f"{_QUICK}: got {shown(replaced)}, expected a table.")
    if quick:
        content = _replaced(content, replaced)
    grid = Grid(name, folder, content, read_axes(content.pop(_AXES, {})))
    for axis in grid.axis_names:
        if axis in content:
            raise InputError(f"{axis} is both a field and an axis; remove one of them.")
    _check_templates(grid)
    return grid


def _replaced(content: dict[str, Any], quick: dict[str, Any]) -> dict[str, Any]:
    """The content with the fields and axes of the quick version; axes are matched by name."""
    axes, other = content.get(_AXES, {}), quick.get(_AXES, {})
    if not isinstance(axes, dict) or not isinstance(other, dict):
        raise InputError(f"{_AXES}: got {shown(axes)} and {shown(other)}, expected tables.")
    axes, keys = dict(axes), {split_names(key): key for key in axes}
    for key, values in other.items():
        known = keys.get(split_names(key))
        if known is None:
            where = dotted(f"{_QUICK}.{_AXES}", key)
            raise InputError(f"{where} is not an axis of the grid; {nearest(key, tuple(axes))}")
        axes[known] = values
    return {**content, **quick, _AXES: axes}


def _check_templates(grid: Grid) -> None:
    """Raise if a placeholder does not name an axis, or names one that has placeholders itself."""
    inside: dict[str, set[str]] = {}
    for key, name, value in grid.values():
        referred = names_in(value)
        for other in sorted(referred - set(grid.axis_names)):
            known = nearest(other, grid.axis_names) if grid.axes else "the grid has no axes."
            raise InputError(
                f'{key}: "{{{other}}}" is not an axis; {known} Write literal braces as '
                "{{ and }}."
            )
        inside.setdefault(name, set()).update(referred)
    for name in grid.axis_names:
        for other in inside[name]:
            if inside[other]:
                raise InputError(
                    f'axes.{name}: "{{{other}}}" contains placeholders itself; nested placeholders '
                    "are not supported."
                )


def read_axes(axes: Any) -> tuple[Axis, ...]:
    """The axes of a grid's table ``axes``, in order; the last varies fastest."""
    if not isinstance(axes, Mapping):
        raise InputError(f"axes: got {shown(axes)}, expected a table of lists.")
    read = tuple(_axis(dotted("axes", name), name, values) for name, values in axes.items())
    seen: dict[str, str] = {}
    for axis in read:
        for name in axis.names:
            if name in seen:
                raise InputError(f"{axis.key}: {name} is already an axis, in {seen[name]}.")
            seen[name] = axis.key
    sizes = [len(axis.points) for axis in read]
    if (runs := math.prod(sizes)) > MOST_RUNS:
        product_ = " × ".join(map(str, sizes))
        raise InputError(f"axes: got {product_} = {runs:,} runs, expected at most {MOST_RUNS:,}.")
    return read


def split_names(written: str) -> tuple[str, ...]:
    """The comma-separated names of an axis."""
    return tuple(name.strip() for name in written.split(","))


def _axis(key: str, written: str, values: Any) -> Axis:
    names = split_names(written)
    for name in names:
        if not name.isidentifier():
            raise InputError(f"{key}: got the name {name!r}, expected letters, digits and _.")
        if name in _RESERVED or name.endswith(IN_RUN):
            raise InputError(
                f"{key}: {name} is a column of the results; choose another name for the axis."
            )
    points = _range(key, values) if isinstance(values, Mapping) else values
    if not isinstance(points, list):
        raise InputError(
            f"{key}: got {shown(points)}, expected a list, or a range {{ from = 0, to = 9 }}."
        )
    if not points:
        raise InputError(f"{key}: got an empty list, expected at least one value.")
    if len(names) == 1:
        return Axis(key, names, tuple((point,) for point in points))
    for number, point in enumerate(points):
        if not isinstance(point, list) or len(point) != len(names):
            raise InputError(
                f"{key}[{number}]: got {shown(point)}, expected a list of {len(names)} values, for "
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
        raise InputError(f"{key}: got both step and count; give one of them.")
    count, spacing = table["count"], table.get("spacing", "linear")
    if isinstance(count, bool) or not isinstance(count, int) or not 2 <= count <= MOST_RUNS:
        raise InputError(f"{key}.count: got {shown(count)}, expected 2 to {MOST_RUNS:,}.")
    if spacing not in ("linear", "log"):
        raise InputError(f"{key}.spacing: got {shown(spacing)}, expected linear or log.")
    if spacing == "log" and not (first > 0 and last > 0):
        raise InputError(
            f"{key}: got {first} to {last}, expected positive numbers for log spacing."
        )
    shares = (step / (count - 1) for step in range(count))
    if spacing == "log":
        inner = (math.exp((1 - s) * math.log(first) + s * math.log(last)) for s in shares)
    else:
        inner = ((1 - s) * first + s * last for s in shares)
    return _tidy(key, [first, *list(inner)[1:-1], last])


def _steps(key: str, first: float, last: float, table: Mapping[str, Any]) -> list[Any]:
    step = _number(key, {"step": 1, **table}, "step")
    if "spacing" in table:
        raise InputError(f"{key}.spacing: got {shown(table['spacing'])} without count; add count.")
    if not all(isinstance(value, int) for value in (first, last, step)):
        raise InputError(f"{key}: got numbers that are not integers; give the count: count = 5.")
    if first > last or step < 1:
        raise InputError(
            f"{key}: got {first} to {last} in steps of {step}, expected from <= to and step >= 1."
        )
    if (last - first) // step >= MOST_RUNS:
        raise InputError(f"{key}: got {first} to {last}, expected at most {MOST_RUNS:,} values.")
    return list(range(int(first), int(last) + 1, int(step)))


def _number(key: str, table: Mapping[str, Any], name: str) -> float:
    value = table.get(name)
    if value is None:
        raise InputError(f"{key}: a range needs {name}; example: {{ from = 0, to = 9 }}.")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 2**63:
        raise InputError(f"{key}.{name}: got {shown(value)}, expected a number.")
    return value


def _tidy(key: str, values: Sequence[float]) -> list[Any]:
    """Values rounded to the significant digits; as integers if all of them are."""
    rounded = [float(f"{value:.{_DIGITS}g}") for value in values]
    if (rounded[0], rounded[-1]) != (values[0], values[-1]) or len({*rounded}) < len({*values}):
        raise InputError(
            f"{key}: got {values[0]} to {values[-1]}, which need more than {_DIGITS} digits; "
            "give a list of values."
        )
    return [int(value) for value in rounded] if all(map(float.is_integer, rounded)) else rounded


def names_in(value: Any) -> set[str]:
    """The axes that placeholders in a value, table or list refer to.

    >>> sorted(names_in({"kind": "lecun", "scale": "{scale}", "other": ["{a}:{b}", "{{c}}"]}))
    ['a', 'b', 'scale']
    """
    return {name.strip() for text in _texts(value) for name in _PLACEHOLDER.findall(text) if name}


def has_braces(value: Any) -> bool:
    """Whether a value has placeholders or doubled braces."""
    return any("{" in text or "}" in text for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    """Every string in a value, table or list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def fill(value: Any, settings: Mapping[str, Any]) -> Any:
    """Replace placeholders by settings; a text that is one placeholder becomes the value itself.

    >>> fill(["window:{r}", "{r}", "{{r}}"], {"r": 2})
    ['window:2', 2, '{r}']
    """
    if isinstance(value, Mapping):
        return {name: fill(inner, settings) for name, inner in value.items()}
    if isinstance(value, list):
        return [fill(inner, settings) for inner in value]
    if not isinstance(value, str):
        return value
    alone = _PLACEHOLDER.fullmatch(value)
    if alone and alone.group(1) is not None:
        return settings[alone.group(1).strip()]
    return _PLACEHOLDER.sub(
        lambda match: str(settings[match[1].strip()]) if match[1] else match[0][0], value
    )


def as_json(value: Any, key: str, depth: int = 0) -> Any:
    """Convert a value to JSON types; ``key`` is its location, used in errors."""
    if depth > _DEEPEST:
        raise InputError(f"{key}: tables and lists are nested more than {_DEEPEST} levels deep.")
    if hasattr(value, "tolist"):  # numbers of NumPy and torch
        try:
            value = value.tolist()
        except (RuntimeError, NotImplementedError) as error:  # nested, sparse, meta
            got = type(value).__name__
            raise InputError(f"{key}: a {got} cannot be read as numbers; give a list.") from error
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if not -_MOST <= value < _MOST:
            raise InputError(f"{key}: got an integer of more than 64 bits, expected a smaller one.")
        return int(value)  # a member of an enumeration may not be picklable
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{key}: got {value}, expected a finite number.")
        return float(value)
    if isinstance(value, str | PurePath):
        try:
            str(value).encode()
        except UnicodeEncodeError:
            raise InputError(f"{key}: got text with half of a surrogate pair.") from None
        return str(value)
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                raise KindError(f"{key}: got the name {name!r}, expected text.")
        return {
            as_json(name, key): as_json(inner, dotted(key, name), depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        if len(value) > MOST_RUNS:  # a range may be huge
            raise InputError(f"{key}: got {len(value):,} items, expected at most {MOST_RUNS:,}.")
        return [as_json(item, f"{key}[{i}]", depth + 1) for i, item in enumerate(value)]
    raise KindError(
        f"{key}: got a {type(value).__name__}, expected text, a number, true or false, a list or a "
        "table."
    )


def dotted(key: str, name: str) -> str:
    """The TOML key of a name below another key.

    >>> dotted("axes", "heads"), dotted("axes", "layers, width")
    ('axes.heads', 'axes."layers, width"')
    """
    written = name if name.replace("_", "").replace("-", "").isalnum() else f'"{name}"'
    return f"{key}.{written}" if key else written


def shown(value: Any) -> str:
    """A value of a grid, shortened."""
    written = f'"{value}"' if isinstance(value, str) else repr(value)
    return written if len(written) <= 60 else f"{written[:60]}…"
