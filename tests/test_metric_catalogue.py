"""One catalogue for all metrics: complete, without words for what nobody measures, and drawable."""

import pytest
import torch

from rankscope import deep_trace, metric_catalogue, tables, trace
from rankscope.core.metrics import spectra, state_statistics
from rankscope.core.network import Network, Spec
from rankscope.core.paths import head_shares, path_lengths
from rankscope.core.theory import bounds
from rankscope.core.tracing import MEASURES
from rankscope.experiments import CATALOGUE
from rankscope.metric_catalogue import METRICS, Metric, knowing, metric
from rankscope.results import Drawing, Result
from rankscope.show import figures

from .metric_reader import metrics_in, metrics_named, strings_in

TRACED = [name for name, each in METRICS.items() if each.compute]
OWN = [each for entry in CATALOGUE.values() for each in entry.metrics]
"""What a single experiment measures, and keeps the words of."""
EVERY = {**METRICS, **{each.name: each for each in OWN}}
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
from rankscope.experiments.counterparts import OF_TOKENS
_A, _B = "a1", "b1"
ALL = (*OF_TOKENS, "all_of_them")
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
    theirs = {"mean_cosine", "effective_rank", "token_norm", "attention_entropy"}
    ours = "a1 b1_apart c1 d1 d2 d3 e1 e2 f1 g1 h1 i1 i2 j1 k1 k2 l1 m1 n1 n2 log10_o1 all_of_them"
    ours += " p1 p2 p2_log log10_relative_residual"
    assert metrics_named(source) == {*ours.split(), *theirs}


def test_every_metric_the_source_names_has_words():
    named = metrics_in("metric_catalogue")
    with knowing(OWN):
        assert {name: where for name, where in named.items() if not metric(name).definition} == {}


def test_every_metric_that_is_measured_has_words_in_the_catalogue(produced):
    assert [name for name in produced if not metric(name).definition] == []


def test_no_metric_has_words_for_nothing(produced):
    """Packages that only show what others measured do not count."""
    shown = ("metric_catalogue", "show", "cli")
    named = {*metrics_in(*shown), *strings_in(*shown), *produced}
    assert set(EVERY) - named - {name.removeprefix("log10_") for name in named} == set()


def test_a_metric_has_words_in_one_place():
    assert len(metric_catalogue._EVERY) == len(METRICS)
    assert len(EVERY) == len(METRICS) + len(OWN)


def test_what_one_experiment_measures_no_other_does():
    """Else its words belong into the catalogue: a result has those of its experiment alone."""
    named = metrics_in("metric_catalogue", "show", "cli")
    for entry in CATALOGUE.values():
        others = {f"/{other.lower()}.py" for other in CATALOGUE if other != entry.id}
        for each in entry.metrics:
            used = named.get(each.name, set()) | named.get(f"log10_{each.name}", set())
            assert not [where for where in used if where.endswith(tuple(others))], each.name


def test_a_logarithm_has_the_words_of_its_metric():
    base, logarithm = metric("relative_residual"), metric("log10_relative_residual")
    assert (logarithm.title, logarithm.symbol) == (base.title, base.symbol)
    assert (logarithm.scale, logarithm.includes, logarithm.of) == ("exponent", (0.0,), "")
    with knowing([Metric("gap", "Gap", scale="log", marks=((10.0, "ten"), (0.0, "none")))]):
        assert metric("log10_gap").marks == ((1.0, "ten"),)


def test_what_a_result_knows_is_known_where_it_is_shown_alone():
    own = Metric("gap", "Gap between layers", "g", "log", "0 = none at all", "The gap of two.")
    table = tables.from_rows(("layer", "metric", "value"), [(0, "gap", 1.0), (1, "gap", 2.0)])
    result = Result("r", "Gaps", "Do they grow?", (), table, {}, metrics=(own,))
    told = figures.description(Drawing("by_depth", metric="gap"), result)
    assert told.startswith("Gap between layers against depth.")
    assert metric("gap") == Metric("gap", "Gap")


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


@pytest.mark.parametrize("name", EVERY)
def test_words_say_something_in_characters_every_font_has(name):
    with knowing(OWN):
        entry = metric(name)
    assert entry is EVERY[name]
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
    entry = metric("my_own_score")
    assert (entry.title, entry.scale, entry.symbol) == ("My own score", "linear", "")
    assert metric("_").title == "_"
    assert metric("log10_my_score") == Metric("log10_my_score", "My score", scale="exponent")


@pytest.mark.parametrize("name", TRACED)
def test_a_metric_of_a_trace_says_when_it_misleads(name):
    assert len(METRICS[name].misleads.split()) > 8
    assert METRICS[name].misleads.endswith(".")
