"""Networks in which every head expands one feature: no input loses anything, whatever β is."""

import pytest
import torch

from rankscope.core.masks import Full
from rankscope.core.metrics import residual
from rankscope.core.network import Visibility
from rankscope.core.theory.residual_bounds import expanding_network, head_weights, log_paper_beta
from rankscope.errors import InputError


@pytest.mark.parametrize("beta", [1.0, 1e-3])
def test_every_layer_keeps_the_order_of_each_column_and_brings_no_two_entries_closer(tokens, beta):
    x = tokens(3, 7, 4)
    network = expanding_network(6, 4, beta=beta, strength=2.0)
    for after in network.states(x):
        old, order = x.sort(1)
        new = after.gather(1, order)
        assert bool((new.diff(dim=1) > old.diff(dim=1)).all())
        x = after


@pytest.mark.parametrize("norm", ["one", "inf", "composite", "fro"])
def test_no_layer_lowers_the_residual_at_the_best_center(tokens, norm):
    """The least it may be after a layer against the most it may have been before it."""
    x = tokens(4, 6, 3)
    for after in expanding_network(5, 3, beta=0.3).states(x):
        before, now = (
            residual(each, norm=norm, center="optimal", certified=True, tolerance=1e-6)
            for each in (x, after)
        )
        assert bool((now.lower_bound >= before.value).all())
        x = after


def test_an_expansion_is_more_than_a_larger_residual(tokens):
    """Negative values contract: the tests above can fail."""
    x = tokens(4, 6, 3)
    network = expanding_network(1, 3, beta=0.3)
    with torch.no_grad():
        network.blocks[0].attention.value.weight.neg_()
    assert bool((residual(network(x), norm="fro") < residual(x, norm="fro")).all())


def test_beta_is_the_largest_product_of_weights_and_attention_sees_the_tokens(tokens):
    beta, strength = 1e-5, 3.0
    network = expanding_network(4, 5, beta=beta, strength=strength, seed=2)
    for block in network.blocks:
        weights = head_weights(block.attention)
        largest = (log_paper_beta(weights).exp() / 5).item()
        assert beta / 4 <= largest <= beta
        assert strength / 2 <= weights.query_key.abs().max().item() <= strength
    network.blocks[0].attention.value.weight.data *= 1e5
    x = tokens(1, 4, 5)
    added = (network.blocks[0](x, Visibility.of(Full(), 4, None, torch.device("cpu"))) - x)[0]
    assert added.std(0).min() > 1e-3  # tokens receive different rows


def test_what_is_no_size_is_refused():
    for wrong in ({"beta": 0.0}, {"beta": -1.0}, {"beta": 1.0, "strength": float("inf")}):
        with pytest.raises(InputError, match="expected a finite number above 0"):
            expanding_network(1, 2, **wrong)
    assert expanding_network(1, 2, beta=1.0, seed=1).spec.skip == 1.0
