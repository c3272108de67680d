"""Sweeps in the terminal or as JSON: progress, outcome, tables and charts."""

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rankscope import run as running
from rankscope import tables
from rankscope.cli.options import names
from rankscope.cli.printing import print_error, print_json, print_list, without_controls
from rankscope.cli.sweep_command import SweepOptions, TableOptions
from rankscope.errors import InputError, RankscopeError
from rankscope.experiments import ENTRIES
from rankscope.metric_catalogue import knowing
from rankscope.metric_catalogue import metric as metric_words
from rankscope.numerals import cut, gigabytes, list_words, plural, power_of_ten, setting_text, short
from rankscope.process import on_forced_exit

_FIRST: Final = 5  # runs, or failures, that are printed
_LONGEST: Final = 1000  # characters of an error; the folder has the full text
_LEAST: Final = 2**28  # bytes of an idle process
_EVERY: Final = 10.0  # seconds between progress lines without a terminal
_CHARTS: Final = (".html", ".svg", ".png")
_TABLES: Final = (".parquet", ".csv")


def run(grid: Path, options: SweepOptions) -> bool:
    """Run what is not done yet and print a summary; return whether every run has a result."""
    plan = running.plan(running.read_grid(grid, quick=options.quick))
    folder, last = _folder(grid, options), [0]

    def how_to_resume() -> str:
        done = f"{last[0]:,} of {plural(len(plan.runs), 'run')} are" if last[0] else "results are"
        return f"{done} saved in {folder}; run the same command again to resume."

    if options.wait:
        with suppress(RankscopeError):  # no sweep in the folder yet
            if (holder := running.status(folder).holder) is not None:
                print_error(f"waiting for the sweep in {folder} to finish ({holder}).")
    try:
        with on_forced_exit(how_to_resume), _progress(len(plan.runs), last) as on_outcome:
            swept = running.sweep(
                plan,
                folder,
                engine=options.engine,
                retry_failed=options.retry_failed,
                wait=options.wait,
                on_outcome=on_outcome,
                **options.engine_options,
            )
    except KeyboardInterrupt:
        print_error(how_to_resume())
        raise
    if options.as_json:
        failures = [asdict(failure) for failure in swept.failures]
        print_json({**asdict(swept), "folder": str(folder), "failures": failures})
        return not swept.failed
    lines = {"runs": str(swept), "folder": str(folder)}
    if plan.merged:
        lines["merged"] = f"{plan.merged:,} points of the grid are duplicates"
    if swept.aside:
        aside = [f"{path} ({problem})" for path, problem in swept.aside.items()]
        lines["moved aside"] = list_words(aside)
    if swept.failed:
        lines["failed"] = "run the same command with --retry-failed to repeat them"
    print_list({**lines, "next": f"rankscope sweep table {folder}"})
    _print_failures(swept.failures)
    return not swept.failed


def dry_run(grid: Path, options: SweepOptions) -> None:
    """Print the number of runs of a grid, and the time and memory they need."""
    plan = running.plan(running.read_grid(grid, quick=options.quick))
    folder = _folder(grid, options)
    left = plan.left(folder)
    cost, first = running.estimate(left), [str(run) for run in left[:_FIRST]]
    done = len(plan.runs) - len(left)
    if options.as_json:
        counts = {"runs": len(plan.runs), "done": done, "merged": plan.merged}
        print_json({**asdict(cost), **counts, "first": first})
        return
    axes = [f"{', '.join(axis.names)} ({len(axis.points)})" for axis in plan.grid.axes]
    merged = f"; {plan.merged:,} points of the grid are duplicates" * bool(plan.merged)
    lines = {"runs": f"{len(plan.runs):,}, over {' × '.join(axes) or 'no axis'}{merged}"}
    if done:
        lines["done"] = f"{done:,}; the estimates below are for the rest"
    if left:
        workers = options.engine_options.get("workers") or running.Processes().workers
        lines["time"] = cost.in_words(workers)
    if cost.bytes:
        lines["memory"] = f"about {gigabytes(max(cost.bytes, _LEAST))} for the largest run"
    lines["folder"] = str(folder)
    print_list(lines | {"first" if not at else " " * at: run for at, run in enumerate(first)})


def status(folder: Path, *, as_json: bool) -> None:
    """Print the progress of the sweep in a folder."""
    now = running.status(folder)
    if as_json:
        print_json({**asdict(now), "failed": now.failed, "left": now.left})
        return
    obsolete = f"{plural(now.others, 'result')} of runs that are not in the grid any more"
    print_list({"runs": str(now), "state": now.state} | ({"kept": obsolete} if now.others else {}))
    _print_failures(now.failures)


@knowing([metric for entry in ENTRIES for metric in entry.metrics])
def table(folder: Path, options: TableOptions) -> None:
    """Print, write or draw the results of a sweep."""
    drawn = _check(options)
    rows, path = running.with_settings(running.table(folder), options.only or []), options.output
    files = {"table" if path.suffix.lower() in _TABLES else "chart": str(path)} if path else {}
    if not drawn:
        _print_whole(rows, options, files)
        return
    metric, pool = options.y or _only_metric(rows), names(options.pool)
    axes: dict[str, Any] = _axes(options, rows)
    chosen: dict[str, Any] = {"layer": options.layer, "below": options.below, "pool": pool}
    rows = _of_metric(rows, metric).lazy()  # read once for table and chart
    medians = tables.pooled(rows, metric=metric, by=[*axes.values()], **chosen)
    if options.as_json:
        finite = [{name: _plain(v) for name, v in row.items()} for row in medians.to_dicts()]
        print_json({"metric": metric, "rows": finite, "files": files})
    else:
        _print_medians(medians, metric, axes.get("facet"), options.below)
    if "table" in files:
        _write(medians, Path(files["table"]))
    elif path:
        from rankscope.show import figures  # imports Altair

        if options.heatmap is None:
            chart = figures.by_axis(rows, metric=metric, **axes, **chosen)
        else:
            axes["boundary"] = options.boundary
            chart = figures.axis_map(rows, metric=metric, **axes, **chosen)
        about = f"Medians over {list_words(['samples', *pool])}"
        title = str(chart.description).partition(". ")[0]
        figures.save(figures.labelled(chart.to_dict(), title, f"{about}; {folder.name}"), path)
    if files and not options.as_json:
        print_list(files)


def _check(options: TableOptions) -> bool:
    """Raise if options conflict, before anything is read; return whether axes are given."""
    is_map, path = options.heatmap is not None, options.output
    drawn = is_map or options.x is not None
    ending = path.suffix.lower() if path else ""
    if is_map and options.x is not None:
        raise InputError("--x and --map exclude each other; give one of them.")
    if options.heatmap is not None and len(names(options.heatmap)) != 2:
        raise InputError(
            f"--map {options.heatmap} does not name two axes; example: --map layers,skip."
        )
    for name in ("color", "facet", "layer", "below", "boundary"):
        if name in options.specified and not drawn:
            raise InputError(f"--{name} needs --x or --map.")
    if is_map and options.color is not None:
        raise InputError(
            "--map does not take --color, because color shows the metric; use --facet."
        )
    if options.boundary is not None and not is_map:
        raise InputError("--boundary needs --map.")
    if path and ending not in (*_CHARTS, *_TABLES):
        raise InputError(f"--output {path}: expected the suffix {', '.join((*_CHARTS, *_TABLES))}.")
    if ending in _CHARTS and not drawn:
        raise InputError(f"--output {path} is a chart; give its axes with --x or --map.")
    return drawn


def _axes(options: TableOptions, rows: pl.LazyFrame) -> dict[str, str]:
    """The column on each axis, as keywords of the figures."""
    axes = {"x": options.x, "color": options.color, "facet": options.facet}
    if options.heatmap is not None:
        x, y = names(options.heatmap)
        axes = {"x": x, "y": y, "facet": options.facet}
    columns = rows.collect_schema().names()
    named = {key: tables.axis_name(name, columns) for key, name in axes.items() if name}
    if len(set(named.values())) < len(named):
        listed = ", ".join(named.values())
        raise InputError(f"{listed}: a sweep axis can be used only once; name different ones.")
    return named


def _only_metric(rows: pl.LazyFrame) -> str:
    metrics = rows.select("metric").unique(maintain_order=True).collect()["metric"].to_list()
    if len(metrics) == 1:
        return str(metrics[0])
    available = list_words(metrics, 12) or "none yet"
    raise InputError(f"choose a metric with --y; available: {available}.")


def _of_metric(rows: pl.LazyFrame, metric: str) -> pl.DataFrame:
    chosen, without = running.with_metric(rows, metric)
    if without:
        runs = plural(without + chosen["run"].n_unique(), "run")
        print_error(f"{without:,} of {runs} have no {metric} and are excluded.")
    return chosen


def _print_whole(rows: pl.LazyFrame, options: TableOptions, files: dict[str, str]) -> None:
    """Print the contents of the full table, and write it to a file if asked."""
    results = _of_metric(rows, options.y) if options.y else rows.collect()
    axes = results.columns[1 : results.columns.index("metric")]
    listed = {name: results[name].unique(maintain_order=True).to_list() for name in results.columns}
    values, metrics = {name: listed[name] for name in axes}, listed["metric"]
    runs = len(listed["run"])
    if options.as_json:
        columns = {name: [*map(_plain, settings)] for name, settings in values.items()}
        counts = {"runs": runs, "rows": results.height, "columns": columns, "metrics": metrics}
        print_json({**counts, "files": files})
    else:
        settings = {
            name: list_words([*map(setting_text, column)], 8) for name, column in values.items()
        }
        counted = {"rows": f"{results.height:,} of {plural(runs, 'run')}", **settings}
        print_list({**counted, "metrics": list_words(metrics, 12), **files})
    if options.output is not None:
        _write(results, options.output)


def _write(rows: pl.DataFrame, path: Path) -> None:
    if path.suffix.lower() == ".csv":
        tables.write_csv(rows, path)
    else:
        tables.write(rows, path, {})


def _print_medians(
    medians: pl.DataFrame, metric: str, facet: str | None, below: float | None
) -> None:
    """Print medians: rows along x, columns along the other axis, one table per facet."""
    title = metric_words(metric).title
    title += f", first layer below {below:g}" if below is not None else ""
    axes = medians.columns[: medians.columns.index("metric")]
    down, *others = [axis for axis in axes if axis != facet]
    exponent = metric_words(medians["metric"][0]).scale == "exponent"
    console = Console(highlight=False, markup=False)
    for part in medians.partition_by(facet, maintain_order=True) if facet else [medians]:
        cells: dict[Any, dict[Any, str]] = {}
        for row in part.to_dicts():
            value = row["median"]
            number = "none" if value is None or math.isnan(value) else short(value)
            written = power_of_ten(value, digits=3) if exponent else number
            cells.setdefault(row[down], {})[row[others[0]] if others else "median"] = written
        across = _ordered(part, others[0]) if others else ["median"]
        shown = Table(box=None, pad_edge=False)
        shown.add_column(without_controls(" \\ ".join([down, *others])))
        for value in across:
            heading = without_controls(setting_text(value))
            shown.add_column(heading, justify="right", overflow="fold")
        for value in _ordered(part, down):
            line = [cells[value].get(other, "") for other in across]
            shown.add_row(without_controls(setting_text(value)), *line)
        where = f", {facet} = {setting_text(part[facet][0])}" if facet else ""
        console.print(without_controls(title + where), style="bold", soft_wrap=True)
        console.print(shown)


def _ordered(part: pl.DataFrame, axis: str) -> list[Any]:
    values = part[axis].unique(maintain_order=True)
    return (values.sort(nulls_last=True) if values.dtype.is_numeric() else values).to_list()


def _plain(value: Any) -> Any:
    """A value for JSON; NaN and infinities become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _folder(grid: Path, options: SweepOptions) -> Path:
    quick = "-quick" if options.quick else ""
    return options.output or running.OUTPUT_FOLDER / f"{grid.stem}{quick}"


def _print_failures(failures: Sequence[running.RunRecord]) -> None:
    for failure in failures[:_FIRST]:
        print_error(f"{failure} failed: {cut(failure.error, _LONGEST)}")
    if len(failures) > _FIRST:
        more = f"{len(failures) - _FIRST:,} more failed"
        print_error(f"{more}; 'rankscope sweep status DIR --json' shows why.")


@contextmanager
def _progress(total: int, done: list[int]) -> Iterator[running.OnOutcome]:
    """A progress bar on standard error, or a line now and then without a terminal.

    ``done[0]`` is set to the number of runs done.
    """
    console, last = Console(stderr=True), time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    hidden = not console.is_terminal
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=hidden
    ) as bar:
        task = bar.add_task("starting", total=total)

        def show(_outcome: running.RunOutcome, progress: running.Progress) -> None:
            nonlocal last
            done[0] = progress.done
            failed = f", {progress.failed:,} failed" if progress.failed else ""
            bar.update(task, description=f"runs{failed}", completed=progress.done + progress.failed)
            if not console.is_terminal and time.monotonic() - last >= _EVERY and progress.left:
                last = time.monotonic()
                line = f"{progress.done:,} of {total:,} runs done{failed}"
                print(line, file=sys.stderr, flush=True)

        yield show
