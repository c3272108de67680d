"""A result's metrics as small grids of numbers, for a page and a terminal to set in figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import polars as pl

from rankscope.metric_catalogue import metric as entry_of
from rankscope.results import Result

Statistic = Literal["mean", "median", ""]
"""What stands for the samples; nothing where there was but one."""

MEANS: Final = ("by_layer", "by_model", "by_length", "head_map")
"""Figures whose curves are means over the samples; those of the others are medians."""
_LABELS: Final = ("model", "variant", "setting")
BIAS: Final = "bias"


@dataclass(frozen=True)
class Curve:
    """One series of numbers: what it is called, and which metric they are of."""

    name: str
    metric: str


@dataclass(frozen=True)
class Grid:
    """One statistic of some curves in some places: layers, lengths of paths, or settings.

    The curves are of one metric, or of one name. Nothing is known of a
    curve in a place that ``values`` does not hold.
    """

    heading: str
    statistic: Statistic
    place: str
    places: Sequence[Any]
    curves: Sequence[Curve]
    values: Mapping[tuple[Any, Curve], float | None]
    last_layer: bool = False
    """Whether it leaves out all layers but the last."""

    @property
    def by_metric(self) -> bool:
        """Whether the curves are several metrics of one thing."""
        return len({curve.metric for curve in self.curves}) > 1 or not self.curves[0].name

    def column(self, curve: Curve) -> list[float | None]:
        """A curve's values, place by place."""
        return [self.values.get((place, curve)) for place in self.places]

    def label(self, place: Any) -> str:
        """What a place is called; only the biases are of no length."""
        if place is None:
            return BIAS if self.place == "length" else ""
        return f"{place:g}" if isinstance(place, float) else str(place)


def grids(result: Result, *, apart: Sequence[str] = (), most: int) -> list[Grid]:
    """The metrics a result tells in figures, at no more than ``most`` places.

    Labels in the columns ``apart`` get a grid each; other labels name the curves. Where there is
    but one curve, its metrics stand side by side.
    """
    summary = result.summary
    metrics = result.shown or summary["metric"].unique(maintain_order=True).to_list()
    found = [
        grid
        for metric in metrics
        for grid in _of_metric(summary, metric, statistic(result, metric), apart)
    ]
    return [replace(grid, places=_kept(grid.places, most)) for grid in _side_by_side(found)]


def statistic(result: Result, metric: str) -> Statistic:
    """Which statistic a table of a metric tells: that which its charts draw."""
    if result.summary.filter(pl.col("metric") == metric)["count"].max() == 1:
        return ""
    about = [each for each in result.drawings if each.metric == metric] or result.drawings
    return "mean" if any(each.figure in MEANS for each in about) else "median"


def thinned(places: Sequence[Any], most: int) -> list[Any]:
    """The first ones and evenly spaced ones up to the last, if there are more than ``most``."""
    if len(places) <= most:
        return list(places)
    early, late = list(places[: most // 2]), places[most // 2 :]
    steps = most - len(early)
    return early + [late[round((k + 1) * len(late) / steps) - 1] for k in range(steps)]


def _of_metric(
    summary: pl.DataFrame, metric: str, shown: Statistic, apart: Sequence[str]
) -> list[Grid]:
    """A grid for each label that gets its own; what was varied always does."""
    rows = summary.filter(pl.col("metric") == metric)
    by = [name for name in ("parameter", *apart) if _varied(rows, name) > 0]
    told = [name for name in apart if _varied(rows, name) > 1]
    parts = rows.partition_by(by, maintain_order=True) if by else [rows]
    return [_grid(part, metric, shown, apart, told) for part in parts]


def _grid(
    rows: pl.DataFrame, metric: str, shown: Statistic, apart: Sequence[str], told: Sequence[str]
) -> Grid:
    place = _place(rows)
    last_layer = place == "length" and _varied(rows, "layer") > 1
    if last_layer:
        rows = rows.filter(pl.col("layer") == pl.col("layer").max())
    first = rows.row(0, named=True)
    varied = (first.get("parameter") or "setting").replace("_", " ")
    naming = [name for name in _LABELS if name in rows.columns and name not in (place, *apart)]
    values: dict[tuple[Any, Curve], float | None] = {}
    for row in rows.iter_rows(named=True):
        labels = [
            f"{varied} {row[name]:g}" if name == "setting" else str(row[name])
            for name in naming
            if row[name] is not None
        ]
        values[row.get(place), Curve(" · ".join(labels), metric)] = row[shown or "mean"]
    placed = {curve for at, curve in values if at is not None}
    if placed:  # what is told without a place, where others have one, is another measurement
        values = {key: value for key, value in values.items() if key[1] in placed}
    return Grid(
        # The words of the metric, then which of the labels it is, if there are several.
        ", ".join([_heading(metric), *(str(first[name]) for name in told)]),
        shown,
        varied if place == "setting" else place,
        list(dict.fromkeys(at for at, _ in values)),
        list(dict.fromkeys(curve for _, curve in values)),
        values,
        last_layer,
    )


def _kept(places: Sequence[Any], most: int) -> list[Any]:
    """Places in order, a few of them; what has none comes last."""
    known = sorted(place for place in places if place is not None)
    return thinned(known, most) + [None] * (None in places)


def _place(rows: pl.DataFrame) -> str:
    """The column along which a metric is told."""
    if _varied(rows, "setting") > 0 and _varied(rows, "layer") <= 1:
        return "setting"
    return "length" if _varied(rows, "length") > 0 else "layer"


def _heading(metric: str) -> str:
    words = entry_of(metric)
    return words.title if words.symbol in words.title.lower() else f"{words.title} {words.symbol}"


def _side_by_side(found: Sequence[Grid]) -> list[Grid]:
    """Neighbours of one and the same curve each as one grid, a column for each metric."""
    merged: list[Grid] = []
    for grid in found:
        if not merged or _kind(merged[-1]) is None or _kind(merged[-1]) != _kind(grid):
            merged.append(grid)
            continue
        last = merged[-1]
        merged[-1] = replace(
            grid,
            heading=_curves(grid)[0],
            places=list(dict.fromkeys([*last.places, *grid.places])),
            curves=[*last.curves, *grid.curves],
            values={**last.values, **grid.values},
        )
    return merged


def _kind(grid: Grid) -> tuple[str, ...] | None:
    """What grids have in common that can be merged; None for one that cannot."""
    names = _curves(grid)
    return (grid.statistic, grid.place, *names) if len(names) == 1 else None


def _curves(grid: Grid) -> list[str]:
    return list(dict.fromkeys(curve.name for curve in grid.curves))


def _varied(rows: pl.DataFrame, column: str) -> int:
    return rows[column].drop_nulls().n_unique() if column in rows.columns else 0
