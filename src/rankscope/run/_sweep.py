"""``sweep``: run a grid and save its results in a folder.

All runs are checked and get their keys before the first one starts.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rankscope import tables
from rankscope.arguments import checked
from rankscope.ask import Sources, ask, nearest, readers
from rankscope.core.checks import whole
from rankscope.core.tabular import Tabular
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments import Entry, entry
from rankscope.numerals import duration, plural
from rankscope.run import _results
from rankscope.run._drive import OnOutcome, Progress, drive
from rankscope.run._engine import AxisValue, Engine, Run, make_engine
from rankscope.run._grid import Grid, has_braces, read_grid
from rankscope.run._status import status
from rankscope.run._store import NAME, RunRecord, Store
from rankscope.show import display
from rankscope.version import __version__

if TYPE_CHECKING:
    import polars as pl

    from rankscope.show import figures


_EXPERIMENT: Final = "experiment"
_DEFAULT: Final = "trace"
_LEAST_SECONDS: Final = 0.01
"""Time of the smallest run: initialise a network, read a text, make a table."""
_MOST: Final = 500  # runs that an estimate samples, evenly spaced
_MOST_SHOWN: Final = 5


@checked
@dataclass(frozen=True)
class SweepPlan:
    """A grid and the run at each of its points; several points may have the same run.

    >>> from rankscope.run import plan, read_grid
    >>> planned = plan(read_grid({"heads": 1, "width": 8, "axes": {"seed": [0, 1]}}))
    >>> len(planned.runs), planned.merged
    (2, 0)
    """

    grid: Grid
    points: tuple[Run, ...]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The distinct runs, each as at the first of its points."""
        distinct: dict[str, Run] = {}
        for run in self.points:
            distinct.setdefault(run.key, run)
        return tuple(distinct.values())

    @property
    def merged(self) -> int:
        """The number of points whose run is a duplicate."""
        return len(self.points) - len(self.runs)

    def left(self, folder: str | Path) -> tuple[Run, ...]:
        """The runs without a result in a folder, which need not exist."""
        if not (Path(folder) / NAME).is_file():
            return self.runs
        with Store(Path(folder), "sweep") as store:
            done = store.results()
        return tuple(run for run in self.runs if run.key not in done)


@checked
def plan(grid: Grid) -> SweepPlan:
    """Check a grid and list its runs; an error names the location of the problem.

    >>> from rankscope.run import read_grid
    >>> grid = read_grid({"heads": 1, "width": 8, "axes": {"layers": [1, 2], "seed": [0, 1, 2]}})
    >>> [str(run) for run in plan(grid).runs][:2]
    ['trace (layers=1, seed=0)', 'trace (layers=1, seed=1)']
    """
    with _located(grid.name):
        _check_values(grid)
    sources = Sources(grid.folder)
    points = []
    for number, point in enumerate(grid.points(), start=1):
        axes: dict[str, AxisValue] = {  # as values of a column
            name: json.dumps(value) if isinstance(value, list | dict) else value
            for name, value in point.items()
        }
        try:
            fields = {**grid.settings(point), **point}
            experiment = entry(fields.pop(_EXPERIMENT, _DEFAULT))
            known = readers(experiment)
            fields = {n: v for n, v in fields.items() if n in known or n not in grid.referred}
            key = ask(experiment, fields, sources).key
        except RankscopeError as error:
            settings = ", ".join(f"{name}={value}" for name, value in axes.items())
            where = f"run {number} of {len(grid)} ({settings}): " if settings else ""
            raise type(error)(f"{grid.name}: {where}{error}") from error
        points.append(Run(key, experiment.id, axes, fields, grid.folder))
    return SweepPlan(grid, tuple(points))


def _check_values(grid: Grid) -> None:
    """Check every value of the grid by itself, so that an error can name its location."""
    ids = {key: value for key, name, value in grid.values() if name == _EXPERIMENT}
    experiments = set() if ids else {entry(_DEFAULT)}
    for key, id_ in ids.items():
        if not has_braces(id_):
            with _located(key):
                experiments.add(entry(id_))
    for key, name, value in grid.values():
        if name != _EXPERIMENT and name not in grid.referred:
            for experiment in sorted(experiments, key=lambda experiment: experiment.id):
                with _located(key):
                    _try(experiment, name, value)


def _try(experiment: Entry, name: str, value: Any) -> None:
    known = readers(experiment)
    if name not in known:
        raise InputError(
            f'{name} is not a field of {experiment.id}, and no text contains "{{{name}}}"; '
            f"{nearest(name, tuple(known))}"
        )
    if not has_braces(value):
        known[name](value)


@contextmanager
def _located(location: str) -> Iterator[None]:
    """Prefix errors with a location."""
    try:
        yield
    except RankscopeError as error:
        raise type(error)(f"{location}: {error}") from None


@checked
def execute(run: Run) -> "pl.DataFrame":
    """Execute one run in this process, and return the table of its result.

    >>> from rankscope.run import execute, plan, read_grid
    >>> asked = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1]}}
    >>> execute(plan(read_grid(asked)).runs[0])["layer"].max()
    1

    Its inputs must not have changed since the plan was made: an edited text, or another version of
    rankscope on a node, would store results under a wrong key.
    """
    asked = ask(entry(run.experiment), run.fields, Sources(run.folder))
    if asked.key != run.key:
        raise InputError(
            f"{run} had the key {run.key} and now has {asked.key}: a text, a model or rankscope "
            f"(here {__version__}) has changed; start the sweep again."
        )
    return asked.run().table


@checked
@dataclass(frozen=True)
class SweepEstimate:
    """Total time of all runs and of the longest, in seconds, and memory of the largest in bytes.

    >>> from rankscope.run import SweepEstimate
    >>> SweepEstimate(runs=100, seconds=600.0, longest=20.0).in_words(workers=4)
    'about 10 minutes of work, 2 minutes with 4 workers (within a factor of three)'

    ``unknown`` of the ``runs`` have no estimate; they are not in the sums.
    """

    runs: int
    seconds: float = 0.0
    longest: float = 0.0
    bytes: float = 0.0
    unknown: int = 0

    def in_words(self, workers: int) -> str:
        """The estimated time with this number of workers, in words."""
        unknown = f"no estimate for {plural(self.unknown, 'run')}"
        if self.unknown == self.runs:
            return unknown
        whole("workers", workers, least=1)
        wall = duration(max(self.longest, self.seconds / workers))
        total = f"about {duration(self.seconds)} of work, {wall} with {plural(workers, 'worker')}"
        return f"{total} (within a factor of three)" + f"; {unknown}" * bool(self.unknown)


@checked
def estimate(runs: Sequence[Run]) -> SweepEstimate:
    """Estimate the time and memory of runs on this machine, without initialising any network.

    >>> from rankscope.run import plan, read_grid
    >>> cost = estimate(plan(read_grid({"width": 12, "axes": {"seed": [0, 1]}})).runs)
    >>> cost.runs, cost.unknown, 0 < cost.longest <= cost.seconds < 60
    (2, 0, True)
    """
    if not runs:
        return SweepEstimate(0)
    count = min(len(runs), _MOST)
    sampled = [runs[number * len(runs) // count] for number in range(count)]
    sources = {folder: Sources(folder) for folder in {run.folder for run in sampled}}
    asked = (ask(entry(run.experiment), run.fields, sources[run.folder]) for run in sampled)
    known = [cost for cost in (question.cost() for question in asked) if cost is not None]
    seconds = [_LEAST_SECONDS + cost.seconds for cost in known]
    share = len(runs) / count
    return SweepEstimate(
        len(runs),
        share * sum(seconds),
        max(seconds, default=0.0),
        max((cost.bytes for cost in known), default=0.0),
        round(share * (count - len(known))),
    )


@checked
@dataclass(frozen=True, repr=False)
class Sweep(Tabular, Progress):
    """The outcome of a sweep: its counts, failures and results.

    >>> from rankscope.run import sweep
    >>> asked = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}
    >>> found = sweep(asked, "depths", engine="inline")
    >>> found.total, len(found.failures), found.table["run"].n_unique()
    (2, 0, 2)
    """

    folder: Path = Path()
    merged: int = 0  # points of the grid whose run is a duplicate
    _loaded: "pl.DataFrame | None" = field(default=None, repr=False, compare=False)
    """The table, of a sweep that was read from a file: its folder may be elsewhere."""

    @property
    def failures(self) -> tuple[RunRecord, ...]:
        """The failed runs with their errors."""
        return status(self.folder).failures if self.failed else ()

    def scan(self) -> "pl.LazyFrame":
        """All results, read when they are needed: a lazy polars frame; see ``run.table``."""
        return self._loaded.lazy() if self._loaded is not None else _results.table(self.folder)

    @property
    def table(self) -> "pl.DataFrame":
        """All results: ``run``, a column for each axis, then those of the long table."""
        return self.scan().collect()

    def plot(self, metric: str | None = None, **axes: Any) -> "figures.Figure":
        """A metric, by default the first, along the axes that vary; see ``figures.by_axis``.

        ``axes`` are its options, such as ``x``, ``color`` and ``facet``. Unless given, they are
        the axes with several values, in the grid's order.
        """
        from rankscope.show import figures

        rows = self.table
        if not rows.height:
            raise InputError(f"no run in {self.folder} is done, so there is nothing to draw.")
        names = tables.axes_of(rows.columns)
        varied = [name for name in names if rows[name].n_unique() > 1]
        apart = [name for name in varied if name not in tables.POOLED] or varied or names
        if not axes:
            axes = dict(zip(("x", "color", "facet"), apart, strict=False))
        return figures.by_axis(rows, metric=metric or rows["metric"][0], **axes)

    def _kept(self) -> dict[str, Any]:
        return {name: value for name, value in super()._kept().items() if name != "_loaded"}

    @classmethod
    def _restored(
        cls, saved: dict[str, Any], table: "pl.DataFrame", origin: Mapping[str, Any]
    ) -> Self:
        return super()._restored({**saved, "_loaded": table}, table, origin)

    def __str__(self) -> str:
        before = f" ({self.before:,} earlier)" if self.before else ""
        failed = f", {self.failed:,} failed" if self.failed else ""
        left = f", {self.left:,} left" if self.left else ""
        done = f"{self.done:,} done{before}{failed}{left}"
        return f"{plural(self.total, 'run')}: {done}, in {self.seconds:.1f} s"

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r}, {self})"

    def _repr_html_(self) -> str:
        """For notebooks: the counts and the first errors."""
        failed = [(str(run), run.error) for run in self.failures[:_MOST_SHOWN]]
        listed = [display.table(("run", "error"), failed)] if failed else []
        return display.card(f"Sweep in {self.folder}", display.paragraph(str(self)), *listed)


@checked
def sweep(
    grid: str | Path | Mapping[str, Any] | SweepPlan,
    folder: str | Path,
    *,
    engine: str | Engine = "processes",
    quick: bool = False,
    retry_failed: bool = False,
    wait: bool = False,
    on_outcome: OnOutcome | None = None,
    **options: Any,
) -> Sweep:
    """Run a grid, and save each result in ``folder``; runs that are done are not repeated.

    >>> asked = {"heads": 1, "width": 8, "length": 4, "samples": 1, "axes": {"layers": [1, 2]}}
    >>> found = sweep(asked, "depths", engine="inline")
    >>> found.done, found.failed, found.table["layers"].unique().sort().to_list()
    (2, 0, [1, 2])

    ``grid`` is a TOML file, a mapping or a plan; it is checked before anything runs. ``engine`` is
    ``processes``, ``inline`` or ``ray``, with its ``options`` (``workers``, default one per core;
    ``address``, ``cpus``, ``gpus``, ``memory``), or an engine of ``rankscope.run``. ``quick`` runs
    the quick version of the grid. A failed run is recorded, and repeated only with
    ``retry_failed``.
    """
    if isinstance(engine, str):
        engine = make_engine(engine, **options)
    elif options:
        raise InputError(
            f"got the options {', '.join(options)} and an engine object; set them on the engine."
        )
    planned = grid if isinstance(grid, SweepPlan) else plan(read_grid(grid, quick=quick))
    axes = {", ".join(axis.names): list(map(list, axis.points)) for axis in planned.grid.axes}
    progress = drive(
        planned.points,
        folder,
        engine=engine,
        work=execute,
        grid={"name": planned.grid.name, "fields": dict(planned.grid.fields), "axes": axes},
        retry_failed=retry_failed,
        wait=wait,
        on_outcome=on_outcome,
    )
    return Sweep(**vars(progress), folder=Path(folder), merged=planned.merged)
