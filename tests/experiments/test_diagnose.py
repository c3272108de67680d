"""The main job on a small network, and the words made of its figures."""

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.experiments import DIAGNOSTIC_METRICS, diagnose, findings, four_variants
from rankscope.network import Network, Spec
from rankscope.text import embed, passages
from rankscope.tracing import trace

SPEC = Spec(8, 2, 16, norm_place="post", norm_eps=1e-12, init=0.1)


@pytest.fixture(scope="module")
def found():
    x, mask = embed(passages()[:3], 16, length=20, dtype=torch.float64)
    return diagnose(Network.random(SPEC, dtype=torch.float64), x, mask, batch_size=2)


def test_variants_are_those_of_the_paper() -> None:
    specs = {name: net.spec for name, net in four_variants(Network.random(SPEC)).items()}
    got = {name: (spec.skips[0] > 0, spec.mlp_width > 0) for name, spec in specs.items()}
    assert got == {
        "SAN": (False, False),
        "SAN+MLP": (False, True),
        "SAN+skip": (True, False),
        "transformer": (True, True),
    }
    assert {spec.norm for spec in specs.values()} == {"layer"}


def test_table_holds_every_variant_layer_and_sample(found) -> None:
    assert found.table.columns == ["variant", "layer", "sample", "metric", "value"]
    assert len(found.table) == 4 * 9 * 3 * len(DIAGNOSTIC_METRICS)
    assert found.table["sample"].unique().sort().to_list() == [0, 1, 2]


def test_figures_equal_a_plain_trace(found) -> None:
    x, mask = embed(passages()[:3], 16, length=20, dtype=torch.float64)
    san = Network.random(SPEC, dtype=torch.float64).without("skip", "mlp")
    expected = trace(san, x, metrics=["effective_rank"], token_mask=mask).table
    got = found.table.filter(variant="SAN", metric="effective_rank").drop("variant")
    in_order = [each.sort("layer", "sample")["value"].to_list() for each in (got, expected)]
    assert in_order[0] == pytest.approx(in_order[1])


def test_attention_alone_collapses_and_skips_prevent_it(found) -> None:
    fates = {finding.variant: finding.fate for finding in found.findings}
    assert fates["SAN"] == "collapse"
    assert fates["SAN+skip"] == fates["transformer"] == "holds"


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
