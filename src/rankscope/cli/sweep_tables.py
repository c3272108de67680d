"""The results of a sweep: printed, as files, as charts."""

import io
import math
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

from rankscope import run as sweeping
from rankscope import tables
from rankscope.cli.options import names
from rankscope.cli.printing import print_error, print_json, print_list, without_controls
from rankscope.cli.sweep_options import TableOptions
from rankscope.cli.sweep_selection import (
    TABLES,
    axes_of,
    check,
    keep,
    only_metric,
    text,
    texts,
)
from rankscope.display import list_words
from rankscope.errors import InputError
from rankscope.experiments.catalogue import ENTRIES
from rankscope.metric_catalogue import knowing
from rankscope.metric_catalogue import metric as metric_words
from rankscope.numerals import plural, power_of_ten, short
from rankscope.process.files import whole_file
from rankscope.show import figures


def table(folder: Path, options: TableOptions) -> None:
    """Print, write or draw the results of a sweep."""
    with knowing(metric for entry in ENTRIES for metric in entry.metrics):
        _table(folder, options)


def _table(folder: Path, options: TableOptions) -> None:
    check(options)
    rows = keep(sweeping.table(folder), options.only or [])
    if options.x is None and options.heatmap is None:
        _whole(rows, options)
        return
    metric = options.y or only_metric(rows)
    chosen: dict[str, Any] = {
        "layer": options.layer,
        "below": options.below,
        "pool": names(options.pool),
    }
    axes: dict[str, Any] = dict(axes_of(options, rows.collect_schema().names()))
    rows = _of_metric(rows, metric).lazy()  # read once for numbers and chart
    medians = tables.pooled(rows, metric=metric, by=[*axes.values()], **chosen)
    files = _files(options)
    if options.as_json:
        told = [{name: _plain(value) for name, value in row.items()} for row in medians.to_dicts()]
        print_json({"metric": metric, "rows": told, "files": files})
    else:
        _print_medians(medians, metric, options)
    if "table" in files:
        _write_table(medians, Path(files["table"]))
    elif "chart" in files:
        about = f"Medians over samples and {', '.join(chosen['pool']) or 'nothing else'}"
        _draw(rows, f"{about}; {folder.name}", options, metric=metric, **axes, **chosen)
    if files and not options.as_json:
        print_list(files)


def _whole(rows: pl.LazyFrame, options: TableOptions) -> None:
    """The table as it is: what is in it, and all of it as a file."""
    names_ = rows.collect_schema().names()
    whole = _of_metric(rows, options.y) if options.y else rows.collect()
    axes = names_[1 : names_.index("metric")]
    varied = {name: whole[name].unique(maintain_order=True).to_list() for name in axes}
    files = _files(options)
    runs, metrics = whole["run"].n_unique(), whole["metric"].unique(maintain_order=True).to_list()
    if options.as_json:
        told = {name: [_plain(value) for value in values] for name, values in varied.items()}
        found = {"runs": runs, "rows": whole.height, "columns": told, "metrics": metrics}
        print_json({**found, "files": files})
    else:
        lines = {"rows": f"{whole.height:,} of {plural(runs, 'run')}"}
        lines |= {name: list_words(texts(values), 8) for name, values in varied.items()}
        lines["metrics"] = list_words(metrics, 12)
        print_list({name: without_controls(words) for name, words in {**lines, **files}.items()})
    if options.output is not None:
        _write_table(whole, options.output)


def _of_metric(rows: pl.LazyFrame, metric: str) -> pl.DataFrame:
    """The rows of one metric; runs that have none of it are told, since no chart shows them."""
    found = rows.filter(pl.col("metric") == metric).collect()
    if not found.height:
        known = rows.select(pl.col("metric").unique(maintain_order=True)).collect()["metric"]
        raise InputError(f"the sweep has no {metric}; it has {list_words(known.to_list(), 12)}.")
    runs = rows.select(pl.col("run").n_unique()).collect().item()
    if without := runs - found["run"].n_unique():
        print_error(f"{without:,} of {plural(runs, 'run')} have no {metric} and are left out.")
    return found


def _files(options: TableOptions) -> dict[str, str]:
    """The file that was asked for, by what it holds."""
    if options.output is None:
        return {}
    kind = "table" if options.output.suffix.lower() in TABLES else "chart"
    return {kind: str(options.output)}


def _draw(rows: pl.LazyFrame, about: str, options: TableOptions, **chosen: Any) -> None:
    if options.heatmap is None:
        chart = figures.by_axis(rows, **chosen)
    else:
        chart = figures.axis_map(rows, **chosen, boundary=options.boundary)
    title = str(chart.description).partition(". ")[0]
    path = options.output or Path()
    path.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figures.labelled(chart.to_dict(), title, about), path)


def _write_table(rows: pl.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".csv":
        tables.write_csv(rows, path)
        return
    content = io.BytesIO()
    rows.write_parquet(content)
    with whole_file(path) as unfinished:
        unfinished.write_bytes(content.getvalue())


def _print_medians(medians: pl.DataFrame, metric: str, options: TableOptions) -> None:
    """Medians: x downwards, the other axis to the right, a table for each facet."""
    entry = metric_words(metric)
    below = f", first layer below {options.below:g}" if options.below is not None else ""
    columns = medians.columns
    facet = tables.axis_name(options.facet, columns) if options.facet else None
    parts = medians.partition_by(facet, maintain_order=True) if facet else [medians]
    console = Console(highlight=False, markup=False)
    for part in parts:
        where = f", {facet} = {text(part[facet][0])}" if facet else ""
        shown = _shown(part, [each for each in columns[: columns.index("metric")] if each != facet])
        console.print(
            without_controls(f"{entry.title}{below}{where}"), style="bold", soft_wrap=True
        )
        console.print(shown)


def _shown(part: pl.DataFrame, axes: list[str]) -> Table:
    """One or two axes as a table of medians."""
    down, *other = axes
    exponent = metric_words(part["metric"][0]).scale == "exponent"
    cells: dict[Any, dict[Any, str]] = {}
    for row in part.to_dicts():
        value = row["median"]
        written = power_of_ten(value, digits=3) if exponent else _number_text(value)
        cells.setdefault(row[down], {})[row[other[0]] if other else "median"] = written
    across = _ordered(part, other[0]) if other else ["median"]
    shown = Table(box=None, pad_edge=False)
    shown.add_column(without_controls(" \\ ".join(axes)))
    for value in across:
        shown.add_column(without_controls(text(value)), justify="right", overflow="fold")
    for value in _ordered(part, down):
        line = [cells[value].get(each, "") for each in across]
        shown.add_row(without_controls(text(value)), *line)
    return shown


def _ordered(part: pl.DataFrame, axis: str) -> list[Any]:
    found = part[axis].unique(maintain_order=True)
    return (found.sort(nulls_last=True) if found.dtype.is_numeric() else found).to_list()


def _number_text(value: float | None) -> str:
    return "none" if value is None or math.isnan(value) else short(value)


def _plain(value: Any) -> Any:
    """A value as JSON has it: what is not finite is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
