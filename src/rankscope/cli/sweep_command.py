"""``rankscope sweep``: run a grid, see how far it is, make tables and charts of it."""

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
_JSON = in_output("The answer as JSON on standard output.", "--json")
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")]

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
    """How a grid is run, and where."""

    output: Annotated[
        Path | None, in_output("Folder for results; by default rankscope-output/NAME of the grid.")
    ] = None
    as_json: Annotated[bool, _JSON] = False
    dry_run: Annotated[
        bool, in_run("Only check the grid, and say how long it will take.", "--dry-run")
    ] = False
    quick: Annotated[
        bool, in_run("The grid's quick form: what its table 'quick' replaces.", "--quick")
    ] = False
    retry_failed: Annotated[
        bool, in_run("Also repeat runs that failed before.", "--retry-failed")
    ] = False
    wait: Annotated[bool, in_run("Wait until no other sweep works in the folder.", "--wait")] = (
        False
    )
    engine: Annotated[_Engine, in_run(f"What runs are carried out by ({_ENGINES}).")] = "processes"

    @property
    def engine_options(self) -> dict[str, Any]:
        """Those that were given."""
        options = {name: getattr(self, name) for name in _ENGINE_OPTIONS}
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class TableOptions(Options):
    """What is drawn along which axis, and where it goes."""

    x: Annotated[
        str | None, _chart("Axis of the grid on the x-axis, or 'layer'; 'depth' is 'layers'.")
    ] = None
    y: Annotated[
        str | None, _chart("Metric on the y-axis; optional if the sweep has only one.")
    ] = None
    color: Annotated[str | None, _chart("An axis with a curve for each value.")] = None
    facet: Annotated[str | None, _chart("An axis with a panel for each value.")] = None
    heatmap: Annotated[
        str | None, _chart("Two axes, X,Y: shades of the metric over both.", "--map")
    ] = None
    layer: Annotated[
        int | None, _chart("The layer looked at; by default each run's last.", min=0)
    ] = None
    below: Annotated[
        float | None, _chart("Instead of the metric, the first layer at which it is below this.")
    ] = None
    boundary: Annotated[
        float | None, _chart("On a map, a line where the metric crosses this value.")
    ] = None
    only: Annotated[
        list[str] | None, _chart("AXIS=VALUE[,VALUE]: leave others out; may be repeated.")
    ] = None
    pool: Annotated[str, _chart("Axes that medians go over, beside samples, comma-separated.")] = (
        "seed"
    )
    output: Annotated[
        Path | None,
        in_output("A chart (.html, .png, .svg) or a table (.parquet, .csv), by the file's ending."),
    ] = None
    as_json: Annotated[bool, _JSON] = False


class _WithDefault(TyperGroup):
    """A group whose first command may be left out: ``sweep GRID`` is ``sweep run GRID``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        if args and args[0] not in known:
            args = ["run", *args]
        return super().parse_args(ctx, args)


sweeps = typer.Typer(cls=_WithDefault, no_args_is_help=True)
app.add_typer(sweeps, name="sweep")


@sweeps.callback()
def sweep() -> None:
    """Many runs over a grid of settings: 'sweep GRID.toml' runs what is not done yet.

    'sweep run --help' lists the options. Whatever happens, what is done is kept; the same command
    goes on from there.
    """


@sweeps.command()
@takes(SweepOptions)
def run(
    options: SweepOptions,
    *,
    grid: Annotated[Path, typer.Argument(metavar="GRID.toml", help="The grid, a TOML file.")],
) -> None:
    """Run a grid, here or on a Ray cluster; 'run' may be left out.

    The grid says what all runs share and, in its table 'axes', along what they differ; see
    docs/sweeps.md.
    """
    from rankscope.cli import sweeps as doing

    if options.dry_run:
        doing.dry_run(grid, options)
    elif not doing.run(grid, options):
        raise typer.Exit(2)


@sweeps.command()
def status(*, folder: _Folder, as_json: Annotated[bool, _JSON] = False) -> None:
    """How far a sweep is, what failed, and how fast it goes; also while it is running."""
    from rankscope.cli import sweeps as doing

    doing.status(folder, as_json=as_json)


@sweeps.command()
@takes(TableOptions)
def table(options: TableOptions, *, folder: _Folder) -> None:
    """All results as one table; with --x or --map, medians along axes, and a chart.

    'sweep table DIR --x depth --y relative_residual --color mask --facet norm' prints medians over
    seeds and samples; with --output chart.html it draws them.
    """
    from rankscope.cli import sweeps as doing

    doing.table(folder, options)
