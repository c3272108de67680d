"""A result's metrics as small grids of numbers, for a page and a terminal to set in figures."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal

import polars as pl

from rankscope.metric_catalogue import Metric, knowing
from rankscope.metric_catalogue import metric as entry_of
from rankscope.numerals import short
from rankscope.results import Result

# What stands for the samples, as in every chart; nothing where there was but one.
Statistic = Literal["median", ""]

BIAS: Final = "bias"
DOUBT: Final = "?"  # follows a number that is in doubt
IN_DOUBT: Final = f"{DOUBT} in doubt: rounding has taken the digits that tell the tokens apart."
METRIC: Final = "metric"
_LABELS: Final = ("model", "variant", "setting")


@dataclass(frozen=True)
class Cell:
    """One number, the metric it is of, and whether it is in doubt."""

    value: float | None
    metric: str
    doubt: bool = False


@dataclass(frozen=True)
class Grid:
    """One statistic of some curves in some places: layers, lengths of paths, or settings.

    If ``metric`` is empty, the curves are metrics; if ``place`` is ``METRIC``, the places are, each
    a number for each curve. ``about`` says which of several models it is. Where ``cells`` holds
    nothing, nothing was measured.
    """

    metric: str
    about: str
    statistic: Statistic
    place: str
    places: Sequence[Any]
    curves: Sequence[str]
    cells: Mapping[tuple[Any, str], Cell]
    words: Mapping[str, Metric]  # what its metrics are called, and how they are drawn
    last_layer: bool = False  # whether it leaves out all layers but the last

    @property
    def by_metric(self) -> bool:
        """Whether its curves are metrics."""
        return not self.metric

    @property
    def metrics(self) -> list[str]:
        """The metrics its numbers are of."""
        return list(dict.fromkeys(cell.metric for cell in self.cells.values()))

    @property
    def has_doubts(self) -> bool:
        """Whether any number is in doubt that stands in one of its places."""
        return any(cell and cell.doubt for curve in self.curves for cell in self.column(curve))

    def column(self, curve: str) -> list[Cell | None]:
        """A curve's numbers, place by place."""
        return [self.cells.get((place, curve)) for place in self.places]

    def few(self, most: int, curves: Sequence[str] | None = None) -> "Grid":
        """Some of its curves, at no more than ``most`` of the places they have, in order.

        Places that half of the curves do not have are left out, but for the last of them.
        """
        kept = self.curves if curves is None else curves
        having = {at: sum((at, curve) in self.cells for curve in kept) for at in self.places}
        known = [at for at, count in having.items() if count and at is not None]
        if self.place == METRIC:  # metrics have no order, and none is left out
            return replace(self, places=known, curves=kept)
        shared = [at for at in sorted(known) if 2 * having[at] >= len(kept)] or sorted(known)
        last = [at for at in [max(known)] if at not in shared]
        places = [*thin(shared, most - len(last)), *last]
        return replace(self, places=[*places, *[None] * (having.get(None, 0) > 0)], curves=kept)

    def name(self, curve: str) -> str:
        """What a curve is called; nothing if it is the only one and has no name."""
        return self.words[curve].title if self.by_metric else curve

    def label(self, place: Any) -> str:
        """What a place is called; only the biases are of no length."""
        if place is None:
            return BIAS
        if self.place == METRIC:
            return self.words[place].title
        return short(place) if isinstance(place, float) else str(place)


def grids(result: Result, *, apart: Sequence[str] = ()) -> list[Grid]:
    """The metrics a result tells in figures; one in parts tells none that it does not name.

    Labels in the columns ``apart`` get a grid each if there are others, which name the curves.
    Metrics of one curve stand side by side, and those that are one number for each curve below each
    other.
    """
    every = [] if result.parts else result.summary["metric"].unique(maintain_order=True).to_list()
    metrics = result.shown or every
    with knowing(result.metrics):
        found = [grid for metric in metrics for grid in _of_metric(result, metric, apart)]
    return [_join(list(alike)) for _, alike in groupby(found, _kind)]


def statistic(result: Result, metric: str) -> Statistic:
    """What a table of a metric tells: medians, unless there was but one sample."""
    counts = result.summary.filter(pl.col("metric") == metric)["count"]
    return "" if counts.max() == 1 else "median"


def thin(places: Sequence[Any], most: int) -> list[Any]:
    """The first ones and evenly spaced ones up to the last, if there are more than ``most``."""
    if len(places) <= most:
        return list(places)
    early, late = list(places[: most // 2]), places[most // 2 :]
    steps = most - len(early)
    return early + [late[round((k + 1) * len(late) / steps) - 1] for k in range(steps)]


def _of_metric(result: Result, metric: str, apart: Sequence[str]) -> Iterator[Grid]:
    """A grid for each label that gets its own, if others name curves; what was varied always."""
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
) -> Grid:
    # The column that the metric varies along, or none if it is a single number.
    settings, lengths, layers = (
        _count_values(rows, name) for name in ("setting", "length", "layer")
    )
    place = "length" if lengths else "layer" if layers else METRIC
    place = "setting" if settings and layers <= 1 else place
    last_layer = place == "length" and layers > 1
    if last_layer:
        rows = rows.filter(pl.col("layer") == pl.col("layer").max())
    varied = (rows.row(0, named=True).get("parameter") or "setting").replace("_", " ")
    naming = [name for name in _LABELS if name in rows.columns and name not in (place, *apart)]
    cells = {}
    for row in rows.iter_rows(named=True):
        labels = [
            f"{varied} {row[name]:g}" if name == "setting" else str(row[name])
            for name in naming
            if row[name] is not None
        ]
        at = metric if place == METRIC else row[place]
        cells[at, " · ".join(labels)] = Cell(row["median"], metric, bool(row.get("doubt")))
    # A curve without any place, where others have them, is another measurement.
    placed = {curve for at, curve in cells if at is not None}
    cells = {key: cell for key, cell in cells.items() if key[1] in placed}
    return Grid(
        metric,
        about,
        shown,
        varied if place == "setting" else place,
        list(dict.fromkeys(at for at, _ in cells)),
        list(dict.fromkeys(curve for _, curve in cells)),
        cells,
        {metric: entry_of(metric)},
        last_layer,
    )


def _kind(grid: Grid) -> tuple[str, ...]:
    """What neighbours have in common that can stand together."""
    if grid.place != METRIC and len(grid.curves) > 1:
        return (grid.metric, grid.about, grid.place)  # with no other
    return (grid.place, grid.statistic, grid.about, *grid.curves)


def _join(alike: Sequence[Grid]) -> Grid:
    """Several metrics as one grid: of one curve side by side, of one place below each other."""
    first = alike[0]
    words = {name: entry for grid in alike for name, entry in grid.words.items()}
    if first.place != METRIC and len(alike) > 1:
        return replace(
            first,
            metric="",
            about=", ".join(filter(None, [first.curves[0], first.about])),
            places=list(dict.fromkeys(place for grid in alike for place in grid.places)),
            curves=[grid.metric for grid in alike],
            cells={
                (place, grid.metric): cell
                for grid in alike
                for (place, _), cell in grid.cells.items()
            },
            words=words,
        )
    return replace(
        first,
        places=[place for grid in alike for place in grid.places],
        cells={key: cell for grid in alike for key, cell in grid.cells.items()},
        words=words,
    )


def _count_values(rows: pl.DataFrame, column: str) -> int:
    return rows[column].drop_nulls().n_unique() if column in rows.columns else 0
