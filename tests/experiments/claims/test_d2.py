"""Cubic contraction below bounds, and where there is none."""

from dataclasses import replace

import pytest

from rankscope.experiments.claims import d2
from rankscope.experiments.laws import Law
from rankscope.experiments.progress import silent
from rankscope.network import Network, Spec
from rankscope.theory import bounds

from .small import TINY


def test_d2_fails_under_a_causal_mask_and_depends_on_depth() -> None:
    config = TINY["d2"][1]
    assert d2.run(replace(config, mask="causal"), silent).verdict == "fails"
    early = replace(config, layers=5, heads=(1,), inits=("lecun", "orthogonal"))
    found = d2.run(early, silent)
    assert found.verdict == "depends"  # the first has not come to its law yet
    low, high = found.key_figures.values()
    assert low == pytest.approx(3, abs=0.1)
    assert high > 3.1


def test_d2_is_borne_out_by_a_cube_below_bounds_alone() -> None:
    cubic, slower = (Law("doubly exponential", growth, -9.0, -99.0) for growth in (3.0, 2.5))
    assert d2.bears_out(cubic, above=0, checked=4)
    assert not d2.bears_out(cubic, above=1, checked=4)
    assert not d2.bears_out(cubic, above=0, checked=0)
    assert not d2.bears_out(slower, above=0, checked=4)


def test_d2_counts_every_layer_that_is_above_a_bound() -> None:
    x, token_mask = TINY["d2"][1].texts()
    network = Network.random(Spec.pure_attention(3, 1, 16, init="lecun")).double()
    found = bounds(network, x[:1], token_mask=token_mask[:1])
    none, checked = d2.count_above(found)
    raised = tuple(
        replace(layer, log10_residual=layer.log10_residual + 1e3) for layer in found.layers
    )
    assert none == 0 < checked
    assert d2.count_above(replace(found, layers=raised)) == (checked, checked)
