"""A small report."""

import polars as pl
import pytest

from rankscope.figures import by_layer
from rankscope.report import Report, Section


@pytest.fixture
def chart():
    rows = [
        {
            "variant": variant,
            "layer": layer,
            "metric": "relative_residual",
            "count": 4,
            "mean": base**layer,
            "low": 0.9 * base**layer,
            "median": base**layer,
            "high": 1.1 * base**layer,
        }
        for variant, base in (("SAN", 1e-3), ("transformer", 0.95))
        for layer in range(4)
    ]
    return by_layer(pl.DataFrame(rows))


@pytest.fixture
def report(chart):
    table = pl.DataFrame({"variant": ["SAN", "transformer"], "last_layer": [1.04e-9, 0.8573]})
    return Report(
        title="What keeps the tokens apart?",
        lead="Attention alone **loses** them.",
        verdicts=[("SAN", "Falls to 1e-9.", "collapse"), ("transformer", "Stays.", "holds")],
        sections=[
            Section("Layer by layer", "How `SAN` falls.\n\nAnd the other does not.", chart),
            Section("In figures", table=table),
        ],
        provenance={"rankscope": "0.1.0", "seed": "7"},
    )
