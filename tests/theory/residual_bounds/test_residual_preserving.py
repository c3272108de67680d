"""D's claim 3.1: the lower bound holds over many layers, because of what is not written."""

import pytest
import torch

from rankscope.errors import InputError
from rankscope.metrics import residual
from rankscope.network import Network
from rankscope.theory.residual_bounds._residual_preserving import keeping_network


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
    net = keeping_network(40, 5, kept=3, heads=2, strength=strength, values=0.3, seed=4)
    x = tokens(3, 7, 5)
    floor = residual(x[..., :3], norm=norm, center=center, certified=True).lower_bound
    if center == "mean":
        floor = residual(x[..., :3], norm=norm, center=center) * (1 - 1e-12)
    for state in list(net.states(x))[:: 1 if center == "mean" else 13]:
        assert bool((residual(state, norm=norm, center=center) >= floor).all())


def test_the_other_features_are_written_to(tokens):
    net, x = keeping_network(3, 5, kept=3), tokens(2, 7, 5)
    y = last(net, x)
    assert torch.equal(y[..., :3], x[..., :3])
    assert float((y - x)[..., 3:].abs().min()) > 1e-6


def test_with_room_to_write_the_whole_residual_is_kept(tokens):
    net, x = keeping_network(30, 6, kept=3, values=0.5, seed=2), tokens(3, 5, 6)
    x[..., 3:] = 0.7
    assert bool((residual(last(net, x)) >= residual(x)).all())


def test_uniform_attention_changes_no_residual(tokens):
    net, x = keeping_network(30, 4, kept=0, strength=0.0, values=0.2, seed=3), tokens(3, 5, 4)
    y = last(net, x)
    assert float((y - x).abs().min()) > 0.01
    torch.testing.assert_close(residual(y), residual(x), rtol=1e-10, atol=0)


def test_without_the_skip_the_same_weights_collapse(tokens):
    net, x = keeping_network(8, 5, kept=3, strength=0.3), tokens(2, 7, 5)
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
        last(keeping_network(2, 4, kept=2, strength=s, values=v, seed=d), x)
        for s, v, d in [(1.0, 1.0, 0), (1.001, 1.0, 0), (1.0, 1.001, 0), (1.0, 1.0, 1)]
    ]
    for i, one in enumerate(outputs):
        for other in outputs[:i]:
            assert not torch.allclose(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kept": 5},
        {"kept": -1},
        {"kept": True},
        {"kept": 1.0},
        {"kept": 1, "strength": float("nan")},
        {"kept": 1, "values": float("inf")},
    ],
)
def test_bad_parameters_are_answered_with_a_sentence(wrong):
    with pytest.raises(InputError, match="out of range"):
        keeping_network(2, 4, **wrong)
