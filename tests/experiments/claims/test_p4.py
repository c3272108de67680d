"""The place of the norm: laws against curves made by hand, and each outcome."""

import math
from dataclasses import replace

import polars as pl
import pytest

from rankscope import tables
from rankscope.errors import InputError
from rankscope.experiments import kit
from rankscope.experiments.claims import p4
from rankscope.experiments.kit import Mean
from rankscope.numerals import power_of_ten
from rankscope.process.progress import silent

from ..shown import can_be_shown, steps_of

SMALL = p4.Config(layers=8, tokens=4, width=16, heads=2, scales=(1.0,), draws=1, networks=1)
LAYERS = 32


def test_laws_are_told_apart() -> None:
    exponential = [-0.3 * layer for layer in range(LAYERS + 1)]
    polynomial = [-0.5 * math.log10(1 + layer) for layer in range(LAYERS + 1)]
    assert p4.steadiness(exponential) == pytest.approx(1.0)
    assert p4.steadiness(polynomial) == pytest.approx(math.log(33 / 17) / math.log(17))
    squares = [Mean(1 + layer**2, 0.0) for layer in range(9)]
    assert p4.growth(squares).value == pytest.approx(2.0)
    assert p4.growth([Mean(1.0, 0.1)] * 9) == Mean(0.0, 0.0)
    wavering = [Mean(1 + layer, 0.04 * layer) for layer in range(9)]
    assert p4.growth(wavering).error == pytest.approx(0.04 * math.sqrt(2) / math.log(2))


def test_it_runs_small_and_can_be_shown() -> None:
    found, _ = steps_of(p4.ENTRY.run, SMALL)
    can_be_shown(found)
    still = found.table.filter(pl.col("variant").str.starts_with("post"), metric="stream_variance")
    assert still["value"].to_list() == pytest.approx([1.0] * still.height, rel=1e-4)
    # By hand: two branches a layer, each of the input's size.
    sandwich = found.table.filter(pl.col("variant").str.starts_with("sandwich"), layer=8)
    sizes = sandwich.filter(metric="stream_variance")["value"].to_list()
    assert sum(sizes) / len(sizes) == pytest.approx(17, rel=0.6)
    # Predictions and networks start at the same figure, by hand: cosines are 0.1.
    first = found.table.filter(layer=0, metric="log10_relative_dispersion")["value"].to_list()
    assert [10**each for each in first] == pytest.approx([math.sqrt(0.9 * 3 / 4)] * len(first))
    other = p4.ENTRY.run(replace(SMALL, seed=1), silent).table
    assert not found.table.equals(other)
    assert other.equals(p4.ENTRY.run(replace(SMALL, seed=1), silent).table)


USUAL = {
    "post-norm": (0.0, "exponential", 1.0, -0.3),
    "pre-norm": (1.0, "polynomial", 3.0, -0.5),
    "sandwich": (1.0, "polynomial", 2.0, -0.4),
}
"""The power of the growth, the kind of the collapse, the gradient's ratio, the collapse's rate."""


def made_up(**other: tuple[float, str, float, float]) -> pl.DataFrame:
    rows = []
    for scale, factor in (("LeCun × 1", 1.0), ("LeCun × 2", 2.0)):
        for place, usual in USUAL.items():
            power, law, gradient, rate = other.get(place.split("-")[0], usual)
            times = factor if place == "pre-norm" else 1.0
            for source in (p4.PREDICTED, p4.MEASURED):
                label = (scale, f"{place}, {source}")
                for layer in range(LAYERS + 1):
                    size = 1 + times * layer**power if power else 1.0
                    along = layer if law == "exponential" else math.log10(1 + layer)
                    rows.append((*label, layer, 0, "stream_variance", size))
                    rows.append((*label, layer, 0, "log10_relative_dispersion", rate * along))
                rows.append((*label, LAYERS, 0, "first_last_gradient", times * gradient))
    return tables.from_rows(("model", "variant", "layer", "sample", "metric", "value"), rows)


@pytest.mark.parametrize(
    ("other", "against"),
    [
        ({}, []),
        ({"post": (0.5, "exponential", 1.0, -0.3)}, ["post-norm is bounded"]),
        ({"sandwich": (1.2, "polynomial", 2.0, -0.4)}, ["the sandwich grows linearly"]),
        ({"sandwich": (0.8, "polynomial", 2.0, -0.4)}, ["the sandwich grows linearly"]),
        ({"post": (0.0, "polynomial", 1.0, -0.9)}, ["post-norm collapses exponentially"]),
        ({"pre": (1.0, "exponential", 3.0, -0.05)}, ["pre-norm collapses polynomially"]),
        ({"pre": (1.0, "polynomial", 3.0, -9.0)}, ["post-norm is the fastest"]),
        ({"sandwich": (1.0, "polynomial", 2.0, -0.6)}, ["the sandwich is the slowest"]),
    ],
)
def test_each_question_has_two_sides(
    other: dict[str, tuple[float, str, float, float]], against: list[str]
) -> None:
    table = made_up(**other)
    stated = p4.judge(SMALL, table).stated
    assert stated is not None
    assert [question for question, held in stated.items() if not held] == against
    found = kit.conclude(p4.ENTRY, SMALL, table)
    assert found.verdict == ("depends" if against else "holds")
    assert found.beyond is not None
    assert found.beyond.verdict == ("depends" if against else "holds")
    assert all(sentence.endswith(".") for sentence in found.sentences)
    rows = found.listings[0].rows
    assert [row[:2] for row in rows] == [
        (f"LeCun × {scale}", place) for scale in (1, 2) for place in p4.PLACES
    ]
    ends = {row[:2]: row[2] for row in rows}
    curves = kit.curves(table, "layer")
    for (scale, place), end in ends.items():
        curve = curves[scale, f"{place}, {p4.PREDICTED}", "log10_relative_dispersion"]
        assert end == power_of_ten(curve[LAYERS].value)


@pytest.mark.parametrize(
    ("power", "linear"), [(1.0, True), (0.8, False), (1.5, False), (None, False), (0.6, None)]
)
def test_the_growth_of_pre_norm_at_initialisation_is_ours(
    power: float | None, linear: bool | None
) -> None:
    """No power is an exponential; a growth of less than tenfold is not judged."""
    table = made_up(pre=(power or 1.0, "polynomial", 3.0, -0.5))
    if power is None:
        table = table.with_columns(
            value=pl.when(
                pl.col("variant").str.starts_with("pre"), pl.col("metric") == "stream_variance"
            )
            .then(1.1 ** pl.col("layer").cast(pl.Float64))
            .otherwise("value")
        )
    answer = p4.judge(SMALL, table)
    assert answer.stated is not None
    assert answer.beyond is not None
    assert all(answer.stated.values())
    name = "LeCun × 1, pre-norm grows linearly at initialisation, not exponentially"
    assert answer.beyond.get(name) is linear


def test_what_depends_on_the_weights_is_compared_across_scales() -> None:
    """In what is made up only pre-norm depends on them; equal ranges are not smaller ones."""

    def across(table: pl.DataFrame) -> list[bool]:
        beyond = p4.judge(SMALL, table).beyond
        assert beyond is not None
        return [held for question, held in beyond.items() if "depends less" in question]

    assert across(made_up()) == [True, True]
    again = made_up().filter(model="LeCun × 1")
    same = again.with_columns(pl.lit("LeCun × 2").alias("model"))
    assert across(pl.concat([again, same])) == [False, False]
    assert across(again) == []


def test_too_little_is_refused() -> None:
    for wrong in ({"layers": 7}, {"scales": ()}):
        with pytest.raises(InputError, match="8 layers or more"):
            p4.ENTRY.run(replace(SMALL, **wrong), silent)
