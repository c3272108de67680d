"""Runs with a progress bar, and results → files, terminal or JSON."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rankscope import report
from rankscope.cli.options import OutputOptions
from rankscope.cli.printing import print_json
from rankscope.errors import InputError
from rankscope.experiments.catalogue import Entry
from rankscope.experiments.progress import OnStep

_DEFAULT_FOLDER = Path("rankscope-output")


def run(entry: Entry, options: OutputOptions, *, with_table: bool = False, **fields: Any) -> None:
    """Run an experiment under a configuration of these fields, and deliver what it found.

    ``with_table`` is for JSON: every number, not only their summary.
    """
    module = entry.module()
    config = module.Config(**fields)
    folder = _folder(options)
    with progress() as begin:
        result = module.run(config, begin(entry.id))
        files = {} if folder is None else report.write(result, folder, on_step=begin("drawing"))
    if options.as_json:
        print_json(report.to_json(result, files, with_table=with_table))
        return
    report.show(result)
    _print_files(files)


@contextmanager
def progress() -> Iterator[Callable[[str], OnStep]]:
    """A bar on standard error, so that standard output stays clean; a new line for each phase."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:

        def begin(what: str) -> OnStep:
            task = bar.add_task(what, total=1.0)
            return lambda share: bar.update(task, completed=share)

        yield begin


def _folder(options: OutputOptions) -> Path | None:
    """Where files go; None when only JSON is wanted.

    Made before any work is done, so that no result is lost to a folder that cannot be written.
    """
    if options.output is None and options.as_json:
        return None
    wanted = options.output or _DEFAULT_FOLDER
    try:
        wanted.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {wanted} cannot be made a folder: {error.strerror}.") from error
    if not os.access(wanted, os.W_OK):
        raise InputError(f"--output {wanted} cannot be written to.")
    return wanted


def _print_files(files: Mapping[str, str]) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print()
    for what, path in files.items():
        console.print(f"{what:<7} {path}")
