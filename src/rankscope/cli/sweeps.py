"""Sweeps with their progress, and how they ended, in the terminal or as JSON."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rankscope import run as sweeping
from rankscope.cli.printing import print_error, print_json, print_list, without_controls
from rankscope.cli.sweep_options import SweepOptions
from rankscope.cli.sweep_status import FIRST, print_failures
from rankscope.display import list_words
from rankscope.numerals import duration, gigabytes, plural
from rankscope.process.interruption import last_words
from rankscope.run import _journal as journal

_LEAST: Final = 2**28
"""Bytes a process takes before it has done anything."""
_EVERY: Final = 10.0
"""Seconds between two lines about progress where there is no terminal."""


def run(grid: Path, options: SweepOptions) -> bool:
    """Run what is not done yet, and tell how it ended; whether every run has a result."""
    asked = sweeping.plan(sweeping.read_grid(grid, quick=options.quick))
    folder, total = _folder(grid, options), len(asked.runs)
    engine = sweeping.make_engine(
        options.engine,
        workers=options.workers,
        address=options.address,
        cpus=options.cpus,
        gpus=options.gpus,
        memory=options.memory and round(options.memory * 2**30),
    )
    kept = 0

    def keep_count(progress: sweeping.Progress) -> None:
        nonlocal kept
        kept = progress.done

    def words() -> str:
        done = f"{kept:,} of {plural(total, 'run')} are done and" if kept else "what was done is"
        return f"{done} kept in {folder}; the same command goes on from there."

    if options.wait:
        _say_who_is_waited_for(folder)
    try:
        with last_words(words), _progress(total, keep_count) as tell:  # Ray is slow to end
            found = sweeping.sweep_plan(
                asked,
                folder,
                engine=engine,
                retry_failed=options.retry_failed,
                wait=options.wait,
                on_outcome=tell,
            )
    except KeyboardInterrupt:
        print_error(words())
        raise
    if options.as_json:
        print_json(_json(found))
    else:
        _print_end(found)
    return not found.failed


def _say_who_is_waited_for(folder: Path) -> None:
    running = sweeping.running_in(folder)
    if running is not None:
        print_error(f"waiting until the sweep in {folder} has ended ({running}).")


def dry_run(grid: Path, options: SweepOptions) -> None:
    """Say how many runs a grid has and what they will take."""
    asked = sweeping.plan(sweeping.read_grid(grid, quick=options.quick))
    folder = _folder(grid, options)
    done = sweeping.done_in(folder)
    left = [each for each in asked.runs if each.key not in done]
    cost = sweeping.estimate(left)
    first = [str(each) for each in left[:FIRST]]
    if options.as_json:
        counts = {"runs": len(asked.runs), "done": len(asked.runs) - len(left)}
        print_json({**asdict(cost), **counts, "merged": asked.merged, "first": first})
        return
    lines = {"runs": _runs_in_words(asked)}
    if len(left) < len(asked.runs):
        lines["done"] = f"{len(asked.runs) - len(left):,} of them; the rest is told of below"
    if left:
        lines["time"] = _time(cost, options.workers)
    if cost.bytes:
        lines["memory"] = f"about {gigabytes(max(cost.bytes, _LEAST))} for the largest run"
    lines["folder"] = str(folder)
    for number, each in enumerate(first):
        lines["first" if number == 0 else " " * number] = each
    print_list({name: without_controls(words) for name, words in lines.items()})


def _folder(grid: Path, options: SweepOptions) -> Path:
    quick = "-quick" if options.quick else ""
    return options.output or journal.FOLDER / f"{grid.stem}{quick}"


def _runs_in_words(asked: sweeping.Plan) -> str:
    axes = [f"{', '.join(axis.names)} ({len(axis.points)})" for axis in asked.grid.axes]
    merged = f"; {asked.merged:,} points of the grid are the same as others" * bool(asked.merged)
    return f"{len(asked.runs):,}, over {' × '.join(axes) or 'no axis'}{merged}"


def _time(cost: sweeping.Estimate, workers: int | None) -> str:
    unknown = f"nothing is known about {plural(cost.unknown, 'run')}"
    if cost.unknown == cost.runs:
        return unknown
    at_once = workers or sweeping.Processes().workers
    wall = max(cost.longest, cost.seconds / at_once)
    return (
        f"about {duration(cost.seconds)} of work, {duration(wall)} with "
        f"{plural(at_once, 'worker')}; good to a factor of three"
        + f"; {unknown}"
        * bool(cost.unknown)
    )


def _print_end(found: sweeping.Sweep) -> None:
    lines = {"runs": str(found), "folder": str(found.folder)}
    if found.merged:
        lines["merged"] = f"{found.merged:,} points of the grid are the same as others"
    if found.progress.aside:
        lines["aside"] = list_words([f"{p} ({wrong})" for p, wrong in found.progress.aside.items()])
    if found.failed:
        lines["again"] = "with --retry-failed, the same command repeats what failed"
    lines["next"] = f"rankscope sweep table {found.folder}"
    print_list({name: without_controls(words) for name, words in lines.items()})
    print_failures(found.failures)


def _json(found: sweeping.Sweep) -> dict[str, Any]:
    progress = {**asdict(found.progress), "aside": dict(found.progress.aside)}
    told = [asdict(each) for each in found.failures]
    return {"folder": str(found.folder), **progress, "merged": found.merged, "failures": told}


@contextmanager
def _progress(
    total: int, on_progress: Callable[[sweeping.Progress], None]
) -> Iterator[sweeping.OnOutcome]:
    """A bar on standard error, or where that is no terminal a line now and then."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    last = time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("starting", total=total)

        def tell(_outcome: sweeping.Outcome, progress: sweeping.Progress) -> None:
            nonlocal last
            on_progress(progress)
            failed = f", {progress.failed:,} failed" if progress.failed else ""
            bar.update(task, description=f"runs{failed}", completed=progress.done + progress.failed)
            if not console.is_terminal and time.monotonic() - last >= _EVERY and progress.left:
                last = time.monotonic()
                said = f"{progress.done:,} of {total:,} runs done{failed}"
                print(said, file=sys.stderr, flush=True)

        yield tell
