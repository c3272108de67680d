"""Measured tensors → rows of the long table."""

from collections.abc import Iterator

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.experiments.diagnosis._references import THIS

STATES, STEPS, HEADS, SPECTRUM, TOKENS = "states", "steps", "heads", "spectrum", "tokens"
"""Values of the column ``run``: each is drawn on its own."""


def rows(measured: Measured) -> pl.DataFrame:
    """Everything measured, one number a row."""
    return tables.stack(_frames(measured))


def _frames(measured: Measured) -> Iterator[pl.DataFrame]:
    for metric, values in measured.states.items():
        yield _frame(values, ("layer", "sample"), metric, STATES, variant=THIS)
    yield _frame(measured.turned, ("layer", "sample"), "layer_turn", STATES, first=1, variant=THIS)
    yield _frame(
        measured.last_apart, ("layer", "sample"), "last_token_distance", STATES, variant=THIS
    )
    for metric, parts in (("log10_step", measured.changes), ("log10_step_alone", measured.alone)):
        for part, values in parts.items():
            places = ("layer", "sample")
            yield _frame(values, places, metric, STEPS, first=1, variant=part)
    for metric, values in measured.heads.items():
        yield _frame(values, ("layer", "head", "sample"), metric, HEADS, first=1)
    by_place = ("layer", "length", "sample")
    yield _frame(measured.values, by_place, "singular_value_share", SPECTRUM, base=1)
    yield _frame(measured.distances, by_place, "token_distance", TOKENS)


def _frame(
    values: Tensor,
    axes: tuple[str, ...],
    metric: str,
    run: str,
    *,
    first: int = 0,
    base: int = 0,
    variant: str | None = None,
) -> pl.DataFrame:
    """One row for each number that is not NaN; ``first`` and ``base`` are where the first and the
    second axis begin to count."""
    known = ~values.isnan()
    places = known.nonzero()
    starts = [first, base if len(axes) == 3 and axes[1] == "length" else 0]
    columns: dict[str, list[object]] = {
        name: (places[:, axis] + (starts[axis] if axis < 2 else 0)).tolist()
        for axis, name in enumerate(axes)
    }
    count = len(places)
    columns |= {"run": [run] * count, "metric": [metric] * count, "value": values[known].tolist()}
    if variant is not None:
        columns["variant"] = [variant] * count
    return tables.frame(columns)
