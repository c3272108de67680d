"""Networks side by side in scaled arithmetic, what is in doubt about them, and their laws."""

import math

import polars as pl
import torch

from rankscope import tables
from rankscope.core.deep import deep_trace
from rankscope.core.network import Network, Spec
from rankscope.core.theory import UNEVEN, Law, law
from rankscope.core.tracing import Provenance, Trace
from rankscope.experiments import depths
from rankscope.experiments.depths import (
    DISPERSION,
    RELATIVE,
    DeepConfig,
    Passages,
    compare,
    disagreement,
    dispersions,
    doubts,
    ending,
    law_of_medians,
    laws,
    medians,
    sure_medians,
)

PURE = Network.random(Spec.pure_attention(6, 2, 8, init="lecun"), seed=3)
ONE_HEAD = Network.random(Spec.pure_attention(3, 1, 8))


def test_texts_are_independent_of_how_many_are_read():
    few, many = (Passages(width=8, tokens=6, samples=samples)()[0] for samples in (1, 3))
    assert few.dtype == torch.float64
    assert torch.equal(few[0], many[0])
    assert str(Passages(8, 6, 3)) == "3 bundled passages of 6 tokens, 8 features"
    config = DeepConfig(seed=5, width=8, tokens=6, samples=1)
    assert config.texts == Passages(8, 6, 1, seed=5)
    assert config.provenance("X")["input"] == str(config.texts)


def test_networks_are_compared_on_one_input(tokens):
    seen = []
    x = tokens(2, 5, 8)
    found = compare({"a": PURE, "b": PURE}, x, None, on_step=seen.append)
    assert seen == [0.5, 1.0]
    assert found.notes == {}
    a, b = (found.table.filter(variant=name).drop("variant") for name in "ab")
    assert a.equals(b)
    assert a.equals(deep_trace(PURE, x).table)


def test_doubts_about_a_network_reach_its_readers(tokens, monkeypatch):
    def doubtful(network, x, **options):
        traced = deep_trace(network, x, **options)
        if network.spec.heads == 1:
            traced = traced.noted({"doubt": "a digit was lost", "beyond": "the end is nowhere"})
        return traced

    monkeypatch.setattr(depths, "deep_trace", doubtful)
    found = compare({"sound": PURE, "one head": ONE_HEAD}, tokens(1, 4, 8), None)
    assert found.notes == {"one head": "a digit was lost; the end is nowhere"}


def noted(**notes: str) -> Trace:
    columns = {"layer": [0], "sample": [0], "metric": ["m"], "value": [1.0]}
    return Trace(columns, Provenance("n", notes=notes))


def test_doubts_are_those_of_any_draw_each_once():
    first, same = noted(norm="fro"), noted(doubt="a digit is lost", norm="fro")
    other = noted(beyond="no logarithm", doubt="a digit is lost")
    found = doubts({"calm": first, "wild": Trace.joined([first, same, same, other])})
    assert found == {"wild": "a digit is lost; no logarithm"}


def test_the_law_of_each_variant_is_read_by_what_is_asked():
    curves = {"straight": [-0.3 * k for k in range(41)], "level": [0.0] * 41}
    curves["shaken"] = [-0.02 * k + 0.3 * math.sin(3.7 * k) for k in range(41)]
    table = tables.joined({name: _table(curve) for name, curve in curves.items()})
    found = laws(tables.summary(table), "m")
    assert [found[name].kind for name in curves] == ["exponential", "none", "none"]
    found = laws(tables.summary(table), "m", evidence=UNEVEN)
    assert [found[name].kind for name in curves] == ["exponential", "none", "exponential"]


def _table(curve):
    layers = range(len(curve))
    metric = ["m"] * len(curve)
    return tables.frame(
        {"layer": layers, "sample": [0] * len(curve), "metric": metric, "value": curve}
    )


def test_an_ending_says_where_a_network_arrived_and_by_which_law():
    told = ending("two heads", Law("exponential", 1.0, -0.5, -9.0), 18)
    assert told == (
        "two heads: relative residual 10^−9.0 after 18 layers; "
        "exponential: each layer multiplies the residual by 0.316"
    )


def test_an_ending_is_where_figures_were_last_sure():
    table = _table([0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -50.0])
    table = tables.joined({"one head": table.with_columns(doubt=pl.col("layer") > 5)})
    found = laws(tables.summary(table), "m")["one head"]
    assert ending("one head", found, 6) == (
        "one head: relative residual 10^−5.0 after 5 layers; exponential: each layer multiplies "
        "the residual by 0.1, up to layer 5; later figures are in doubt"
    )


def test_dispersion_is_the_residual_under_another_name(tokens):
    table = compare({"a": PURE}, tokens(1, 5, 8), None, norm="fro").table
    renamed = dispersions(table)
    names = {"log10_residual": DISPERSION, RELATIVE: "log10_relative_dispersion"}
    old, new = table["metric"].to_list(), renamed["metric"].to_list()
    assert new == [names.get(each, each) for each in old]
    assert set(names.values()) <= set(new)
    assert renamed["value"].equals(table["value"])


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
        "up to layer 4; later figures are in doubt"
    )
    assert law_of_medians(doubtful(curve, 9), "m") == law(curve)
    assert sure_medians(doubtful(curve, 2), "m") == [0.0, -1.0]
    nothing = law_of_medians(doubtful(curve, 1), "m")
    assert not nothing.decided
    assert str(nothing) == "all figures from layer 1 on are in doubt"


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
