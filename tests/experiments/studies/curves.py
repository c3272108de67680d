"""Hand-made tables of the LayerNorm study."""

import polars as pl

from rankscope import tables

LEVEL, FALLING = [0.0] * 9, [-0.5 * k for k in range(9)]


def curves(**by_case: list[list[float]]) -> pl.DataFrame:
    """A study's table: for each case the samples' curves, the same in every format."""
    rows = [
        (case, form, layer, sample, metric, value)
        for case, samples in by_case.items()
        for form in ("scaled", "float64", "float32")
        for sample, curve in enumerate(samples)
        for layer, residual in enumerate(curve)
        for metric, value in (
            ("log10_relative_dispersion", residual),
            ("stable_rank", 1.0 + sample),
        )
    ]
    names = ("model", "variant", "layer", "sample", "metric", "value")
    return tables.frame(dict(zip(names, zip(*rows, strict=True), strict=True)))
