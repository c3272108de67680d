"""``sweep``: a grid in, a folder of results out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rankscope.arguments import checked
from rankscope.errors import InputError
from rankscope.numerals import plural
from rankscope.run import _results
from rankscope.run._drive import OnOutcome, Progress, drive
from rankscope.run._engine import Engine, make_engine
from rankscope.run._execute import execute
from rankscope.run._grid import Grid, read_grid
from rankscope.run._plan import Plan, plan
from rankscope.run._status import Failure, status
from rankscope.show import display

if TYPE_CHECKING:
    import polars as pl

_MOST_TOLD: Final = 5


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
        return _results.table(self.folder)

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
        failed = [(each.run, each.error) for each in self.failures[:_MOST_TOLD]]
        listed = [display.table(("run", "error"), failed)] if failed else []
        return display.card(f"Sweep in {self.folder}", display.paragraph(str(self)), *listed)


@checked
def sweep(
    grid: str | Path | Mapping[str, Any] | Plan,
    folder: str | Path,
    *,
    engine: str | Engine = "processes",
    quick: bool = False,
    retry_failed: bool = False,
    wait: bool = False,
    on_outcome: OnOutcome | None = None,
    **options: Any,
) -> Sweep:
    """Run every run of a grid that ``folder`` has no result of; nothing that is done is lost.

    >>> asked = {"heads": 1, "width": 8, "length": 4, "passages": 1, "axes": {"layers": [1, 2]}}
    >>> found = sweep(asked, "depths", engine="inline")
    >>> found.done, found.failed, found.table.collect()["layers"].unique().sort().to_list()
    (2, 0, [1, 2])

    ``grid`` is a TOML file, the same as a mapping, or a plan; all of it is checked before anything
    runs. ``engine`` is ``processes``, ``inline`` or ``ray``, with its ``options`` (``workers``, one
    for each core unless given; ``address``, ``cpus``, ``gpus``, ``memory``), or an engine of
    ``rankscope.run``. ``quick`` runs the grid's quick form. A run that fails is kept as a failure,
    and repeated only with ``retry_failed``.
    """
    if isinstance(engine, str):
        engine = make_engine(engine, **options)
    elif options:
        raise InputError(
            f"{', '.join(options)} is for an engine named by a word; give it to the engine itself."
        )
    asked = grid if isinstance(grid, Plan) else plan(read_grid(grid, quick=quick))
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
    return Sweep(Path(folder), progress, asked.merged)


def _written(grid: Grid) -> dict[str, Any]:
    """A grid as it is kept beside the results."""
    axes = {", ".join(axis.names): [list(point) for point in axis.points] for axis in grid.axes}
    return {"name": grid.name, "fields": dict(grid.fields), "axes": axes}
