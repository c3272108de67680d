"""Bounds as people meet them: the table, the sentences, and what a notebook shows."""

from dataclasses import replace

import pytest
import torch

from rankscope.core.deep import deep_trace
from rankscope.core.network import Network, Spec
from rankscope.core.theory import bounds
from rankscope.core.theory.residual_bounds import BOUNDS, MEASURED, Bounds

PURE = {"skip": False, "norm": "none", "init": 0.3}


def test_the_table_has_a_row_for_all_and_null_where_nothing_is_known(lively, tokens):
    net = lively(Spec(2, 2, 4, **{**PURE, "layer_masks": ["full", "causal"]}))
    table = bounds(net, 0.1 * tokens(3, 5, 4)).table
    assert table.columns == ["layer", "sample", "metric", "value"]
    assert table.height == 2 * 3 * (len(MEASURED) + len(BOUNDS) + 1)
    unknown = table.filter(table["value"].is_null())
    assert unknown["layer"].unique().to_list() == [2]
    assert set(unknown["metric"]) == {*BOUNDS, *MEASURED[2:], "condition"}
    assert table["value"].is_nan().sum() == 0


def test_sentences_say_what_was_measured_and_its_bounds(lively, tokens):
    net = lively(Spec(3, 1, 4, mlp_ratio=0.0, **PURE))
    words = bounds(net, 0.01 * tokens(2, 5, 4)).sentences
    assert len(words) == 6
    assert words[0].startswith("γ ")
    assert "shrinks in layers 1, 2, 3" in words[0]
    assert "residual is 10^−" in words[1]
    assert all("at most 10^−" in line for line in words[2:])
    assert not any("says nothing" in line for line in words)
    assert "theorem of Dong et al. 2021" in words[2]
    loud = bounds(net, 3 * tokens(1, 5, 4)).sentences
    assert any("differ by at most 1.2564" in line for line in loud)
    assert any("says nothing in 1 of 1 samples" in line for line in loud)


def test_doubts_about_residuals_are_told_and_marked():
    """Tokens saturate on one of them: what is between them is not kept."""
    spec = Spec.pure_attention(4, 1, 4, init=2.0, mask="causal")
    net = Network.random(spec, seed=5, dtype=torch.float64)
    generator = torch.Generator().manual_seed(5)
    stark = torch.randn(1, 3, 4, generator=generator, dtype=torch.float64)
    found = bounds(net, torch.cat([1e-3 * stark, stark]))
    deep = deep_trace(net, torch.cat([1e-3 * stark, stark]))
    note = deep.provenance.notes["doubt"]
    assert found.sentences[-1] == f"Note: {note}."
    assert f"Note: {note}." in found._repr_html_()
    assert repr(found).endswith("; residuals in doubt)")
    table = found.table
    doubted = deep.table.filter("doubt", metric="log10_residual").select("layer", "sample").rows()
    assert doubted
    own = table.filter("doubt", metric="log10_residual").select("layer", "sample").rows()
    assert sorted(own) == sorted(doubted)
    of_input = table.filter("doubt", metric="log10_input_residual").select("layer", "sample").rows()
    assert sorted(of_input) == sorted((layer + 1, s) for layer, s in doubted if layer < 4)
    assert table.filter("doubt", metric="log10_depth_input_bound").is_empty()
    calm = bounds(net, 1e-3 * stark)
    assert calm.doubts == ()
    assert "doubt" not in calm.table.columns
    assert "doubt" not in repr(calm) + calm._repr_html_() + "".join(calm.sentences)


@pytest.mark.parametrize(("layers", "samples"), [(1, 1), (6, 8)])
def test_a_short_repr(lively, tokens, layers, samples):
    found = bounds(lively(Spec(layers, 1, 4, mlp_ratio=0.0, **PURE)), 0.01 * tokens(samples, 5, 4))
    size = "1 layer, 1 sample" if layers == 1 else f"{layers} layers, {samples} samples"
    assert f"Bounds({size}; residual 0." in repr(found)
    assert "by Dong et al. 2021)" in repr(found)
    assert len(repr(found)) < 300
    assert len(repr(found.layers[0])) < 300
    assert repr(found.layers[0]).startswith("LayerBounds(layer 1; residual ")


def test_a_repr_says_briefly_why_nothing_applies(lively, tokens):
    net, x = lively(Spec(2, 2, 4, **PURE | {"skip": True})), 0.1 * tokens(2, 5, 4)
    found = bounds(net, x)
    assert "does not apply (layer 1: a skip" in repr(found)
    assert "no bound: a skip" in repr(found.layers[0])
    long = replace(found.layers[0], why_not="word " * 500, why_not_a_priori="word " * 500)
    for short in (repr(Bounds((long,))), repr(long)):
        assert len(short) < 600
        assert "…" in short


def test_a_table_for_notebooks(lively, tokens):
    (one,) = bounds(lively(Spec(1, 1, 4, mlp_ratio=0.0, **PURE)), 0.01 * tokens(2, 5, 4)).layers
    html = Bounds(tuple(replace(one, layer=layer) for layer in range(1, 41)))._repr_html_()
    assert "<b>Residual and its bounds (largest of 2 samples" in html
    assert "Dong et al. 2021, all layers" in html
    assert html.count("<tr>") == html.count("</tr>") == 1 + 12 + 1
    assert ">40</td>" in html
    assert ">20</td>" not in html
    assert "does not apply" not in html
    assert "http" not in html
    assert len(html) < 10_000


def test_a_table_for_notebooks_escapes_what_it_shows(lively, tokens):
    net = lively(Spec(2, 2, 4, **{**PURE, "layer_masks": ["full", "causal"]}))
    found = bounds(net, 0.1 * tokens(3, 5, 4))
    odd = replace(found.layers[1], why_not_a_priori="<script>alert(1)</script>")
    html = Bounds((found.layers[0], odd))._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script" not in html
    assert html.count(">–</td>") == 6  # the second layer has no bound
