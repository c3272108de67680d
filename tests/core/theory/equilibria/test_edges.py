"""Equilibria where derivatives or noise would mislead."""

import math

import pytest
import torch

from rankscope.core.network import Network, Spec
from rankscope.core.theory import equilibrium_at, find_equilibria
from rankscope.errors import InputError, KindError


def halving(norm):
    values = 0.5 * torch.eye(2, dtype=torch.float64)[None, None]
    return Network.from_matrices(0 * values, values, head_width=2, norm=norm)


def test_nothing_is_said_of_a_zero_token_on_the_sphere():
    """The step jumps there: a push of 1e-9 lands on the sphere."""
    found = equilibrium_at(halving("sphere"), torch.zeros(1, 2))
    assert not found.stable
    assert not found.stability.unstable
    assert found.distance == math.inf


def test_zero_has_rank_zero_and_is_collapsed():
    found = equilibrium_at(halving("none"), torch.tensor([[1.0, 2.0], [0.5, -1.0]]))
    assert float(found.x.abs().max()) == 0
    assert (found.rank, found.collapsed, found.stable) == (0, True, True)


@pytest.mark.parametrize("polish", [True, False])
def test_the_start_is_left_as_it_was(polish):
    x = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    kept = x.clone()
    found = equilibrium_at(halving("sphere"), x, polish=polish)
    found.x.fill_(7.0)
    assert torch.equal(x, kept)


def test_what_is_too_large_or_no_network_is_refused():
    with pytest.raises(InputError, match="Jacobian"):
        find_equilibria(Network.random(Spec(1, 1, 64)), tokens=64)
    with pytest.raises(KindError, match="Network"):
        find_equilibria("net", tokens=2)
