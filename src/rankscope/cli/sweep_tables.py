"""The results of a sweep: printed, as files, as charts."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import polars as pl
from rich.console import Console
from rich.table import Table

from rankscope import figures, sweeping, tables
from rankscope.cli.inputs import names
from rankscope.cli.printing import print_json, print_list, without_controls
from rankscope.cli.sweep_options import TableOptions
from rankscope.display import list_words
from rankscope.errors import InputError
from rankscope.files import whole_file
from rankscope.metric_catalogue import metric as metric_words
from rankscope.numerals import plural, power_of_ten, sentence_case, short

_CHARTS: Final = (".html", ".svg", ".png")
_TABLES: Final = (".parquet", ".csv")
_ALONG: Final = ("color", "facet", "layer", "below", "boundary")
_MOST_COLUMNS: Final = 12


def table(folder: Path, options: TableOptions) -> None:
    """Print, write or draw the results of a sweep."""
    _check(options)
    rows = _keep(sweeping.table(folder), options.only or [])
    if options.x is None and options.heatmap is None:
        _whole(rows, options)
        return
    metric = options.y or _only_metric(rows)
    chosen = {"layer": options.layer, "below": options.below, "pool": names(options.pool)}
    axes = _axes(options)
    columns = rows.collect_schema().names()
    by = [_column(each, columns) for each in axes.values()]
    rows = rows.filter(pl.col("metric") == metric).collect().lazy()  # once for numbers and chart
    medians = figures.axis_medians(rows, metric=metric, by=by, **chosen)
    files = _write(medians, rows, metric, axes, chosen, folder, options)
    if options.as_json:
        told = [{name: _plain(value) for name, value in row.items()} for row in medians.to_dicts()]
        print_json({"metric": metric, "rows": told, "files": files})
        return
    _print_medians(medians, metric, by, options)
    _print_files(files)


def _check(options: TableOptions) -> None:
    """Refuse what does not go together, before anything is read."""
    drawn = options.x is not None or options.heatmap is not None
    if options.x is not None and options.heatmap is not None:
        raise InputError("--x draws curves and --map a map; give one of them.")
    if options.heatmap is not None and len(names(options.heatmap)) != 2:
        raise InputError(f"--map {options.heatmap} names no two axes; write --map layers,skip.")
    for name in _ALONG:
        if name in options.given and not drawn:
            raise InputError(f"--{name} is for a chart; say along what with --x or --map.")
    if options.heatmap is not None and options.color is not None:
        raise InputError("a map has no --color, its shades are the metric; use --facet.")
    if options.boundary is not None and options.heatmap is None:
        raise InputError("--boundary is a line on a map; give --map as well.")
    ending = options.output.suffix.lower() if options.output else ""
    if options.output and ending not in (*_CHARTS, *_TABLES):
        known = ", ".join((*_CHARTS, *_TABLES))
        raise InputError(f"--output {options.output} ends in none of {known}.")
    if ending in _CHARTS and not drawn:
        raise InputError(f"--output {options.output} is a chart; say of what with --x or --map.")


def _axes(options: TableOptions) -> dict[str, str]:
    """What is laid out along what: keywords of the figures."""
    if options.heatmap is not None:
        x, y = names(options.heatmap)
        axes = {"x": x, "y": y, "facet": options.facet}
    else:
        axes = {"x": options.x, "color": options.color, "facet": options.facet}
    return {key: name for key, name in axes.items() if name}


def _column(name: str, columns: list[str]) -> str:
    return "layers" if name == "depth" and "depth" not in columns else name


def _keep(rows: pl.LazyFrame, only: list[str]) -> pl.LazyFrame:
    """The rows with the values that were asked for."""
    schema = rows.collect_schema()
    for each in only:
        axis, equals, written = each.partition("=")
        name = _column(axis.strip(), schema.names())
        if not equals or name not in schema:
            raise InputError(f"--only {each}: write AXIS=VALUE; there is {', '.join(schema)}.")
        wanted = names(written)
        column = pl.col(name)
        if schema[name].is_numeric():
            kept = rows.filter(column.is_in([_number(each, value) for value in wanted]))
        else:
            text = column.cast(pl.String).fill_null("none")
            kept = rows.filter(text.str.to_lowercase().is_in([value.lower() for value in wanted]))
        if not kept.limit(1).collect().height:
            found = rows.select(column.unique(maintain_order=True)).collect()[name].to_list()
            raise InputError(f"--only {each} keeps nothing; {name} is {list_words(_texts(found))}.")
        rows = kept
    return rows


def _number(option: str, written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise InputError(f"--only {option}: got {written!r}, expected a number.") from None


def _only_metric(rows: pl.LazyFrame) -> str:
    found = rows.select(pl.col("metric").unique(maintain_order=True)).collect()["metric"].to_list()
    if len(found) != 1:
        known = f"the sweep has {list_words(found, 12)}" if found else "the sweep has no results yet"
        raise InputError(f"--y names the metric; {known}.")
    return str(found[0])


def _whole(rows: pl.LazyFrame, options: TableOptions) -> None:
    """The table as it is: what is in it, and all of it as a file."""
    names_ = rows.collect_schema().names()
    if options.y:
        rows = rows.filter(pl.col("metric") == options.y)
    whole = rows.collect()
    axes = names_[1 : names_.index("metric")]
    varied = {name: whole[name].unique(maintain_order=True).to_list() for name in axes}
    files: dict[str, str] = {}
    if options.output is not None:
        _write_table(whole, options.output)
        files["table"] = str(options.output)
    runs, metrics = whole["run"].n_unique(), whole["metric"].unique(maintain_order=True).to_list()
    if options.as_json:
        told = {name: [_plain(value) for value in values] for name, values in varied.items()}
        found = {"runs": runs, "rows": whole.height, "columns": told, "metrics": metrics}
        print_json({**found, "files": files})
        return
    lines = {"rows": f"{whole.height:,} of {plural(runs, 'run')}"}
    lines |= {name: list_words(_texts(values), 8) for name, values in varied.items()}
    lines["metrics"] = list_words(metrics, 12)
    print_list({name: without_controls(words) for name, words in lines.items()})
    _print_files(files)


def _write(
    medians: pl.DataFrame,
    rows: pl.LazyFrame,
    metric: str,
    axes: Mapping[str, str],
    chosen: Mapping[str, Any],
    folder: Path,
    options: TableOptions,
) -> dict[str, str]:
    """Write what was asked for, a chart or the medians; which file that is."""
    if options.output is None:
        return {}
    if options.output.suffix.lower() in _TABLES:
        _write_table(medians, options.output)
        return {"table": str(options.output)}
    if options.heatmap is None:
        chart = figures.by_axis(rows, metric=metric, **axes, **chosen)
    else:
        chart = figures.axis_map(rows, metric=metric, **axes, **chosen, boundary=options.boundary)
    title = str(chart.description).partition(". ")[0]
    about = f"Medians over samples and {', '.join(chosen['pool']) or 'nothing else'}; {folder.name}"
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figures.save(figures.labelled(chart.to_dict(), title, about), options.output)
    return {"chart": str(options.output)}


def _write_table(rows: pl.DataFrame, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".csv":
        tables.write_csv(rows, path)
        return
    with whole_file(path) as unfinished:
        rows.write_parquet(unfinished)


def _print_medians(
    medians: pl.DataFrame, metric: str, by: list[str], options: TableOptions
) -> None:
    """Medians, the first axis downwards and the others to the right."""
    entry = metric_words(metric)
    exponent = entry.scale == "exponent" and options.below is None
    down, others = by[0], by[1:]
    cells: dict[Any, dict[str, str]] = {}
    for row in medians.to_dicts():
        across = ", ".join(f"{name} = {_text(row[name])}" for name in others) or "median"
        value = row["median"]
        written = power_of_ten(value, digits=3) if exponent else _number_text(value)
        cells.setdefault(row[down], {})[across] = written
    columns = list(dict.fromkeys(name for row in cells.values() for name in row))
    below = f": first layer below {options.below:g}" if options.below is not None else ""
    shown = Table(title=f"{entry.title}{below}", title_justify="left", box=None, pad_edge=False)
    shown.add_column(down.replace("_", " "))
    for name in columns[:_MOST_COLUMNS]:
        shown.add_column(without_controls(name), justify="right")
    order = sorted(cells) if medians[down].dtype.is_numeric() else list(cells)
    for value in order:
        written = [cells[value].get(name, "") for name in columns[:_MOST_COLUMNS]]
        shown.add_row(without_controls(_text(value)), *written)
    console = Console(highlight=False, markup=False)
    console.print(shown)
    if len(columns) > _MOST_COLUMNS:
        console.print(f"{len(columns) - _MOST_COLUMNS} more columns; --output medians.csv has all.")


def _print_files(files: Mapping[str, str]) -> None:
    if files:
        print_list(dict(files))


def _number_text(value: float | None) -> str:
    return "none" if value is None or math.isnan(value) else short(value)


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return short(value) if isinstance(value, int | float) else str(value)


def _texts(values: list[Any]) -> list[str]:
    return [_text(value) for value in values]


def _plain(value: Any) -> Any:
    """A value as JSON has it: what is not finite is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
