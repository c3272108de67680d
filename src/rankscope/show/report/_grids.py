"""Small tables of a result's metrics, for pages and terminals."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal

import polars as pl

from rankscope.metric_catalogue import Metric, knowing
from rankscope.metric_catalogue import metric as entry_of
from rankscope.numerals import short
from rankscope.results import Result

# Statistic over samples; empty if there is only one sample.
Statistic = Literal["median", ""]

BIAS: Final = "bias"
DOUBT: Final = "?"  # mark of a number that may be inaccurate
IN_DOUBT: Final = f"{DOUBT} inaccurate: the differences between tokens are lost to rounding."
METRIC: Final = "metric"
_LABELS: Final = ("model", "variant", "setting")


@dataclass(frozen=True)
class Cell:
    """One number, its metric, and whether it is in doubt."""

    value: float | None
    metric: str
    doubt: bool = False


@dataclass(frozen=True)
class MetricGrid:
    """One statistic of several curves at positions along an axis: layers, path lengths or settings.

    If ``metric`` is empty, the curves are metrics; if ``axis`` is ``METRIC``, the positions are.
    With several models, ``about`` names the model. A missing cell was not measured.
    """

    metric: str
    about: str
    statistic: Statistic
    axis: str
    positions: Sequence[Any]
    curves: Sequence[str]
    cells: Mapping[tuple[Any, str], Cell]
    words: Mapping[str, Metric]  # titles and scales of its metrics
    last_layer: bool = False  # whether it shows only the last layer

    @property
    def by_metric(self) -> bool:
        """Whether its curves are metrics."""
        return not self.metric

    @property
    def metrics(self) -> list[str]:
        """The metrics of its numbers."""
        return list(dict.fromkeys(cell.metric for cell in self.cells.values()))

    @property
    def has_doubts(self) -> bool:
        """Whether any of its numbers is in doubt."""
        return any(cell and cell.doubt for curve in self.curves for cell in self.column(curve))

    def column(self, curve: str) -> list[Cell | None]:
        """The cells of a curve at each position."""
        return [self.cells.get((position, curve)) for position in self.positions]

    def few(self, most: int, curves: Sequence[str] | None = None) -> "MetricGrid":
        """A grid with fewer curves, and at most ``most`` positions, in order.

        Places that fewer than half of the curves have are excluded, except the last.
        """
        shown = self.curves if curves is None else curves
        having = {at: sum((at, curve) in self.cells for curve in shown) for at in self.positions}
        known = [at for at, count in having.items() if count and at is not None]
        if self.axis == METRIC:  # metrics are not thinned out
            return replace(self, positions=known, curves=shown)
        shared = [at for at in sorted(known) if 2 * having[at] >= len(shown)] or sorted(known)
        last = [at for at in [max(known)] if at not in shared]
        positions = [*thin(shared, most - len(last)), *last]
        return replace(
            self, positions=[*positions, *[None] * (having.get(None, 0) > 0)], curves=shown
        )

    def name(self, curve: str) -> str:
        """The title of a curve; empty if it is the only one and has no name."""
        return self.words[curve].title if self.by_metric else curve

    def label(self, position: Any) -> str:
        """The title of a position; None is the path through biases."""
        if position is None:
            return BIAS
        if self.axis == METRIC:
            return self.words[position].title
        return short(position) if isinstance(position, float) else str(position)


def grids(result: Result, *, apart: Sequence[str] = ()) -> list[MetricGrid]:
    """Tables of the metrics that a result shows; a result with parts shows only those it names.

    Values of the columns ``apart`` get separate tables if other columns name the curves. Metrics
    with a single curve share a table as columns, and those with one number per curve as rows.
    """
    every = [] if result.parts else result.summary["metric"].unique(maintain_order=True).to_list()
    metrics = result.shown or every
    with knowing(result.metrics):
        tables = [grid for metric in metrics for grid in _of_metric(result, metric, apart)]
    return [_join(list(alike)) for _, alike in groupby(tables, _joinable)]


def statistic(result: Result, metric: str) -> Statistic:
    """The statistic shown for a metric: the median, or none if there is one sample."""
    counts = result.summary.filter(pl.col("metric") == metric)["count"]
    return "" if counts.max() == 1 else "median"


def thin(positions: Sequence[Any], most: int) -> list[Any]:
    """At most ``most`` positions: the first ones, then evenly spaced ones up to the last."""
    if len(positions) <= most:
        return list(positions)
    early, late = list(positions[: most // 2]), positions[most // 2 :]
    steps = most - len(early)
    return early + [late[round((k + 1) * len(late) / steps) - 1] for k in range(steps)]


def _of_metric(result: Result, metric: str, apart: Sequence[str]) -> Iterator[MetricGrid]:
    """The tables of a metric: one per varied parameter, and per value of ``apart``."""
    rows = result.summary.filter(pl.col("metric") == metric)
    if not any(_count_values(rows, name) > 1 for name in _LABELS if name not in apart):
        apart = ()
    by = [name for name in ("parameter", *apart) if _count_values(rows, name) > 0]
    several = [name for name in apart if _count_values(rows, name) > 1]
    for part in rows.partition_by(by, maintain_order=True) if by else [rows]:
        about = ", ".join(str(part[name][0]) for name in several)
        yield _grid(part, metric, about, statistic(result, metric), apart)


def _grid(
    rows: pl.DataFrame, metric: str, about: str, shown: Statistic, apart: Sequence[str]
) -> MetricGrid:
    # The column along which the metric varies, or METRIC if it is a single number.
    settings, lengths, layers = (
        _count_values(rows, name) for name in ("setting", "length", "layer")
    )
    axis = "length" if lengths else "layer" if layers else METRIC
    axis = "setting" if settings and layers <= 1 else axis
    last_layer = axis == "length" and layers > 1
    if last_layer:
        rows = rows.filter(pl.col("layer") == pl.col("layer").max())
    varied = (rows.row(0, named=True).get("parameter") or "setting").replace("_", " ")
    naming = [name for name in _LABELS if name in rows.columns and name not in (axis, *apart)]
    cells = {}
    for row in rows.iter_rows(named=True):
        labels = [
            f"{varied} {row[name]:g}" if name == "setting" else str(row[name])
            for name in naming
            if row[name] is not None
        ]
        at = metric if axis == METRIC else row[axis]
        cells[at, " · ".join(labels)] = Cell(row["median"], metric, bool(row.get("doubt")))
    # A curve without positions, where others have them, is another measurement.
    placed = {curve for at, curve in cells if at is not None}
    cells = {key: cell for key, cell in cells.items() if key[1] in placed}
    return MetricGrid(
        metric,
        about,
        shown,
        varied if axis == "setting" else axis,
        list(dict.fromkeys(at for at, _ in cells)),
        list(dict.fromkeys(curve for _, curve in cells)),
        cells,
        {metric: entry_of(metric)},
        last_layer,
    )


def _joinable(grid: MetricGrid) -> tuple[str, ...]:
    """Key of consecutive grids that can share a table."""
    if grid.axis != METRIC and len(grid.curves) > 1:
        return (grid.metric, grid.about, grid.axis)  # with no other
    return (grid.axis, grid.statistic, grid.about, *grid.curves)


def _join(alike: Sequence[MetricGrid]) -> MetricGrid:
    """Several metrics as one grid: single curves as columns, single numbers as rows."""
    first = alike[0]
    words = {name: entry for grid in alike for name, entry in grid.words.items()}
    if first.axis != METRIC and len(alike) > 1:
        return replace(
            first,
            metric="",
            about=", ".join(filter(None, [first.curves[0], first.about])),
            positions=list(
                dict.fromkeys(position for grid in alike for position in grid.positions)
            ),
            curves=[grid.metric for grid in alike],
            cells={
                (position, grid.metric): cell
                for grid in alike
                for (position, _), cell in grid.cells.items()
            },
            words=words,
        )
    return replace(
        first,
        positions=[position for grid in alike for position in grid.positions],
        cells={key: cell for grid in alike for key, cell in grid.cells.items()},
        words=words,
    )


def _count_values(rows: pl.DataFrame, column: str) -> int:
    return rows[column].drop_nulls().n_unique() if column in rows.columns else 0
