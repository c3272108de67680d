"""``rankscope sweep``: run a grid, show its progress, make tables and charts."""

import functools
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from rankscope.cli.application import app
from rankscope.cli.options import Options, in_output, in_run, option, takes
from rankscope.run import ENGINES

_chart = functools.partial(option, panel="Chart")
_JSON = in_output("Print the result as JSON.", "--json")
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a sweep.")]

_Engine: Any = Literal[*ENGINES]
_ENGINES = ", ".join(f"{name}: {kind.help}" for name, kind in ENGINES.items())
_ENGINE_OPTIONS: dict[str, Any] = {
    name: Annotated[choice.kind | None, option(choice.help, panel=f"Engine {engine}", **more)]
    for engine, kind in ENGINES.items()
    for name, choice in kind.options.items()
    for more in [{} if choice.kind is str else {"min": choice.least}]
}
_EngineOptions: Any = make_dataclass(
    "_EngineOptions",
    [(name, kind, field(default=None)) for name, kind in _ENGINE_OPTIONS.items()],
    bases=(Options,),
    frozen=True,
)


@dataclass(frozen=True)
class SweepOptions(_EngineOptions):  # type: ignore[misc]
    """How and where a grid is run."""

    output: Annotated[
        Path | None, in_output("Folder for results (default: rankscope-output/NAME of the grid).")
    ] = None
    as_json: Annotated[bool, _JSON] = False
    dry_run: Annotated[
        bool, in_run("Check the grid and estimate the time, but run nothing.", "--dry-run")
    ] = False
    quick: Annotated[
        bool, in_run("Run the quick version defined by the grid's table 'quick'.", "--quick")
    ] = False
    retry_failed: Annotated[bool, in_run("Also repeat failed runs.", "--retry-failed")] = False
    wait: Annotated[bool, in_run("Wait until no other sweep uses the folder.", "--wait")] = False
    engine: Annotated[_Engine, in_run(f"Where runs are executed ({_ENGINES}).")] = "processes"

    @property
    def engine_options(self) -> dict[str, Any]:
        """The engine options given."""
        options = {name: getattr(self, name) for name in _ENGINE_OPTIONS}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class TableOptions(Options):
    """Axes of the chart or table, and its output."""

    x: Annotated[
        str | None,
        _chart("Sweep axis on the x-axis, or 'layer' ('depth' is an alias of 'layers')."),
    ] = None
    y: Annotated[
        str | None, _chart("Metric on the y-axis; optional if the sweep has only one.")
    ] = None
    color: Annotated[str | None, _chart("Sweep axis with one curve per value.")] = None
    facet: Annotated[str | None, _chart("Sweep axis with one panel per value.")] = None
    heatmap: Annotated[
        str | None, _chart("Heatmap of the metric over two sweep axes, X,Y.", "--map")
    ] = None
    layer: Annotated[
        int | None, _chart("Layer to show (default: the last of each run).", min=0)
    ] = None
    below: Annotated[
        float | None, _chart("Show the first layer where the metric is below this value.")
    ] = None
    boundary: Annotated[float | None, _chart("Draw a contour at this value on the heatmap.")] = None
    only: Annotated[list[str] | None, _chart("Filter: AXIS=VALUE[,VALUE]; repeatable.")] = None
    pool: Annotated[str, _chart("Comma-separated axes to take medians over, besides samples.")] = (
        "seed"
    )
    output: Annotated[
        Path | None,
        in_output("File to write: a chart (.html, .png, .svg) or a table (.parquet, .csv)."),
    ] = None
    as_json: Annotated[bool, _JSON] = False


class _WithDefault(TyperGroup):
    """A group with a default command: ``sweep GRID`` means ``sweep run GRID``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        if args and args[0] not in known:
            args = ["run", *args]
        return super().parse_args(ctx, args)


sweeps = typer.Typer(cls=_WithDefault, no_args_is_help=True)
app.add_typer(sweeps, name="sweep")


@sweeps.callback()
def sweep() -> None:
    """Run a grid of settings, and make tables and charts of the results.

    'sweep GRID.toml' runs everything that is not done yet; options: 'sweep run
    --help'. Results are saved as they finish, so that the same command resumes an
    interrupted sweep.
    """


@sweeps.command()
@takes(SweepOptions)
def run(
    options: SweepOptions,
    *,
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="Grid, a TOML file.")],
) -> None:
    """Run a grid locally or on a Ray cluster; 'run' is optional.

    The grid defines the settings that all runs share and, in its table 'axes',
    those that vary; see docs/sweeps.md.
    """
    from rankscope.cli import sweeps as doing

    if options.dry_run:
        doing.dry_run(grid, options)
    elif not doing.run(grid, options):
        raise typer.Exit(2)


@sweeps.command()
def status(*, folder: _Folder, as_json: Annotated[bool, _JSON] = False) -> None:
    """Show the progress, failures and speed of a sweep, also while it runs."""
    from rankscope.cli import sweeps as doing

    doing.status(folder, as_json=as_json)


@sweeps.command()
@takes(TableOptions)
def table(options: TableOptions, *, folder: _Folder) -> None:
    """Show all results as one table, or medians along axes with --x or --map.

    'sweep table DIR --x depth --y relative_residual --color mask --facet norm'
    prints medians over seeds and samples; --output chart.html saves a chart.
    """
    from rankscope.cli import sweeps as doing

    doing.table(folder, options)
