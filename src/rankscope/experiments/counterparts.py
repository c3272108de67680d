"""Measure the metrics of a prediction on one network, by layer."""

from typing import Final

import polars as pl
import torch

from rankscope import tables
from rankscope.ask import Subject
from rankscope.core.prediction import measured_gradients
from rankscope.experiments.depths import RELATIVE

DISPERSION: Final = "relative_dispersion"
EXPONENT: Final = "log10_relative_dispersion"
OF_TOKENS: Final = ("mean_cosine", "effective_rank", "token_norm", "attention_entropy")


def counterpart(
    subject: Subject, *, exponents: bool = False, gradients: bool = False, seed: int = 0
) -> pl.DataFrame:
    """Metrics by layer and sample, in float64, as means over heads.

    With ``exponents`` the dispersion is given as its logarithm, in scaled arithmetic. ``seed`` is
    that of the function whose ``gradients`` are taken.
    """
    exact = subject.to(torch.float64)
    metrics = OF_TOKENS if exponents else (DISPERSION, *OF_TOKENS)
    places = ("layer", "sample", "metric")
    traced = exact.trace(metrics).table.group_by(*places, maintain_order=True)
    parts = [traced.agg(pl.col("value").mean())]
    if exponents:
        deep = exact.deep_trace(norm="fro").table.filter(pl.col("metric") == RELATIVE)
        parts.append(deep.with_columns(pl.lit(EXPONENT).alias("metric")))
    if gradients:
        by_metric = measured_gradients(
            exact.network, exact.x, token_mask=exact.token_mask, seed=seed
        )
        rows = [
            (layer, sample, name, value)
            for name, values in by_metric.items()
            for layer, row in enumerate(values.tolist())
            for sample, value in enumerate(row)
            if value == value  # the input has no weights
        ]
        parts.append(tables.from_rows((*places, "value"), rows))
    return tables.stack(parts)
