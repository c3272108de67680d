"""Which results of a sweep are looked at, and along which axes: from options."""

from typing import Any, Final

import polars as pl

from rankscope.cli.options import names
from rankscope.cli.sweep_options import TableOptions
from rankscope.display import list_words
from rankscope.errors import InputError
from rankscope.numerals import short
from rankscope.tables import axis_name

CHARTS: Final = (".html", ".svg", ".png")
TABLES: Final = (".parquet", ".csv")
_OF_CHARTS: Final = ("color", "facet", "layer", "below", "boundary")


def check(options: TableOptions) -> None:
    """Refuse what does not go together, before anything is read."""
    drawn = options.x is not None or options.heatmap is not None
    if options.x is not None and options.heatmap is not None:
        raise InputError("--x draws curves and --map a map; give one of them.")
    if options.heatmap is not None and len(names(options.heatmap)) != 2:
        raise InputError(f"--map {options.heatmap} names no two axes; write --map layers,skip.")
    for name in _OF_CHARTS:
        if name in options.given and not drawn:
            raise InputError(f"--{name} is for a chart; say along what with --x or --map.")
    if options.heatmap is not None and options.color is not None:
        raise InputError("a map has no --color, its shades are the metric; use --facet.")
    if options.boundary is not None and options.heatmap is None:
        raise InputError("--boundary is a line on a map; give --map as well.")
    ending = options.output.suffix.lower() if options.output else ""
    if options.output and ending not in (*CHARTS, *TABLES):
        known = ", ".join((*CHARTS, *TABLES))
        raise InputError(f"--output {options.output} ends in none of {known}.")
    if ending in CHARTS and not drawn:
        raise InputError(f"--output {options.output} is a chart; say of what with --x or --map.")


def axes_of(options: TableOptions, columns: list[str]) -> dict[str, str]:
    """Which column is laid out along what: keywords of the figures."""
    if options.heatmap is not None:
        x, y = names(options.heatmap)
        axes = {"x": x, "y": y, "facet": options.facet}
    else:
        axes = {"x": options.x, "color": options.color, "facet": options.facet}
    found = {key: axis_name(name, columns) for key, name in axes.items() if name}
    if len(set(found.values())) < len(found):
        raise InputError(
            f"{', '.join(found.values())}: an axis is drawn in one place; name others."
        )
    return found


def keep(rows: pl.LazyFrame, only: list[str]) -> pl.LazyFrame:
    """The rows with the values that were asked for."""
    schema = rows.collect_schema()
    for each in only:
        axis, equals, written = each.partition("=")
        name = axis_name(axis.strip(), schema.names())
        if not equals or name not in schema:
            raise InputError(f"--only {each}: write AXIS=VALUE; there is {', '.join(schema)}.")
        wanted = names(written)
        column = pl.col(name)
        if schema[name].is_numeric():
            numbers = [_number(each, value) for value in wanted]
            kept = rows.filter(column.cast(pl.Float64).is_in(numbers))
        else:
            words = column.cast(pl.String).fill_null("none")
            kept = rows.filter(words.str.to_lowercase().is_in([value.lower() for value in wanted]))
        if not kept.limit(1).collect().height:
            found = rows.select(column.unique(maintain_order=True)).collect()[name].to_list()
            raise InputError(f"--only {each} keeps nothing; {name} is {list_words(texts(found))}.")
        rows = kept
    return rows


def _number(option: str, written: str) -> float:
    try:
        return float(written)
    except ValueError:
        raise InputError(f"--only {option}: got {written!r}, expected a number.") from None


def only_metric(rows: pl.LazyFrame) -> str:
    """The metric of a sweep that has one."""
    found = rows.select(pl.col("metric").unique(maintain_order=True)).collect()["metric"].to_list()
    if len(found) != 1:
        known = (
            f"the sweep has {list_words(found, 12)}" if found else "the sweep has no results yet"
        )
        raise InputError(f"--y names the metric; {known}.")
    return str(found[0])


def text(value: Any) -> str:
    """A setting as it is printed."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return short(value) if isinstance(value, int | float) else str(value)


def texts(values: list[Any]) -> list[str]:
    """Settings as they are printed."""
    return [text(value) for value in values]
