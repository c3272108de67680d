"""Laws of the curves in a table."""

import polars as pl

from rankscope import tables
from rankscope.core.theory import law
from rankscope.experiments.laws import disagreement, law_of_medians, medians, sure_medians


def doubtful(values, first, sample=0):
    """A curve whose figures are in doubt from a layer on."""
    layers = range(len(values))
    return pl.DataFrame(
        {
            "layer": layers,
            "sample": [sample] * len(values),
            "metric": ["m"] * len(values),
            "value": values,
            "median": values,
            "doubt": [layer >= first for layer in layers],
        }
    )


def test_a_law_is_read_off_what_is_not_in_doubt():
    curve = [0.0, -1.0, -2.0, -3.0, -4.0, -16.0, -48.0, -144.0]  # truly a straight line
    assert law(curve).kind == "doubly exponential"
    found = law_of_medians(doubtful(curve, 5).sample(fraction=1, shuffle=True, seed=1), "m")
    assert (found.kind, found.last, found.sure_to) == ("exponential", -4.0, 4)
    assert str(found) == (
        "exponential: each layer multiplies the residual by 0.1, "
        "to layer 4, beyond which figures are in doubt"
    )
    assert law_of_medians(doubtful(curve, 9), "m") == law(curve)
    assert sure_medians(doubtful(curve, 2), "m") == [0.0, -1.0]
    nothing = law_of_medians(doubtful(curve, 1), "m")
    assert not nothing.decided
    assert str(nothing) == "figures are in doubt from layer 1 on"


def test_samples_do_not_disagree_by_what_is_in_doubt():
    straight = [-float(layer) for layer in range(9)]
    lost = [*straight[:5], -16.0, -48.0, -144.0, -432.0]
    for first, words in {
        9: "the samples disagree: 1 of 2 exponential, 1 of 2 doubly exponential; "
        "they end between 10^−432 and 10^−8.0",
        5: "",
        1: "",
    }.items():
        table = pl.concat([doubtful(straight, 9), doubtful(lost, first, sample=1)])
        assert disagreement(table, "m") == words
    table = pl.concat([doubtful([0.0] * 9, 9), doubtful(lost, 5, sample=1)])
    assert disagreement(table, "m").endswith("between 10^−4.0 and 1, as far as they are sure")


def test_every_sample_is_counted_where_some_are_in_doubt_too_early():
    straight, level = [-float(layer) for layer in range(9)], [0.0] * 9
    lost = doubtful(straight, 1, sample=2)
    table = pl.concat([doubtful(straight, 9), doubtful(level, 9, sample=1), lost])
    assert disagreement(table, "m") == (
        "the samples disagree: 1 of 3 exponential, 1 of 3 no collapse, "
        "1 of 3 in doubt too early to tell; they end between 10^−8.0 and 1"
    )


def test_medians_come_in_the_order_of_the_layers():
    table = tables.frame(
        {
            "variant": ["a", "a", "b"] * 2,
            "layer": [1, 1, 1, 0, 0, 0],
            "metric": ["m"] * 6,
            "value": [1.0, 3.0, 9.0, 5.0, 7.0, 8.0],
        }
    )
    assert medians(tables.summary(table), "m", variant="a") == [6.0, 2.0]
