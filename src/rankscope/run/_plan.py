"""From a grid to its runs: every one worked out and named before any is started."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rankscope.arguments import checked
from rankscope.ask import Sources, ask, nearest, readers
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments.catalogue import Entry
from rankscope.experiments.catalogue import entry as catalogue_entry
from rankscope.run._grid import Grid
from rankscope.run._run import Run, Setting
from rankscope.run._store import NAME, Store
from rankscope.run._templates import has_braces
from rankscope.run._values import dotted

_EXPERIMENT, _USUAL = "experiment", "trace"


@checked
@dataclass(frozen=True)
class Plan:
    """A grid and, at each of its points, the run there; several may come to the same run."""

    grid: Grid
    points: tuple[Run, ...]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs to carry out, each once, as at the first of its points."""
        found: dict[str, Run] = {}
        for run in self.points:
            found.setdefault(run.key, run)
        return tuple(found.values())

    @property
    def merged(self) -> int:
        """How many points came to the same run as another."""
        return len(self.points) - len(self.runs)

    def left(self, folder: str | Path) -> tuple[Run, ...]:
        """The runs that a folder, which need not be there yet, has no result of."""
        if not (Path(folder) / NAME).is_file():
            return self.runs
        with Store(Path(folder), "sweep") as store:
            done = store.results()
        return tuple(run for run in self.runs if run.key not in done)


@checked
def plan(grid: Grid) -> Plan:
    """Every run of a grid, checked; the first thing that is wrong is an error that says where.

    >>> from rankscope.run import read_grid
    >>> grid = read_grid({"heads": 1, "width": 8, "axes": {"layers": [1, 2], "seed": [0, 1, 2]}})
    >>> [str(run) for run in plan(grid).runs][:2]
    ['trace (layers=1, seed=0)', 'trace (layers=1, seed=1)']
    """
    try:
        _check_values(grid)
    except RankscopeError as error:
        raise type(error)(f"{grid.name}: {error}") from None
    sources = Sources(grid.folder)
    points = []
    for number, point in enumerate(grid.points(), start=1):
        axes = {name: _setting(value) for name, value in point.items()}
        try:
            said = {**grid.settings(point), **point}
            entry = _entry(said.pop(_EXPERIMENT, _USUAL))
            known = readers(entry)
            said = {n: v for n, v in said.items() if n in known or n not in grid.referred}
            key = ask(entry, said, sources).key
        except RankscopeError as error:
            settings = ", ".join(f"{name}={value}" for name, value in axes.items())
            where = f"run {number} of {len(grid)} ({settings}): " if settings else ""
            raise type(error)(f"{grid.name}: {where}{error}") from error
        points.append(Run(key, entry.id, axes, said, grid.folder))
    return Plan(grid, tuple(points))


def _entry(id_: Any) -> Entry:
    return catalogue_entry(id_)


def _check_values(grid: Grid) -> None:
    """Try every value that stands in the grid alone, so that an error can say where it stands."""
    places = list(_places(grid))
    experiments = [(key, value) for key, name, value in places if name == _EXPERIMENT]
    entries = {_at(key, _entry, value) for key, value in experiments if not has_braces(value)}
    if not experiments:
        entries = {_entry(_USUAL)}
    for key, name, value in places:
        if name != _EXPERIMENT and name not in grid.referred:
            for entry in sorted(entries, key=lambda each: each.id):
                _at(key, _try, entry, name, value)


def _places(grid: Grid) -> Iterator[tuple[str, str, Any]]:
    """Every value of the grid, with where it stands and what it is a value of."""
    for name, value in grid.fields.items():
        yield dotted("", name), name, value
    for axis in grid.axes:
        for place, point in enumerate(axis.points):
            for name, value in zip(axis.names, point, strict=True):
                yield axis.place(place, name), name, value


def _try(entry: Entry, name: str, value: Any) -> None:
    known = readers(entry)
    if name not in known:
        raise InputError(
            f'{name} is no field of {entry.id}, and no text refers to it as "{{{name}}}"; '
            f"{nearest(name, tuple(known))}"
        )
    if not has_braces(value):
        known[name](value)


def _at(key: str, action: Any, *arguments: Any) -> Any:
    """Do something; what goes wrong is said with where it stands in the grid."""
    try:
        return action(*arguments)
    except RankscopeError as error:
        raise type(error)(f"{key}: {error}") from None


def _setting(value: Any) -> Setting:
    """A value along an axis as a column holds it."""
    return json.dumps(value) if isinstance(value, list | dict) else value
