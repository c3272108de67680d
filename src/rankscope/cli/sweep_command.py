"""``rankscope sweep``: run a grid, see how far it is, make tables and charts of it."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rankscope.cli.application import app
from rankscope.cli.options import takes
from rankscope.cli.sweep_options import StatusOptions, SweepOptions, TableOptions

_RUN = "run"
_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")]


class _WithDefault(TyperGroup):
    """A group whose first command may be left out: ``sweep GRID`` is ``sweep run GRID``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = {*self.commands, *ctx.help_option_names}
        if args and args[0] not in known:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


sweeps = typer.Typer(cls=_WithDefault, no_args_is_help=True)
app.add_typer(sweeps, name="sweep")


@sweeps.callback()
def sweep() -> None:
    """Many runs over a grid of settings: 'sweep GRID.toml' runs what is not done yet.

    'sweep run --help' lists the options. Whatever happens, what is done is kept; the same command
    goes on from there.
    """


@sweeps.command(_RUN)
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
@takes(StatusOptions)
def status(options: StatusOptions, *, folder: _Folder) -> None:
    """How far a sweep is, what failed, and how fast it goes; also while it is running."""
    from rankscope.cli import sweep_status

    sweep_status.status(folder, options)


@sweeps.command()
@takes(TableOptions)
def table(options: TableOptions, *, folder: _Folder) -> None:
    """All results as one table; with --x or --map, medians along axes, and a chart.

    'sweep table DIR --x depth --y relative_residual --color mask --facet norm' prints medians over
    seeds and samples; with --output chart.html it draws them.
    """
    from rankscope.cli import sweep_tables

    sweep_tables.table(folder, options)
