"""``sweep``: a grid in, a folder of results out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rankscope import display
from rankscope.arguments import Count, Positive, checked
from rankscope.errors import InputError
from rankscope.numerals import plural
from rankscope.run._drive import OnOutcome, Progress, drive
from rankscope.run._engine import Engine
from rankscope.run._execute import execute
from rankscope.run._grid import Grid, read_grid
from rankscope.run._inline import Inline
from rankscope.run._plan import Plan, plan
from rankscope.run._processes import Processes
from rankscope.run._ray import RayEngine
from rankscope.run._reading import table
from rankscope.run._records import Failure
from rankscope.run._run import Run
from rankscope.run._status import status

if TYPE_CHECKING:
    import polars as pl

EngineName = Literal["processes", "inline", "ray"]
_MOST_TOLD = 5


@checked
@dataclass(frozen=True, repr=False)
class Sweep:
    """What became of a sweep: how many runs are done, and where their results are."""

    folder: Path
    progress: Progress
    merged: int = 0
    """Points of the grid that came to the same run as another."""

    @property
    def total(self) -> int:
        """How many runs the grid has."""
        return self.progress.total

    @property
    def done(self) -> int:
        """How many of them have a result."""
        return self.progress.done

    @property
    def skipped(self) -> int:
        """How many of those had it before."""
        return self.progress.before

    @property
    def failed(self) -> int:
        """How many failed, now or before."""
        return self.progress.failed

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Why they failed."""
        return status(self.folder).failures if self.failed else ()

    @property
    def table(self) -> "pl.LazyFrame":
        """All results: ``run``, a column for each axis, then those of the long table."""
        return table(self.folder)

    def __str__(self) -> str:
        before = f" ({self.skipped:,} of them before)" if self.skipped else ""
        said = [f"{self.done:,} done{before}"]
        said += [f"{self.failed:,} failed"] if self.failed else []
        said += [f"{self.progress.left:,} left"] if self.progress.left else []
        return f"{plural(self.total, 'run')}: {', '.join(said)}, in {self.progress.seconds:.1f} s"

    def __repr__(self) -> str:
        return f"Sweep({str(self.folder)!r}, {self})"

    def _repr_html_(self) -> str:
        """For notebooks: how it went, and why what failed did."""
        failed = [
            (Run(each.key, each.experiment, each.axes, {}), each.error) for each in self.failures
        ]
        listed = [display.table(("run", "error"), failed[:_MOST_TOLD])] if failed else []
        return display.card(f"Sweep in {self.folder}", display.paragraph(str(self)), *listed)


@checked
def sweep(
    grid: str | Path | Mapping[str, Any],
    folder: str | Path,
    *,
    engine: EngineName | Engine = "processes",
    workers: Count | None = None,
    quick: bool = False,
    retry_failed: bool = False,
    wait: bool = False,
    on_outcome: OnOutcome | None = None,
) -> Sweep:
    """Run every run of a grid that ``folder`` has no result of; nothing that is done is lost.

    >>> asked = {"heads": 1, "width": 8, "length": 4, "passages": 1, "axes": {"layers": [1, 2]}}
    >>> found = sweep(asked, "depths", engine="inline")
    >>> found.done, found.failed, found.table.collect()["layers"].unique().sort().to_list()
    (2, 0, [1, 2])

    ``grid`` is a TOML file or the same as a mapping; all of it is checked before anything runs.
    ``engine`` is ``processes`` (so many ``workers``, one for each core unless said), ``inline``,
    ``ray``, or an engine of ``rankscope.run``. ``quick`` runs the grid's quick form. A run
    that fails is kept as a failure, and repeated only with ``retry_failed``.
    """
    if isinstance(engine, str):
        engine = make_engine(engine, workers=workers)
    elif workers is not None:
        raise InputError("workers is for an engine named by a word; give it to the engine itself.")
    return sweep_plan(
        plan(read_grid(grid, quick=quick)),
        Path(folder),
        engine=engine,
        retry_failed=retry_failed,
        wait=wait,
        on_outcome=on_outcome,
    )


def sweep_plan(
    asked: Plan,
    folder: Path,
    *,
    engine: Engine,
    retry_failed: bool = False,
    wait: bool = False,
    on_outcome: OnOutcome | None = None,
) -> Sweep:
    """The same for a plan that is there already."""
    progress = drive(
        asked.points,
        folder,
        engine=engine,
        work=execute,
        grid=_written(asked.grid),
        retry_failed=retry_failed,
        wait=wait,
        on_outcome=on_outcome,
    )
    return Sweep(folder, progress, asked.merged)


def make_engine(
    name: EngineName,
    *,
    workers: Count | None = None,
    address: str | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
    memory: Positive | None = None,
) -> Engine:
    """An engine by its name; an option that it has no use for is refused."""
    if name not in get_args(EngineName):
        raise InputError(f"the engine is {name!r}; choose {', '.join(get_args(EngineName))}.")
    given = {"workers": workers, "address": address, "cpus": cpus, "gpus": gpus, "memory": memory}
    chosen: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    taken = {"processes": ("workers",), "inline": (), "ray": ("address", "cpus", "gpus", "memory")}
    for key in chosen:
        if key not in taken[name]:
            words = ", ".join(taken[name]) or "no options"
            raise InputError(f"the engine {name} takes no {key}; it takes {words}.")
    if name == "ray":
        return RayEngine(**chosen)
    return Processes(**chosen) if name == "processes" else Inline()


def _written(grid: Grid) -> dict[str, Any]:
    """A grid as it is kept beside the results."""
    axes = {", ".join(axis.names): [list(point) for point in axis.points] for axis in grid.axes}
    return {"name": grid.name, "fields": dict(grid.fields), "axes": axes}
