"""What a table of traces says in words: fates, noise, cones."""

import polars as pl
import pytest

from rankscope import tables
from rankscope.experiments import findings


def curve(*values: float, cosine: float = 0.0) -> pl.DataFrame:
    layers = list(range(len(values)))
    return tables.summary(
        tables.frame(
            {
                "variant": ["v"] * 2 * len(values),
                "layer": layers * 2,
                "sample": [0] * 2 * len(values),
                "metric": ["relative_residual"] * len(values) + ["mean_cosine"] * len(values),
                "value": [*values, *[cosine] * len(values)],
            }
        )
    )


@pytest.mark.parametrize(
    ("values", "fate", "collapsed_at", "says"),
    [
        ((1.0, 0.5, 1e-4, 1e-5), "collapse", 2, "after 2 layers"),
        ((1.0, 1e-4), "collapse", 1, "after 1 layer "),
        ((1.0, 0.5, 0.05), "slow", None, "from 1 to 0.05 over 2 layers"),
        ((1.0, 0.5, 0.2), "holds", None, "No depth collapse"),
        ((1.0, 0.999), "holds", None, "stays near 1 over 1 layer."),
        ((3e-7, 2e-7), "collapse", 0, "(relative residual 3e−7)"),
        ((0.9, 1e-4, 0.8), "holds", 1, "No depth collapse"),
    ],
)
def test_fates(values, fate: str, collapsed_at: int | None, says: str) -> None:
    (finding,) = findings(curve(*values), epsilon=1e-16)
    assert (finding.fate, finding.collapsed_at) == (fate, collapsed_at)
    assert says in finding.sentence


def test_noise_of_the_number_format_is_called_by_its_name() -> None:
    collapsed = curve(1.0, 1e-3, 2e-7, 2e-7)
    (single,) = findings(collapsed, epsilon=1.2e-7)
    (double,) = findings(collapsed, epsilon=2.2e-16)
    assert "rounding noise" in single.sentence
    assert "layer 2" in single.sentence
    assert "rounding noise" not in double.sentence


def test_anisotropy_is_told_apart_from_collapse() -> None:
    (finding,) = findings(curve(1.0, 0.4, cosine=0.8), epsilon=1e-16)
    assert finding.fate == "holds"
    assert "Cone anisotropy" in finding.sentence
    assert "0.8" in finding.sentence
