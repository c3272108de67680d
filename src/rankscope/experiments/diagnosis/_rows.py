"""Measured tensors → rows of the long table."""

from collections.abc import Iterator
from typing import Any

import polars as pl
from torch import Tensor

from rankscope import tables
from rankscope.experiments.diagnosis._measure import Measured
from rankscope.experiments.diagnosis._references import THIS

STATES, STEPS, HEADS, SPECTRUM, TOKENS = "states", "steps", "heads", "spectrum", "tokens"
"""Values of the column ``part``: each is drawn on its own."""


def rows(measured: Measured) -> pl.DataFrame:
    """Everything measured, one number a row."""
    return tables.stack(_frames(measured))


def _frames(measured: Measured) -> Iterator[pl.DataFrame]:
    whole = {"part": STATES, "variant": THIS}
    for metric, values in measured.states.items():
        if values is not measured.common:
            yield _frame(values, {"layer": 0}, metric=metric, **whole)
    yield _frame(measured.common, {"layer": 0}, metric="common_residual", **whole)
    yield _frame(measured.turned, {"layer": 1}, metric="layer_turn", **whole)
    yield _frame(measured.last_apart, {"layer": 0}, metric="last_token_distance", **whole)
    for part in measured.changes:
        step = {"part": STEPS, "variant": part}
        yield _frame(measured.changes[part], {"layer": 1}, metric="residual_step", **step)
        yield _frame(measured.alone[part], {"layer": 1}, metric="residual_step_alone", **step)
    for metric, values in measured.heads.items():
        yield _frame(values, {"layer": 1, "head": 0}, metric=metric, part=HEADS)
    yield _frame(
        measured.values, {"layer": 0, "index": 1}, metric="singular_value_share", part=SPECTRUM
    )
    yield _frame(measured.distances, {"layer": 0, "token": 0}, metric="token_distance", part=TOKENS)


def _frame(values: Tensor, axes: dict[str, int], **labels: str) -> pl.DataFrame:
    """One row for each number that is not NaN; ``axes`` are named, each with its first number,
    and the last axis is that of the samples."""
    known = ~values.isnan()
    places = known.nonzero()
    columns: dict[str, list[Any]] = {
        name: (places[:, axis] + first).tolist()
        for axis, (name, first) in enumerate({**axes, "sample": 0}.items())
    }
    columns |= {name: [label] * len(places) for name, label in labels.items()}
    return tables.frame({**columns, "value": values[known].tolist()})
