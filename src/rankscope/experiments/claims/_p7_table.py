"""The table of claim P7: losses against every figure, and what each figure forecasts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import polars as pl

from rankscope.experiments.claims._p7_designs import Design
from rankscope.experiments.claims._p7_figures import ANGLE, GRADIENT, STARTS
from rankscope.experiments.claims._p7_forecast import explainable, score

LOSS, EXPLAINABLE, EXPLAINED = "reached_loss", "explainable_share", "explained_share"
CORRELATION, NEIGHBOURS = "rank_correlation", "neighbour_share"
SCALE, DEPTH = "init scale", "depth"
SKIPS = ("attention skip", "MLP skip")
KNOBS: Final = "init scale and both skips"
TOGETHER: Final = "all depths"
COLUMNS: Final = ("run", "model", "variant", "parameter", "setting", "sample", "metric", "value")
Row = tuple[str | float | None, ...]


def both(start: str) -> str:
    """What the two exponents are called as one predictor."""
    return f"both exponents, {start}"


def accumulated(start: str) -> str:
    """The same, each times the depth."""
    return f"both exponents times depth, {start}"


def loss_rows(
    designs: Sequence[Design],
    figures: Sequence[Mapping[str, float]],
    losses: Sequence[Sequence[float]],
) -> list[Row]:
    """The losses of each design's seeds against each of its figures, and against its knobs."""
    rows: list[Row] = []
    for design, predicted, reached in zip(designs, figures, losses, strict=True):
        skips = zip(SKIPS, (design.attention_skip, design.mlp_skip), strict=True)
        knobs = {SCALE: design.scale, **dict(skips), DEPTH: float(design.layers)}
        rows += [
            (design.start, design.depth, design.branch, name, setting, sample, LOSS, loss)
            for name, setting in (dict(predicted) | knobs).items()
            for sample, loss in enumerate(reached)
        ]
    return rows


def score_rows(table: pl.DataFrame, neighbours: int) -> list[Row]:
    """What every predictor forecasts, for the designs of each depth and for all of them."""
    depths = table["model"].unique(maintain_order=True).to_list()
    groups = {TOGETHER: table} | {depth: table.filter(model=depth) for depth in depths}
    rows: list[Row] = []
    for group, own in groups.items():
        figures, losses = _by_design(own)
        means = [float(np.mean(each)) for each in losses]
        rows.append(_row(group, None, metric=EXPLAINABLE, value=explainable(losses)))
        for name, columns in _predictors(figures):
            found = score(columns, means, neighbours)
            rows += [
                _row(group, name, metric=EXPLAINED, value=found.explained),
                _row(group, name, metric=CORRELATION, value=found.correlation),
                _row(group, name, metric=NEIGHBOURS, value=found.by_neighbours),
            ]
    return rows


def value_of(table: pl.DataFrame, group: str, metric: str, predictor: str | None = None) -> float:
    """One number of a group of designs."""
    rows = table.filter(
        pl.col("model") == group,
        pl.col("metric") == metric,
        pl.col("variant").eq_missing(pl.lit(predictor, pl.String)),
    )
    return float(rows["value"].item())


def _row(group: str, predictor: str | None, *, metric: str, value: float) -> Row:
    return (None, group, predictor, None, None, None, metric, value)


def _by_design(table: pl.DataFrame) -> tuple[dict[str, list[float]], list[list[float]]]:
    """Each figure by design, and the losses of each design's seeds."""
    figures: dict[str, list[float]] = {}
    losses: list[list[float]] = []
    designs = ["model", "variant", "run"]
    for (name,), rows in table.filter(metric=LOSS).group_by("parameter", maintain_order=True):
        each = rows.group_by(designs, maintain_order=True).agg(pl.first("setting"), "value")
        figures[str(name)] = each["setting"].to_list()
        losses = each["value"].to_list()  # the same for every figure
    return figures, losses


def _predictors(figures: Mapping[str, list[float]]) -> Iterator[tuple[str, list[list[float]]]]:
    """Pairs of exponents, each figure alone, and what needs no prediction at all."""
    layers = figures[DEPTH]
    for start in STARTS:
        pair = [figures[f"{name}, {start}"] for name in (ANGLE, GRADIENT)]
        yield both(start), pair
        totals = [[a * b for a, b in zip(each, layers, strict=True)] for each in pair]
        yield accumulated(start), totals
    yield KNOBS, [figures[name] for name in (SCALE, *SKIPS)]
    for name, values in figures.items():
        yield name, [values]
