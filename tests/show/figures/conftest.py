"""A summary as a real one looks: four variants of a 12-layer model, and what becomes of them."""

import math

import polars as pl
import pytest

from rankscope.show.figures import by_layer

LAYERS = 13
FLOOR = 1.2e-7  # where float32 leaves a collapsed network


def relative_residual(variant, layer):
    match variant:
        case "SAN":
            return max(10 ** (-0.09 * (3**layer - 1)), FLOOR)
        case "SAN+MLP":
            return max(10 ** (-0.5 * layer), FLOOR)
        case "SAN+skip":
            return 1.0 - 0.004 * layer
        case _:
            return 0.9 - 0.03 * math.sin(layer)


def row(variant, layer, metric, value, spread=0.1):
    return {
        "variant": variant,
        "layer": layer,
        "metric": metric,
        "count": 32,
        "mean": value,
        "low": value * (1 - spread),
        "median": value,
        "high": value * (1 + spread),
    }


@pytest.fixture(scope="session")
def summary():
    rows = []
    for variant in ("SAN", "SAN+MLP", "SAN+skip", "transformer"):
        for layer in range(LAYERS):
            residual = relative_residual(variant, layer)
            rows += [
                row(variant, layer, "relative_residual", residual),
                row(variant, layer, "dispersion", 30 * residual),
                row(variant, layer, "mean_cosine", 0.9 - residual),
                row(variant, layer, "effective_rank", 1 + 20 * residual),
            ]
    return pl.DataFrame(rows)


@pytest.fixture
def with_zeros(summary):
    """The same, with the collapsed network's residual exactly zero from layer 6 on."""
    gone = (pl.col("variant") == "SAN") & (pl.col("layer") >= 6)
    return summary.filter(pl.col("metric") == "relative_residual").with_columns(
        pl.when(gone).then(0.0).otherwise(pl.col(name)).alias(name)
        for name in ("mean", "low", "median", "high")
    )


@pytest.fixture(scope="session")
def chart(summary):
    """The summary drawn, once for all who only look."""
    return by_layer(summary)


@pytest.fixture(scope="session")
def spec(chart):
    """The chart's specification, checked against Vega-Lite's schema."""
    return chart.to_dict()
