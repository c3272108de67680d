"""What people see when they type a name: short texts, and small HTML in notebooks."""

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch

from rankscope import (
    Network,
    Spec,
    deep_trace,
    head_shares,
    numerals,
    path_lengths,
    top_paths,
    trace,
)
from rankscope.core.deep import SplitState
from rankscope.core.masks import Causal, Explicit, Full, as_mask, from_edges, window
from rankscope.core.metrics import deviations, spectra
from rankscope.core.network import Described
from rankscope.core.tracing import Provenance, Trace
from rankscope.numerals import short

NET = Network.random(Spec(3, 2, 8, init="lecun"), seed=4)
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
BIG = Explicit.of(torch.ones(300, 300).tril().bool())
EVERY = {
    "network": lambda: NET,
    "deep network": lambda: Network.random(Spec(60, 2, 8, layer_masks=["full", "causal"] * 30)),
    "spec": lambda: NET.spec,
    "spec of many masks": lambda: Spec(60, 2, 8, layer_masks=["full", "causal"] * 30),
    "trace": lambda: trace(NET, X),
    "long trace": lambda: trace(NET.repeat(40), X),
    "deep trace": lambda: deep_trace(NET, X),
    "lengths": lambda: path_lengths(NET, X),
    "many lengths": lambda: path_lengths(NET.repeat(12), X),
    "cut lengths": lambda: path_lengths(NET, X, max_length=1),
    "heads": lambda: head_shares(NET, X),
    "many heads": lambda: head_shares(Network.random(Spec(30, 32, 64)), torch.randn(1, 3, 64)),
    "top": lambda: top_paths(NET, X),
    "many top": lambda: top_paths(NET.repeat(2), X, count=100),
    "top of many layers": lambda: top_paths(NET.repeat(40), X, count=1, budget=2),
    "state": lambda: SplitState.of(X),
    "scaled": lambda: SplitState.of(X).deviation,
    "deviations": lambda: deviations(X),
    "spectra": lambda: spectra(X),
    "explicit": lambda: BIG,
    "edges": lambda: from_edges(400, [(i, i) for i in range(400)]),
    "union": lambda: as_mask("causal & window:8 | star:1 | bigbird:2:1:2"),
    "mixed lengths": lambda: BIG | Causal(),
}
RICH = {"network", "spec", "trace", "long trace", "lengths", "many lengths", "explicit", "union"}
RICH |= {"heads", "many heads", "top", "many top", "top of many layers"}


class Reader(HTMLParser):
    """Reads a piece of HTML: its text, its tags, and whether they close."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.text, self.links = [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self.open.append(tag)

    def handle_startendtag(self, tag, _attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("name", EVERY)
def test_reprs_are_short(name):
    value = EVERY[name]()
    assert 10 < len(repr(value)) <= 600
    assert repr(value).count("\n") <= 1
    assert "object at 0x" not in repr(value)
    assert "tensor(" not in repr(value)


@pytest.mark.parametrize("name", EVERY)
def test_html_is_small_whole_and_loads_nothing(name):
    value = EVERY[name]()
    if name in RICH:
        assert hasattr(value, "_repr_html_")
    if not hasattr(value, "_repr_html_"):
        return
    html = value._repr_html_()
    assert len(html) < 16_000
    read = Reader(html)
    assert read.links == []
    assert not {"script", "link", "img", "iframe"} & set(read.tags)
    assert "url(" not in html


def test_variants_of_a_network_look_different():
    seen = [NET, NET.without("skip"), NET.without("mlp"), NET.with_mask("causal"), NET.repeat(2)]
    seen += [NET.with_norm("rms"), NET.with_identity_mlp(), NET.without_heads((0, 1))]
    assert len({repr(one) for one in seen}) == len(seen)
    assert len({one._repr_html_() for one in seen}) == len(seen)
    assert repr(NET).startswith("Network, seed 4: 3 layers, width 8, 2 heads of width 4, full mask")
    named = Network(NET.spec, NET.blocks, name="mine")
    assert repr(named).startswith("mine: 3 layers")


def test_what_comes_from_outside_is_escaped():
    net = Network(NET.spec, NET.blocks, name="<script>alert(1)</script>")
    for value in (
        net,
        trace(net, X),
        Trace({"layer": [0], "sample": [0], "metric": ["<b>"], "value": [1.0]}, Provenance("&")),
    ):
        html = value._repr_html_()
        assert "<script" not in html
        assert "<b>alert" not in html
        assert "&lt;" in html
    spec = replace(NET.spec, scores=Described("<i>"))
    assert "&lt;i&gt;" in spec._repr_html_()


def test_a_trace_shows_the_means_of_each_layer():
    columns = {
        "layer": [0, 0, 1, 1, 0, 1],
        "sample": [0, 1, 0, 1, 0, 0],
        "metric": ["residual"] * 4 + ["other"] * 2,
        "value": [1.0, 3.0, 0.5, math.nan, -math.inf, 7.0],
    }
    shown = Trace(columns, Provenance("model", seed=2))
    assert repr(shown) == "Trace of model, seed 2: layers 0 to 1, samples 0 to 1; residual, other"
    text = Reader(shown._repr_html_()).text
    assert text == [
        "Trace of model",
        "layer",
        "residual",
        "other",
        "0",
        "2",
        "−∞",
        "1",
        "0.5",
        "7",
    ]


def test_a_long_trace_shows_some_layers_the_last_among_them():
    text = Reader(trace(NET.repeat(40), X)._repr_html_()).text
    assert "120" in text
    assert text.count("0") == 1
    assert len(text) < 140


def test_paths_show_the_shares_of_the_last_layer():
    found = path_lengths(NET, X)
    last = found.table.filter(layer=3, metric="residual_share")
    means = (
        last.drop("metric")
        .group_by("length")
        .mean()
        .sort("length", nulls_last=True)["value"]
        .to_list()
    )
    text = Reader(found._repr_html_()).text
    assert text[:5] == [
        "Paths by length, last layer",
        "length",
        "residual share",
        "norm share",
        "projection",
    ]
    assert [text[5 + 4 * row] for row in range(5)] == ["0", "1", "2", "3", "biases"]
    assert [text[6 + 4 * row] for row in range(5)] == [short(value) for value in means]
    assert f"share in the last layer {short(max(means[:4]))}, of length" in repr(found)


def test_heads_and_top_paths_name_the_largest():
    heads = head_shares(NET, X)
    means = heads.table.filter(metric="residual_share").drop("metric")
    means = means.group_by("layer", "head").mean()
    layer, head, value = means.sort("value")[-1].select("layer", "head", "value").row(0)
    assert repr(heads).endswith(f"residual share {short(value)}, of head {head} in layer {layer}")
    top = top_paths(NET, X, count=2)
    assert repr(top).endswith(
        f"proven; the largest {short(top.values[0], digits=4)}: {top.paths[0]}"
    )


def test_heads_are_shown_layer_by_layer():
    heads = head_shares(NET, X)
    text = Reader(heads._repr_html_()).text
    assert text[1:4] == ["layer", "head 0", "head 1"]
    assert [text[4 + 3 * row] for row in range(3)] == ["1", "2", "3"]
    rows = heads.table.filter(layer=2, head=1, metric="residual_share")
    assert text[9] == short(rows["value"].mean(), digits=2)


def test_top_paths_are_shown_with_what_is_known_of_the_others():
    top = top_paths(NET, X, count=2)
    assert Reader(top._repr_html_()).text == [
        "Paths by residual contribution",
        "path",
        "residual contribution",
        *(word for i in (0, 1) for word in (str(top.paths[i]), short(top.values[i], digits=4))),
        "proven",
    ]
    many = top_paths(NET, X, count=27)
    assert "the largest 25 of 27; proven" in many._repr_html_()
    unsure = replace(top, proven=False, missed_at_most=2e-7)
    assert "not proven: up to 2e−7 missed" in unsure._repr_html_()
    assert str(unsure).endswith("not proven: up to 2e−7 missed")


def test_a_mask_is_drawn():
    html = Causal()._repr_html_()
    assert "16 of 16 tokens" in html
    runs = re.findall(r"M0 (\d+)h(\d+)v\.9", html)
    assert [(int(y), int(length)) for y, length in runs] == [(y, y + 1) for y in range(16)]
    assert "32 of 300 tokens" in BIG._repr_html_()
    assert "path" not in (BIG | Causal())._repr_html_()  # of no length that both are for
    assert window(1)._repr_html_() != Full()._repr_html_()


def test_reprs_of_matrices_differ_as_the_matrices_do():
    """Digests of specs are made of them."""
    one, two = torch.eye(40).bool(), torch.eye(40).bool()
    two[3, 4] = True
    assert repr(Explicit.of(one)) != repr(Explicit.of(two))
    assert repr(Explicit.of(one)) == repr(Explicit.of(one.clone()))
    assert repr(from_edges(2, [(0, 0), (1, 1)])) != repr(from_edges(2, [(0, 0), (0, 1)]))
    assert Spec(1, 1, 2, mask=one).digest() != Spec(1, 1, 2, mask=two).digest()


def test_small_helpers():
    assert numerals.some(range(3)) == [0, 1, 2]
    assert numerals.some(range(101))[-1] == 100
    assert len(numerals.some(range(101))) == numerals.MOST_ROWS
    assert math.isnan(numerals.mean([math.nan]))
    assert numerals.span([]) == "none"
    assert numerals.span([1.0, 1.0]) == "1"
    assert numerals.cut("a" * 300)[-1] == "…"
