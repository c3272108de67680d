"""One catalogue for all metrics: complete, without words for what nobody measures, and drawable."""

import pytest
import torch

from rankscope import deep_trace, metric_catalogue, trace
from rankscope.core.metrics import spectra, state_statistics
from rankscope.core.network import Network, Spec
from rankscope.core.paths import head_shares, path_lengths
from rankscope.core.theory import bounds
from rankscope.core.tracing import MEASURES
from rankscope.metric_catalogue import METRICS, Metric, metric
from rankscope.show.figures import metric_words

from .metric_reader import metrics_in, metrics_named

TRACED = [name for name, each in METRICS.items() if each.compute]
# What fonts have that pictures fall back on; superscripts and subscripts come out as boxes.
DRAWABLE = {chr(code) for code in range(0x20, 0x180)} | set("ΣστμΠαβγλ‖′−")


@pytest.fixture(scope="module")
def produced():
    """The metrics of everything that can be measured of a small network."""
    net = Network.random(Spec(2, 2, 4, mlp_ratio=0, norm="none", skip=False), dtype=torch.float64)
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = [trace(net, x, metrics=TRACED), deep_trace(net, x), bounds(net, x)]
    found += [path_lengths(net, x), head_shares(net, x)]
    return {name for each in found for name in each.table["metric"]}


def test_the_reader_reads_every_way_to_name_a_metric():
    """If this one fails, those that use it say nothing."""
    source = '''
"""log10_docstring"""
from rankscope.core.theory._bounds import MEASURED
_A, _B = "a1", "b1"
ALL = (*MEASURED, "all_of_them")
frame({"metric": ["c1"] * 3 + [_A], "value": [1.0], "variant": ["no"]})
frame({"metric": names, "layer": [1]})
names = [f"{_B}_apart" for _ in range(3)]
weights = {"d1": 1.0, "d2": 2.0}
frame({"metric": [name for name in weights for _ in range(3)]})
numbers = {"d3": 3.0}
frame({"metric": list(numbers), "value": list(numbers.values())})
trace(net, x, metrics={"e1": f, "e2": g}, title="no")
trace(net, x, metrics=("f1",))
Drawing("by_depth", "A caption.", "g1", only={"variant": ("no",)})
rows.filter((pl.col("metric") == "h1") & (pl.col("layer") == "no"))
rows.filter(pl.col("metric").is_in(["i1", "i2"]))
rows.with_columns(pl.lit("j1").alias("metric"), pl.lit("no").alias("variant"))
rows.with_columns(pl.col("metric").replace({"k1": "k2"}))
columns["metric"] += ["l1"] * 2
columns["variant"] += ["no"]
for metric, value in {"m1": 1.0}.items():
    pass
for metric in ALL:
    pass
for layer, metric in [(0, "n1"), (1, "n2")]:
    pass
rows.append((3, "log10_o1", values))
columns = ("layer", "metric", "value")
lines = [(*label, "p1", 2.0) for label in labels]
lines += [(0, _P, 1.0), ("no", f"{_P}_log", 3.0)]
_P = "p2"
tables.from_rows(columns, lines)
from rankscope.experiments import depths as deep
Drawing("by_depth", "A caption.", deep.RELATIVE)
name.startswith("log10_")
'''
    theirs = {"log10_input_residual", "log10_residual", "log10_score_difference", "gamma", "beta"}
    ours = "a1 b1_apart c1 d1 d2 d3 e1 e2 f1 g1 h1 i1 i2 j1 k1 k2 l1 m1 n1 n2 log10_o1 all_of_them"
    ours += " p1 p2 p2_log log10_relative_residual"
    assert metrics_named(source) == {*ours.split(), *theirs, "paper_beta", "lipschitz"}


def test_every_metric_the_source_names_is_in_the_catalogue():
    named = metrics_in("metric_catalogue")
    assert {name: where for name, where in named.items() if name not in METRICS} == {}


def test_every_metric_that_is_measured_is_in_the_catalogue(produced):
    assert produced - set(METRICS) == set()


def test_nothing_in_the_catalogue_is_unused(produced):
    """Rooms that only show what others measured do not count."""
    named = metrics_in("metric_catalogue", "figures", "report", "cli")
    assert set(METRICS) - set(named) - produced == set()


def test_a_trace_knows_those_it_can_compute():
    assert list(MEASURES) == TRACED
    assert len(TRACED) >= 13
    for name, measure in MEASURES.items():
        assert (measure.name, measure.of) == (name, METRICS[name].of)
        assert callable(measure.compute)
    assert all(bool(each.of) == bool(each.compute) for each in METRICS.values())


@pytest.mark.parametrize("name", [name for name in TRACED if METRICS[name].collapse])
def test_collapse_is_where_the_catalogue_says(name):
    """Tokens that are all equal, or queries that all look alike, beside random ones."""
    measure = MEASURES[name]
    generator = torch.Generator().manual_seed(0)
    apart = torch.randn(1, 5, 7, dtype=torch.float64, generator=generator)
    if measure.of == "attention":
        apart = (5 * torch.randn(1, 2, 5, 5, dtype=torch.float64, generator=generator)).softmax(-1)
    alike = apart.mean(-2, keepdim=True).expand_as(apart)
    prepare = {"statistics": state_statistics, "spectrum": spectra}.get(measure.of, lambda x: x)
    before, after = (measure.compute(prepare(x)) for x in (apart, alike))
    assert (after > before).all() == (METRICS[name].collapse == "up")
    assert (after < before).all() == (METRICS[name].collapse == "down")


@pytest.mark.parametrize("name", METRICS)
def test_words_say_something_in_characters_every_font_has(name):
    entry = metric(name)
    assert entry is METRICS[name]
    assert entry.name == name
    assert entry.title
    assert entry.symbol
    assert 10 < len(entry.meaning) < 60
    assert len(entry.definition) > 20
    assert entry.definition.endswith(".")
    assert (entry.scale == "exponent") == name.startswith("log10_")
    marks = "".join(mark for _, mark in entry.marks)
    assert set(entry.title + entry.symbol + entry.meaning + marks) <= DRAWABLE


def test_residuals_are_logarithmic():
    logarithmic = {name for name in TRACED if METRICS[name].scale == "log"}
    residuals = {"relative_residual", "residual", "dispersion", "relative_dispersion"}
    assert logarithmic == residuals | {"token_norm", "spectral_ratio"}
    shares = ("residual_share", "norm_share", "projection", "proportion")
    assert [METRICS[name].scale for name in shares] == ["log", "log", "linear", "linear"]


def test_an_unknown_metric_keeps_its_name():
    entry = metric_words("my_own_score")
    assert (entry.title, entry.scale, entry.symbol) == ("My own score", "linear", "")
    assert metric("_").title == "_"
    assert metric("log10_my_score") == Metric("log10_my_score", "My score", scale="exponent")


def test_no_metric_has_two_entries():
    assert len(metric_catalogue._EVERY) == len(metric_catalogue.METRICS)
