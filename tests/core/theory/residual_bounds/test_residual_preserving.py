"""Claim 3.1 of Dong et al. 2021: a lower bound for all layers, from what is not written to."""

import pytest
import torch

from rankscope.core.metrics import residual
from rankscope.core.network import Network
from rankscope.core.theory import keeping_network, residual_preserving_network
from rankscope.errors import InputError, KindError


def last(net, x):
    return net(x).detach()


@pytest.mark.parametrize("strength", [0.0, 0.3, 5.0])
@pytest.mark.parametrize(
    ("norm", "center"),
    [
        ("composite", "mean"),
        ("composite", "optimal"),
        ("one", "median"),
        ("inf", "mean"),
        ("fro", "mean"),
        ("spectral", "mean"),
    ],
)
def test_the_kept_features_bound_every_layer_from_below(tokens, strength, norm, center):
    net = residual_preserving_network(40, 5, kept=3, heads=2, strength=strength, values=0.3, seed=4)
    x = tokens(3, 7, 5)
    floor = residual(x[..., :3], norm=norm, center=center, certified=True).lower_bound
    if center == "mean":
        floor = residual(x[..., :3], norm=norm, center=center) * (1 - 1e-12)
    for state in list(net.states(x))[:: 1 if center == "mean" else 13]:
        assert bool((residual(state, norm=norm, center=center) >= floor).all())


def test_the_other_features_are_written_to(tokens):
    net, x = residual_preserving_network(3, 5, kept=3), tokens(2, 7, 5)
    y = last(net, x)
    assert torch.equal(y[..., :3], x[..., :3])
    assert float((y - x)[..., 3:].abs().min()) > 1e-6


def test_with_room_to_write_the_whole_residual_is_kept(tokens):
    net, x = residual_preserving_network(30, 6, kept=3, values=0.5, seed=2), tokens(3, 5, 6)
    x[..., 3:] = 0.7
    assert bool((residual(last(net, x)) >= residual(x)).all())


def test_uniform_attention_changes_no_residual(tokens):
    net, x = (
        residual_preserving_network(30, 4, kept=0, strength=0.0, values=0.2, seed=3),
        tokens(3, 5, 4),
    )
    y = last(net, x)
    assert float((y - x).abs().min()) > 1e-6
    torch.testing.assert_close(residual(y), residual(x), rtol=1e-10, atol=0)


def test_without_the_skip_the_same_weights_collapse(tokens):
    net, x = residual_preserving_network(8, 5, kept=3, strength=0.3), tokens(2, 7, 5)
    gone = residual(last(net.without("skip"), x)) / residual(x[..., :3])
    assert float(gone.max()) < 1e-8


def test_the_proof_needs_the_columns_that_are_not_written():
    """Write −0.9 times what each token attends to, which is itself, and the residual falls."""
    x = torch.tensor([[[1.0], [-1.0]]], dtype=torch.float64)
    matrix = torch.full((1, 1, 1, 1), 1.0, dtype=torch.float64)
    breaking = Network.from_matrices(8 * matrix, -0.9 * matrix, head_width=1, skip=True)
    assert float(residual(last(breaking, x)) / residual(x)) < 0.2


def test_different_parameters_are_different_networks(tokens):
    x = tokens(1, 5, 4)
    outputs = [
        last(residual_preserving_network(2, 4, kept=2, strength=s, values=v, seed=d), x)
        for s, v, d in [(1.0, 1.0, 0), (1.001, 1.0, 0), (1.0, 1.001, 0), (1.0, 1.0, 1)]
    ]
    for i, one in enumerate(outputs):
        for other in outputs[:i]:
            assert not torch.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"kept": 5}, InputError, "kept=5 is out of range; expected 0 to 4"),
        ({"kept": -1}, InputError, "kept=-1 is out of range"),
        ({"kept": True}, KindError, "kept=True is a bool, expected a whole number"),
        ({"kept": 1.0}, KindError, r"kept=1\.0 is a float"),
        ({"kept": 1, "strength": float("nan")}, InputError, "strength=nan is out of range"),
        ({"kept": 1, "values": float("inf")}, InputError, "values=inf is out of range"),
    ],
)
def test_bad_parameters_are_answered_with_a_sentence(wrong, error, words):
    with pytest.raises(error, match=words):
        residual_preserving_network(2, 4, **wrong)


def test_the_former_name_is_the_same_function():
    assert keeping_network is residual_preserving_network
