"""The lemma on |P − 1qᵀ|: its figures against other arithmetic, and each of its outcomes."""

import math
from dataclasses import replace

import polars as pl
import pytest
import torch

from rankscope import tables
from rankscope.core.theory import SCORE_LIMIT, Departure
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import d11
from rankscope.process.progress import silent

from ..shown import reads
from .small import TINY, tiny


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


def judged(table: pl.DataFrame) -> kit.Result:
    return kit.conclude(d11.ENTRY, d11.Config(), table)


@pytest.mark.parametrize(
    ("table", "verdict", "beyond"),
    [
        (
            made_up(0.9, 0.9, 1.6),
            "Supported",
            "Supported in part: the bound is exceeded from D = 2 on",
        ),
        (made_up(0.9995, 0.9, 0.6), "Supported: sharp at D = 1", "Supported"),
        (made_up(1.01, 1.1, 1.6), "Supported for worst layer; not for random", "Not supported"),
    ],
)
def test_each_outcome(table: pl.DataFrame, verdict: str, beyond: str) -> None:
    found = judged(table)
    assert reads(found.judgement, verdict)
    assert found.beyond is not None
    assert reads(found.beyond, beyond)
    assert all(sentence.endswith(".") for sentence in found.sentences)


def test_it_is_sharp_at_the_limit_alone() -> None:
    """By hand: the sharp factor is (e^D − 1)/2D, which is 0.526 at 0.1 and 1 at the limit."""
    config = d11.Config(spreads=(0.1, SCORE_LIMIT), wider=(), layers=1, masks=())
    found = d11.ENTRY.run(config, silent)
    said = str(found.judgement)
    rows = found.listings[0].rows
    assert [row[0] for row in rows] == ["0.1", "1.256"]
    assert [row[1] for row in rows] == pytest.approx([math.expm1(0.1) / 0.2, 1.0], rel=1e-3)
    assert said == "Supported: sharp at D = 1.2564 only (at D = 0.1 no entry exceeds 0.526 of it)"
    masked = made_up(0.9, 0.9995, 0.6)  # a mask lies beyond the lemma
    assert str(judged(masked).judgement) == "Supported"


def test_it_fails_where_no_kind_of_layer_bears_it_out() -> None:
    table = made_up(1.5, 0.9, 0.9).filter(pl.col("variant") != d11.ADVERSE)
    assert judged(table).verdict == "fails"


def test_the_default_goes_up_to_the_lemmas_own_limit() -> None:
    config = d11.Config()
    assert max(config.spreads) == SCORE_LIMIT
    assert math.exp(SCORE_LIMIT) == pytest.approx(1 + 2 * SCORE_LIMIT, rel=1e-15)
    assert min(config.wider) > SCORE_LIMIT


def test_two_runs_are_equal() -> None:
    module, config = TINY["d11"]
    assert module.ENTRY.run(config, silent).table.equals(tiny("d11")[0].table)


@pytest.mark.parametrize(
    "fields",
    [{"layers": 0}, {"spreads": ()}, {"spreads": (0.0,)}, {"spreads": (2.0,)}, {"wider": (0.5,)},
     {"heads": ()}, {"tokens": ()}],
)  # fmt: skip
def test_what_the_lemma_is_not_about_is_refused(fields) -> None:
    with pytest.raises(InputError):
        d11.ENTRY.run(replace(d11.Config(), **fields), silent)


def test_the_lower_half_is_judged_too() -> None:
    """By hand: a single key below all others by D loses 1 − e^−D of its weight, at most D."""
    found, _ = tiny("d11")
    rows = found.table.filter(metric="lower_lemma_ratio", variant=d11.ADVERSE)
    assert rows.height == 3
    lower = made_up(0.9, 0.9, 0.6).with_columns(metric=pl.lit("lower_lemma_ratio"))
    below, above = (
        judged(pl.concat([made_up(0.9, 0.9, 0.6), lower.with_columns(value=pl.lit(value))]))
        for value in (1.0, 1.01)
    )
    assert below.verdict == "holds"
    assert "not for lower half" in str(above.judgement)


def test_downwards_a_weight_loses_what_the_spread_allows() -> None:
    """Two keys; one query scores the second by D below the first: P₂/q₂ − 1 → e^−D − 1, q₂ → 0."""
    spread = 0.5
    own = torch.tensor([0.0, -spread], dtype=torch.float64)
    shared = torch.tensor([1.0, 1e-12], dtype=torch.float64)
    relative = (own - torch.log1p((shared * own.expm1()).sum())).expm1()
    departed = Departure(relative.view(1, 1, 2), torch.tensor([[spread]]).double(), shared)
    ratio = d11._ratios(departed)["lower_lemma_ratio"]
    assert ratio == pytest.approx(-math.expm1(-spread) / spread, rel=1e-9)
