"""A grid: what all runs have in common, and the axes along which they differ."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from rankscope.arguments import checked
from rankscope.ask import nearest, placed
from rankscope.errors import InputError, RankscopeError
from rankscope.run._axes import Axis, read_axes, shown, split_names
from rankscope.run._templates import check_names, fill, has_braces, names_in
from rankscope.run._values import as_json, dotted

_AXES, _QUICK = "axes", "quick"


@checked
@dataclass(frozen=True)
class Grid:
    """Fields that all runs share, and axes; ``name`` is the file, for errors.

    Relative paths in it are relative to ``folder``.
    """

    name: str
    folder: str
    fields: Mapping[str, Any]
    axes: tuple[Axis, ...] = ()

    def __len__(self) -> int:
        """How many points there are."""
        return prod(len(axis.points) for axis in self.axes)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """The names along the axes, in order."""
        return tuple(name for axis in self.axes for name in axis.names)

    def points(self) -> Iterator[dict[str, Any]]:
        """The settings of every run, the last axis fastest; those in axes' own text filled in."""
        filled = [name for name in self.axis_names if self._refers(name)]
        for each in product(*(axis.points for axis in self.axes)):
            point = dict(zip(self.axis_names, (v for values in each for v in values), strict=True))
            yield {**point, **{name: fill(point[name], point) for name in filled}}

    def settings(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """The shared fields at a point, with its settings in their places."""
        if self._templates and not point.keys() >= set(self.axis_names):
            given, axes = ", ".join(point), ", ".join(self.axis_names)
            raise InputError(
                f"point: got {given or 'nothing'}, expected a value of each of {axes}."
            )
        filled = {name: fill(value, point) for name, value in self._templates.items()}
        return {**self.fields, **filled}

    @cached_property
    def referred(self) -> set[str]:
        """Axes that some text refers to."""
        values = [each for axis in self.axes for point in axis.points for each in point]
        return names_in([*self.fields.values(), *values])

    @cached_property
    def _templates(self) -> dict[str, Any]:
        return {name: value for name, value in self.fields.items() if has_braces(value)}

    def _refers(self, name: str) -> bool:
        axis = next(axis for axis in self.axes if name in axis.names)
        place = axis.names.index(name)
        return any(has_braces(point[place]) for point in axis.points)


@checked
def read_grid(source: str | Path | Mapping[str, Any], *, quick: bool = False) -> Grid:
    """A grid from a TOML file, or the same as a mapping.

    >>> grid = read_grid({"width": 64, "axes": {"layers": [2, 4], "seed": {"from": 0, "to": 2}}})
    >>> len(grid), list(grid.points())[:2]
    (6, [{'layers': 2, 'seed': 0}, {'layers': 2, 'seed': 1}])

    ``quick`` puts what stands in its table ``quick`` in the place of what is elsewhere.
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
        raise InputError(f"{name} is no UTF-8 text: {error}.") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{name} is no TOML: {error}.") from None


def _grid(name: str, folder: str, content: dict[str, Any], *, quick: bool) -> Grid:
    replaced = content.pop(_QUICK, {})
    if not isinstance(replaced, dict):
        raise InputError(f"{_QUICK}: got {shown(replaced)}, expected a table.")
    if quick:
        content = _replaced(content, replaced)
    axes = read_axes(content.pop(_AXES, {}))
    grid = Grid(name, folder, content, axes)
    for each in grid.axis_names:
        if each in content:
            raise InputError(f"{each}: it is fixed here and an axis, too; give one of them.")
    _check_templates(grid)
    return grid


def _replaced(content: dict[str, Any], quick: dict[str, Any]) -> dict[str, Any]:
    """The content with the quick form's fields and axes; an axis is known by its names."""
    axes, other = content.get(_AXES, {}), quick.get(_AXES, {})
    if not isinstance(axes, dict) or not isinstance(other, dict):
        raise InputError(f"{_AXES}: got {shown(axes)} and {shown(other)}, expected tables.")
    axes, keys = dict(axes), {split_names(key): key for key in axes}
    for key, values in other.items():
        known = keys.get(split_names(key))
        if known is None:
            where = dotted(f"{_QUICK}.{_AXES}", key)
            raise InputError(f"{where} is no axis of the grid; {nearest(key, tuple(axes))}")
        axes[known] = values
    return {**content, **quick, _AXES: axes}


def _check_templates(grid: Grid) -> None:
    for name, value in grid.fields.items():
        check_names(dotted("", name), value, grid.axis_names)
    inside: dict[str, set[str]] = {}
    for axis in grid.axes:
        for place, point in enumerate(axis.points):
            for name, value in zip(axis.names, point, strict=True):
                check_names(axis.place(place, name), value, grid.axis_names)
                inside.setdefault(name, set()).update(names_in(value))
    for name, others in inside.items():
        for other in others:
            if inside[other]:
                raise InputError(
                    f'axes.{name}: "{{{other}}}" has places of its own to fill in; one level is '
                    "all there is."
                )
