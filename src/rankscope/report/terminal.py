"""The same findings in a terminal: a short table and a sentence for each variant."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankscope.figures import MetricWords, metric_words, power_text

_SIDE_BY_SIDE = 4
_MOST_ROWS = 16
_STYLE = {"collapse": "bold red", "slow": "yellow", "holds": "green"}


class Told(Protocol):
    """What a finding must have to be shown."""

    @property
    def variant(self) -> str: ...
    @property
    def fate(self) -> str: ...
    @property
    def sentence(self) -> str: ...


def show_findings(summary: pl.DataFrame, findings: Sequence[Told], console: Console) -> None:
    """Relative residual at a few layers for each variant, then what it means."""
    layers = few_layers(summary)
    table = Table(title="relative residual ‖res(X)‖/‖X‖ by layer", title_justify="left", box=None)
    table.add_column("", no_wrap=True)
    for layer in layers:
        table.add_column(str(layer), justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for finding in findings:
        values = _means(summary, finding.variant)
        style = _STYLE.get(finding.fate, "")
        cells = [short(values[layer]) for layer in layers]
        table.add_row(finding.variant, *cells, f"[{style}]{finding.fate}[/]", style=None)
    console.print(table)
    console.print()
    for finding in findings:
        style = _STYLE.get(finding.fate, "")
        console.print(f"[{style}]{finding.variant}[/]  {finding.sentence}", highlight=False)


def show_layers(summary: pl.DataFrame, console: Console) -> None:
    """Every metric's mean by layer, a few metrics at a time so that no figure is cut short."""
    metrics = summary["metric"].unique(maintain_order=True).to_list()
    means = {(row["layer"], row["metric"]): row["mean"] for row in summary.iter_rows(named=True)}
    layers = summary["layer"].unique().sort().to_list()
    for start in range(0, len(metrics), _SIDE_BY_SIDE):
        shown = metrics[start : start + _SIDE_BY_SIDE]
        title = "mean over samples" if start == 0 else None
        table = Table(title=title, title_justify="left", box=None)
        table.add_column("layer", justify="right", no_wrap=True)
        for metric in shown:
            table.add_column(metric, justify="right", no_wrap=True)
        for layer in layers:
            cells = [
                short(means[layer, metric]) if (layer, metric) in means else "" for metric in shown
            ]
            table.add_row(str(layer), *cells)
        console.print(table)


def show_lengths(summary: pl.DataFrame, console: Console) -> None:
    """Shares at the last layer by path length; the biases last."""
    last = summary.filter(pl.col("layer") == pl.col("layer").max())
    metrics = last["metric"].unique(maintain_order=True).to_list()
    table = Table(title="shares at the last layer", title_justify="left", box=None)
    table.add_column("length", justify="right")
    for metric in metrics:
        table.add_column(metric, justify="right")
    lengths = last["length"].unique().sort(nulls_last=True).to_list()
    means = {(row["length"], row["metric"]): row["mean"] for row in last.iter_rows(named=True)}
    for length in lengths:
        cells = [short(means[length, metric]) for metric in metrics]
        table.add_row("bias" if length is None else str(length), *cells)
    console.print(table)


def show_study(summary: pl.DataFrame, metrics: Sequence[str], console: Console) -> None:
    """Medians by layer or setting, a table for each metric and model, a column for each curve."""
    for metric in metrics:
        for grid in grids(summary, metric, apart=("model", "parameter"), most=_MOST_ROWS):
            heading = f"{grid.heading}, median over the samples"
            console.print(heading, style="italic", markup=False, highlight=False)
            for start in range(0, len(grid.curves), _SIDE_BY_SIDE):
                console.print(_drawn(grid, grid.curves[start : start + _SIDE_BY_SIDE]))
            console.print()


@dataclass(frozen=True)
class Grid:
    """Medians of one metric: where they were taken, of which curves, and how each is told."""

    heading: str
    place: str
    places: Sequence[Any]
    curves: Sequence[str]
    cells: Mapping[tuple[Any, str], str]


def grids(summary: pl.DataFrame, metric: str, *, apart: Sequence[str], most: int) -> list[Grid]:
    """A metric's medians by layer, or by setting where that is what varies.

    One grid for each label in the columns ``apart``; other labels name the curves. At most
    ``most`` places are kept.
    """
    rows = summary.filter(pl.col("metric") == metric)
    divided = [name for name in apart if _varied(rows, name) > 0]
    parts = rows.partition_by(divided, maintain_order=True) if divided else [rows]
    several = [name for name in divided if name != "parameter" and _varied(rows, name) > 1]
    return [_grid(part, metric_words(metric), divided, several, most) for part in parts]


def _grid(
    rows: pl.DataFrame,
    words: MetricWords,
    divided: Sequence[str],
    several: Sequence[str],
    most: int,
) -> Grid:
    by_setting = _varied(rows, "setting") > 0 and _varied(rows, "layer") <= 1
    column = "setting" if by_setting else "layer"
    known = [name for name in ("model", "variant", "setting") if name in rows.columns]
    naming = [name for name in known if name not in (column, *divided)]
    first = rows.row(0, named=True)
    varied = (first.get("parameter") or "setting").replace("_", " ")
    cells = {}
    for row in rows.iter_rows(named=True):
        labels = [
            f"{varied} {row[name]:g}" if name == "setting" else str(row[name])
            for name in naming
            if row[name] is not None
        ]
        cells[row.get(column), " · ".join(labels) or "all"] = _told(row["median"], words)
    places = sorted({place for place, _ in cells if place is not None})
    symbol = "" if words.symbol in words.title.lower() else f" {words.symbol}"
    # The words of the metric, then which of the models it is, if there are several.
    heading = ", ".join([f"{words.title}{symbol}", *(first[name] for name in several)])
    return Grid(
        heading,
        varied if by_setting else column,
        thinned(places, most) or [None],
        list(dict.fromkeys(curve for _, curve in cells)),
        cells,
    )


def _drawn(grid: Grid, curves: Sequence[str]) -> Table:
    table = Table(box=None)
    table.add_column(grid.place, justify="right", no_wrap=True)
    for curve in curves:
        shown = [grid.cells.get((place, curve), "") for place in grid.places]
        # Names may be broken into lines, numbers may not.
        table.add_column(Text(curve), justify="right", min_width=max(map(len, shown)))
    for place in grid.places:
        cells = [grid.cells.get((place, curve), "") for curve in curves]
        table.add_row("" if place is None else _label(place), *cells)
    return table


def _varied(rows: pl.DataFrame, column: str) -> int:
    return rows[column].drop_nulls().n_unique() if column in rows.columns else 0


def _label(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _told(value: float | None, words: MetricWords) -> str:
    if value is None or math.isnan(value):
        return "–"
    return power_text(value) if words.scale == "exponent" else short(value)


def short(value: float) -> str:
    """Two or three significant digits, in powers of ten where that is easier to read."""
    if value == 0 or 5e-3 <= abs(value) < 1e4:
        return f"{value:.3g}"
    return f"{value:.1e}"


def few_layers(summary: pl.DataFrame, most: int = 6) -> list[int]:
    """The first layers, where most happens, then evenly spaced ones up to the last."""
    return thinned(summary["layer"].unique().sort().to_list(), most)


def thinned(places: Sequence[Any], most: int) -> list[Any]:
    """The first ones and evenly spaced ones up to the last, if there are more than ``most``."""
    if len(places) <= most:
        return list(places)
    early, late = list(places[: most // 2]), places[most // 2 :]
    steps = most - len(early)
    return early + [late[round((k + 1) * len(late) / steps) - 1] for k in range(steps)]


def _means(summary: pl.DataFrame, variant: str) -> dict[int, float]:
    rows = summary.filter(
        (pl.col("variant") == variant) & (pl.col("metric") == "relative_residual")
    )
    return dict(zip(rows["layer"].to_list(), rows["mean"].to_list(), strict=True))
