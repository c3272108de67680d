"""Commands about the run of a monitor: a page of it, and its state in the terminal, live."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankscope.cli.application import app
from rankscope.cli.options import OutputOptions, takes
from rankscope.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from rankscope.monitor import RunReader

_POLL = 0.5
"""Seconds between two looks at the files of a run."""
_Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="Folder of a run that a monitor writes, or its Parquet file.",
        show_default=False,
    ),
]


@app.command()
@takes(OutputOptions)
def report(options: OutputOptions, *, run: _Run) -> None:
    """When and where did a training run begin to collapse? A page with maps and alarms.

    Reads what a monitor recorded, also while the run goes on: metrics by layer
    and step, their start and predicted band, and alarms on the time line.
    """
    from rankscope.cli import outputs
    from rankscope.monitor import read_run, run_result

    outputs.publish(lambda _: [run_result(read_run(run))], options)


@app.command()
def watch(
    run: _Run,
    *,
    metric: Annotated[
        str, typer.Option(help="Metric of layers to draw, such as attention/entropy.")
    ] = "rank/residual",
    once: Annotated[bool, typer.Option("--once", help="Print the state once and exit.")] = False,
) -> None:
    """Watch a training run in the terminal: a sparkline per layer, alarms, overhead.

    Waits for a run that has not begun. Stop it with Ctrl-C; training is not
    affected. Without a terminal, the state is printed once.
    """
    from rich.console import Console

    from rankscope.monitor import RunReader

    console, reader = Console(highlight=False), RunReader(run)
    if once or not console.is_terminal:
        console.print(_view(reader, metric, console), soft_wrap=True)
        return
    if not reader.has_begun() and Path(run).is_file():
        raise InputError(f"{run} is no run of a monitor; give the folder of a run.")
    try:
        _follow(reader, metric, console)
    except KeyboardInterrupt:
        return


def _follow(reader: "RunReader", metric: str, console: "Console") -> None:
    """Show the state of a run whenever it or the size of the terminal changes."""
    from rich.live import Live
    from rich.text import Text

    shown: object = None
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            state = (reader.signature(), console.size)
            if state != shown:
                try:
                    view = _view(reader, metric, console, live=True)
                except InputError as error:  # a metric may be measured later, a file written anew
                    view = Text(f"{error} Waiting (stop with Ctrl-C).")
                live.update(view, refresh=True)
                shown = state
            time.sleep(_POLL)


def _view(reader: "RunReader", metric: str, console: "Console", *, live: bool = False) -> "Text":
    """The screen of a run, or a line that says what is waited for."""
    from rich.text import Text

    from rankscope.cli.run_screen import BLOCKS, PLAIN_BLOCKS, screen

    if live and not reader.has_begun():
        return Text(f"Waiting for {reader.table}: the run has not begun (stop with Ctrl-C).")
    unicode = console.encoding.lower().startswith("utf")
    return screen(
        reader.read(),
        metric,
        title=reader.table.parent.name,
        width=console.width,
        height=console.height if live else None,
        blocks=BLOCKS if unicode else PLAIN_BLOCKS,
    )
