"""The lemma on |P − 1qᵀ|: its figures against other arithmetic, and each of its outcomes."""

import math

import mpmath
import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.experiments.claims import d11
from rankscope.experiments.progress import silent
from rankscope.theory.residual_bounds import SCORE_LIMIT, HeadWeights

from .small import TINY, tiny


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("causal", [False, True])
def test_departures_agree_with_forty_digits(size: float, causal: bool) -> None:
    """From the logits of whole tokens, in which nothing is taken apart."""
    generator = torch.Generator().manual_seed(3)
    rest, center, bias, matrix = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 3), (3,), (1, 3), (1, 3, 3))
    )
    rest = size * rest
    weights = HeadWeights(matrix, matrix, bias, torch.zeros(3).double(), 0.7)
    visible = torch.ones(4, 4).tril().bool() if causal else None
    found = d11.departure(weights, rest, center, visible)
    with mpmath.workdps(40):
        w, r, c, b = (mpmath.matrix(each.tolist()) for each in (matrix[0], rest, center, bias[0]))
        exact = mpmath.mpf(0.7)
        for i in range(4):
            keys = range(i + 1) if causal else range(4)
            query = (c + r[i, :].T).T * w + b.T
            at_center = c.T * w + b.T
            p, q = (
                [mpmath.exp(exact * (each * (c + r[j, :].T))[0]) for j in keys]
                for each in (query, at_center)
            )
            own = [exact * (r[i, :] * w * r[j, :].T)[0] for j in keys]
            assert found.spread[0, i].item() == pytest.approx(float(max(own) - min(own)))
            for j in keys:
                want = (p[j] / mpmath.fsum(p)) / (q[j] / mpmath.fsum(q)) - 1
                got = found.relative[0, i, j].item()
                assert got == pytest.approx(float(want), rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("spread", [0.01, 1.0, 2.0])
def test_the_worst_layer_is_as_bad_as_can_be(spread: float) -> None:
    found = d11.departure(*d11.worst_layer(spread, 40.0))
    assert found.spread.max().item() == pytest.approx(spread)
    assert found.relative.max().item() == pytest.approx(math.expm1(spread))
    some = d11.departure(*d11.worst_layer(spread, 0.0))  # a key of weight 1/3
    assert some.relative.max().item() == pytest.approx(
        math.exp(spread) / (1 + math.expm1(spread) / 3) - 1
    )


def test_random_layers_have_the_spread_they_are_listed_under() -> None:
    found, _ = tiny("d11")
    rows = found.table.filter(metric="lemma_ratio", variant=d11.RANDOM)
    assert rows.height == 9
    limits = found.table.filter(variant=d11.LIMIT).select("setting", "value").rows()
    assert dict(limits)[2.0] == pytest.approx((math.e**2 - 1) / 4)
    errors = found.table.filter(metric="relative_error")["value"].to_list()
    assert 0 < max(errors) < 1e-11
    for number in range(3):
        network, x = d11._random_layer(TINY["d11"][1], number, 0.37, "full")
        assert d11._departure(network, x).spread.max().item() == pytest.approx(0.37)


def made_up(own: float, masked: float, wide: float) -> pl.DataFrame:
    rows = [
        (d11.RANDOM, 1.0, own),
        (d11.ADVERSE, 1.0, 0.5),
        (f"{d11.RANDOM}, causal mask", 1.0, masked),
        (d11.ADVERSE, 2.0, wide),
        (d11.LIMIT, 2.0, 99.0),
    ]
    return tables.from_rows(
        ("variant", "setting", "sample", "metric", "value"),
        [
            (name, setting, 0, metric, value)
            for name, setting, value in rows
            for metric in ("lemma_ratio", "sharp_lemma_ratio")
        ],
    )


@pytest.mark.parametrize(
    ("table", "verdict", "beyond"),
    [
        (made_up(0.9, 0.9, 1.6), "holds", "depends on the spread: exceeded from D = 2 on"),
        (made_up(0.9995, 0.9, 0.6), "holds, and is sharp", "holds"),
        (made_up(1.01, 1.1, 1.6), "depends on the case", "fails"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str, beyond: str) -> None:
    judgement, further, sentences = d11.judge(table)
    assert str(judgement).startswith(verdict)
    assert further is not None
    assert str(further).startswith(beyond)
    assert all(sentence.endswith(".") for sentence in sentences)


def test_it_fails_where_no_kind_of_layer_bears_it_out() -> None:
    table = made_up(1.5, 0.9, 0.9).filter(pl.col("variant") != d11.ADVERSE)
    assert d11.judge(table)[0].verdict == "fails"


def test_the_default_goes_up_to_the_lemmas_own_limit() -> None:
    config = d11.Config()
    assert max(config.spreads) == SCORE_LIMIT
    assert math.exp(SCORE_LIMIT) == pytest.approx(1 + 2 * SCORE_LIMIT, rel=1e-15)
    assert min(config.wider) > SCORE_LIMIT


def test_two_runs_are_equal() -> None:
    module, config = TINY["d11"]
    assert module.run(config, silent).table.equals(tiny("d11")[0].table)
