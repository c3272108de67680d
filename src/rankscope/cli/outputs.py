"""Run experiments with a progress bar; write results to files, the terminal or JSON."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from rankscope import tables
from rankscope.ask import refuse_unasked
from rankscope.cli.options import OutputOptions, QuestionOptions, ReproduceOptions
from rankscope.cli.printing import print_error, print_json, print_list, without_controls
from rankscope.core.checks import whole
from rankscope.errors import InputError
from rankscope.experiments import Entry
from rankscope.process import OnStep
from rankscope.results import Result
from rankscope.run import (
    MOST_SEEDS,
    OUTPUT_FOLDER,
    SUMMARY,
    Reproduction,
    over_seeds,
    reproductions,
)
from rankscope.show import report

_MORE: Final = "; details and charts are on the page (or use --full)"


def run(entry: Entry, config: Any, options: OutputOptions) -> Result:
    """Run an experiment with a configuration, and print and write its result."""
    _refuse_useless(options)
    if isinstance(options, QuestionOptions) and not options.yes:
        # Suggest options that do not change the model: fewer draws, or less text.
        draws = "--draws, " * hasattr(config, "draws")
        refuse_unasked(entry.module().cost(config), f"{draws}--samples, --length")
    return publish(lambda bars: entry.results(config, bars.begin(entry.id)), options)


def publish(compute: Callable[["Bars"], Iterable[Result]], options: OutputOptions) -> Result:
    """Compute a result, print it, and write its files.

    An answer that is known before the whole result is printed when it is known.
    """
    _refuse_useless(options)
    folder = None if options.as_json and options.output is None else _folder(options)
    start, shown = time.perf_counter(), False
    with progress() as bars:
        for result in compute(bars):
            if not shown and not options.as_json and not options.full and report.has_screen(result):
                with bars.hidden():
                    report.show(result)
                shown = True
    seconds = time.perf_counter() - start
    if options.command:  # so that its files say how they were made
        result = replace(result, provenance={"command": options.command, **result.provenance})
    drawn = {"charts": options.charts}
    files = {} if folder is None else _with_csv(report.names(result, folder, **drawn), options)
    # Print before writing files, so that the result survives a full disk.
    if options.as_json:
        print_json(report.to_json(result, files, with_table=options.table))
    elif not shown:
        report.show(result, full=options.full)
    if folder is None:
        return result
    _write_csv(result, files)
    with progress() as bars:
        report.write(result, folder, **drawn, on_step=bars.begin("writing"))
    if not options.as_json:
        _print_files(files, seconds, "" if options.full or not report.has_screen(result) else _MORE)
    return result


def _refuse_useless(options: OutputOptions) -> None:
    """Raise if an option has no effect."""
    no_files = options.as_json and options.output is None
    for name in ("csv", "charts"):
        if getattr(options, name) and no_files:
            raise InputError(
                f"--{name} writes a file, but --json writes none unless --output is given."
            )
    if options.table and not options.as_json:
        raise InputError("--table needs --json; the table is always written as a file.")


def reproduce(chosen: Mapping[Entry, Mapping[str, Any]], options: ReproduceOptions) -> bool:
    """Run claims with the fields given for each, and print verdicts; return whether all ran."""
    whole("--seeds", options.seeds, least=1, most=MOST_SEEDS)
    if options.table and not options.as_json:
        raise InputError("--table needs --json; the table is always written as a file.")
    folder = _folder(options)
    done: list[Reproduction] = []
    claims_done = 0
    passed = ("scale", "seeds", "fresh", "redraw", "charts")
    how = {name: getattr(options, name) for name in passed}
    try:
        with progress() as bars:
            for claim, fields in chosen.items():
                of_claim = []
                for outcome in reproductions({claim: fields}, folder, **how, begin=bars.begin):
                    files = _with_csv(outcome.files, options)
                    if outcome.result is not None:
                        _write_csv(outcome.result, files)
                    of_claim.append(replace(outcome, files=files))
                done += of_claim
                claims_done += 1
                if not options.as_json and len(chosen) > 1:
                    _print_line(of_claim)
    except KeyboardInterrupt:
        print_error(
            f"{claims_done} of {len(chosen)} claims are done and saved in {folder}; run the same "
            "command again to resume."
        )
        raise
    if options.as_json:
        series = over_seeds([outcome.run for outcome in done])
        seeds = {run.stem or run.id: same.seeds for same in series for run in same.runs}
        shown = [_json(ran, seeds[ran.run.stem or ran.run.id], options) for ran in done]
        print_json(shown)
    else:
        alone = done[0] if len(chosen) == 1 else None
        if alone and alone.result is not None:
            report.show(alone.result, full=options.full)
        if alone and len(done) > 1:
            _print_line(done)
        _print_files({**(alone.files if alone else {}), "summary": str(folder / SUMMARY)})
    failed = [outcome for outcome in done if outcome.run.failure]
    for outcome in failed:
        problem = "failed" if outcome.result is None else "ran, but its files were not written"
        print_error(f"{outcome.entry.id} {problem}: {outcome.run.failure}")
    return not failed


def _with_csv(files: Mapping[str, str], options: OutputOptions) -> dict[str, str]:
    """The files by kind, with the CSV table if ``--csv`` is given."""
    if not options.csv or "table" not in files:
        return dict(files)
    csv = str(Path(files["table"]).with_suffix(".csv"))
    return {"table": files["table"], "csv": csv, **files}


def _write_csv(result: Result, files: Mapping[str, str]) -> None:
    if "csv" in files:
        tables.write_csv(result.table, files["csv"])


def _print_line(outcomes: Sequence[Reproduction]) -> None:
    """Print the verdict of a claim over all of its seeds."""
    took = sum(outcome.run.seconds or 0.0 for outcome in outcomes if not outcome.from_before)
    reused = all(outcome.from_before for outcome in outcomes)
    time_taken = "saved earlier" if reused else f"{took:.1f} s"
    console = Console(soft_wrap=True, highlight=False, markup=False)
    for series in over_seeds([outcome.run for outcome in outcomes]):
        ended = f"{series.verdict}; {series.seeds}"
        if series.runs[0].failure:
            ended = "failed"
        console.print(without_controls(f"{series.runs[0].id:<4} {ended} ({time_taken})"))
        console.print(without_controls(f"     {outcomes[0].entry.title}"))


def _json(outcome: Reproduction, seeds: str, options: OutputOptions) -> dict[str, Any]:
    """A result as JSON with how it was computed; a failed one has no figures."""
    run, claim = outcome.run, outcome.entry
    how = {"scale": run.scale, "seconds": run.seconds, "failure": run.failure or None}
    how |= {"from_before": outcome.from_before, "seeds": seeds}
    if outcome.result is None:
        named = {"id": claim.id, "title": claim.title, "source": claim.source}
        return {**named, "verdict": None, **how}
    return {**report.to_json(outcome.result, outcome.files, with_table=options.table), **how}


class Bars:
    """A progress bar on standard error: ``begin`` adds a line for a phase."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar

    def begin(self, what: str) -> OnStep:
        """A line for a phase, as the callback that moves it."""
        task = self._bar.add_task(what, total=1.0)
        return lambda share: self._bar.update(task, completed=share)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """In this context, there is no bar: what is printed has the terminal to itself."""
        self._bar.stop()
        yield
        self._bar.start()


@contextmanager
def progress() -> Iterator[Bars]:
    """A progress bar on standard error, with one line per phase."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden
    ) as bar:
        yield Bars(bar)


def _folder(options: OutputOptions) -> Path:
    """The output folder, created before any work so that no result is lost."""
    folder = options.output or OUTPUT_FOLDER
    try:
        str(folder).encode()
        folder.mkdir(parents=True, exist_ok=True)
    except UnicodeEncodeError:
        raise InputError(
            f"--output {str(folder)!r} is not valid UTF-8; choose another name."
        ) from None
    except OSError as error:
        raise InputError(f"--output {folder} cannot be created: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"--output {folder} is not writable.")
    return folder


def _print_files(files: Mapping[str, str], seconds: float | None = None, more: str = "") -> None:
    """Print the paths of the files, the page last."""
    print()
    if seconds is not None:
        print(f"Took {seconds:.1f} s{more}")
    print_list(files)
