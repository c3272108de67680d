"""Runs with a progress bar, and results → files, terminal or JSON."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rankscope import tables
from rankscope.ask import refuse_unasked
from rankscope.cli.options import OutputOptions, QuestionOptions, ReproduceOptions
from rankscope.cli.printing import print_error, print_json, without_controls
from rankscope.errors import InputError
from rankscope.experiments import Entry
from rankscope.process import OnStep
from rankscope.results import Result
from rankscope.run import OUTPUT_FOLDER, SUMMARY, Reproduction, reproductions
from rankscope.show import report


def run(entry: Entry, config: Any, options: OutputOptions, *, with_table: bool = False) -> None:
    """Run an experiment under a configuration, and deliver what it found.

    ``with_table`` is for JSON: every number, not only their summary.
    """
    if isinstance(options, QuestionOptions) and not options.yes:
        refuse_unasked(entry.module().cost(config), "--length, --passages, --layers")
    if options.csv and options.as_json and options.output is None:
        raise InputError("--csv writes a file, and with --json none is written without --output.")
    folder = None if options.as_json and options.output is None else _folder(options)
    start = time.perf_counter()
    with progress() as begin:
        result = _noted(entry.run(config, begin(entry.id)), options)
    seconds = time.perf_counter() - start
    files = {} if folder is None else _named(report.names(result, folder), options)
    # Before anything is written or drawn, so that no full disk can cost the answer.
    if options.as_json:
        print_json(report.to_json(result, files, with_table=with_table))
    else:
        report.show(result)
        Console(highlight=False).print(f"\n{entry.id} took {seconds:.1f} s")
    if folder is None:
        return
    _write_csv(result, files)
    with progress() as begin:
        report.write(result, folder, on_step=begin("drawing"))
    if not options.as_json:
        _print_files(files)


def reproduce(chosen: Mapping[Entry, Mapping[str, Any]], options: ReproduceOptions) -> bool:
    """Run claims, each with the fields chosen for it, and tell how each ended; whether all ran."""
    folder = _folder(options)
    done: list[Reproduction] = []
    alone = len(chosen) == 1
    try:
        with progress() as begin:
            for outcome in reproductions(
                chosen,
                folder,
                scale=options.scale,
                fresh=options.fresh,
                redraw=options.redraw,
                begin=begin,
            ):
                done.append(_with_csv(outcome, options))
                if not options.as_json and not alone:
                    _print_line(outcome)
    except KeyboardInterrupt:
        print_error(
            f"{len(done)} of {len(chosen)} claims are done and kept in {folder}; the same command "
            "goes on from there."
        )
        raise
    if options.as_json:
        print_json([_json(outcome) for outcome in done])
    else:
        if alone and done[0].result is not None:
            report.show(done[0].result)
        files = done[0].files if alone else {}
        _print_files({**files, "summary": str(folder / SUMMARY)})
    failed = [outcome for outcome in done if outcome.run.failure]
    for outcome in failed:
        ended = "could not be run" if outcome.result is None else "ran, but was not written"
        print_error(f"{outcome.entry.id} {ended}: {outcome.run.failure}")
    return not failed


def _noted(result: Result, options: OutputOptions) -> Result:
    """The result with the command that gives it again, for whoever finds its files."""
    command = {"command": options.command} if options.command else {}
    return replace(result, provenance={**command, **result.provenance})


def _named(files: Mapping[str, str], options: OutputOptions) -> dict[str, str]:
    """Files by what they are; the table as CSV among them if that was asked for."""
    if not options.csv or "table" not in files:
        return dict(files)
    csv = {"csv": str(Path(files["table"]).with_suffix(".csv"))}
    return {"table": files["table"], **csv, **files}


def _write_csv(result: Result, files: Mapping[str, str]) -> None:
    if "csv" in files:
        tables.write_csv(result.table, files["csv"])


def _with_csv(outcome: Reproduction, options: OutputOptions) -> Reproduction:
    if outcome.result is None:
        return outcome
    files = _named(outcome.files, options)
    _write_csv(outcome.result, files)
    return replace(outcome, files=files)


def _print_line(outcome: Reproduction) -> None:
    """How a claim ended, in one line."""
    run = outcome.run
    ended = "could not be run" if outcome.result is None else run.verdict
    taken = "from before" if outcome.from_before else f"{run.seconds or 0.0:.1f} s"
    console = Console(soft_wrap=True, highlight=False, markup=False)
    console.print(without_controls(f"{run.id:<4} {ended} ({taken})"))


def _json(outcome: Reproduction) -> dict[str, Any]:
    """A result as ever, and beside it how it came about; one that failed has no figures."""
    run, claim = outcome.run, outcome.entry
    came = {"scale": run.scale, "seconds": run.seconds, "failure": run.failure or None}
    came |= {"from_before": outcome.from_before}
    if outcome.result is None:
        named = {"id": claim.id, "title": claim.title, "source": claim.source}
        return {**named, "verdict": None, **came}
    return {**report.to_json(outcome.result, outcome.files), **came}


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


def _folder(options: OutputOptions) -> Path:
    """Where files go; made before any work is done, so that no result is lost for want of it."""
    wanted = options.output or OUTPUT_FOLDER
    try:
        str(wanted).encode()
    except UnicodeEncodeError:
        raise InputError(f"--output {str(wanted)!r} is no UTF-8; choose another name.") from None
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
    margin = max(map(len, files), default=0)
    for what, path in files.items():
        console.print(f"{what:<{margin}} {path}")
