"""The Jacobian of a step and the bounds on its spectral radius."""

import math

import pytest
import torch

from rankscope.core.network import Network, Spec
from rankscope.core.theory import (
    design_values,
    equilibrium_at,
    find_equilibria,
    stability_of,
    step_jacobian,
)
from rankscope.errors import InputError, KindError


def test_the_jacobian_is_that_of_central_differences(lively, tokens):
    net = lively(Spec(2, 2, 4, norm="layer", norm_place="post", mask="causal", init="lecun"))
    x, h = tokens(3, 4), 1e-6
    columns = []
    for entry in range(12):
        push = torch.zeros(12, dtype=torch.float64)
        push[entry] = h
        push = push.view(1, 3, 4)
        columns.append(((net(x + push) - net(x - push)) / (2 * h)).flatten().detach())
    assert torch.allclose(step_jacobian(net, x), torch.stack(columns, 1), atol=1e-8)


@pytest.mark.parametrize("norm", ["sphere", "layer"])
def test_the_tangent_space_has_the_spectrum_and_the_rest_is_zero(norm, lively, tokens):
    """The restriction, carried out: a basis of the range's tangent space at each token."""
    spec = Spec(1, 1, 4, mlp_ratio=0, norm=norm, norm_place="post", norm_eps=0.0, init="lecun")
    net = lively(spec)
    after = net.blocks[0].steps[0].after
    x = after(tokens(1, 3, 4))[0].detach()
    net = design_values(net, x)
    jacobian = step_jacobian(net, x)
    bases = []
    for token in x:
        z = token if norm == "sphere" else (token - after.bias) / after.weight
        fixed = [z] if norm == "sphere" else [z, torch.ones_like(z)]
        free = torch.linalg.svd(torch.stack(fixed).detach()).Vh[len(fixed) :].T
        gained = free if norm == "sphere" else after.weight.detach().unsqueeze(-1) * free
        bases.append(torch.linalg.qr(gained).Q)
    basis = torch.block_diag(*bases)
    assert torch.allclose(basis @ basis.T @ jacobian, jacobian, atol=1e-10)
    restricted = torch.linalg.eigvals(basis.T @ jacobian @ basis).abs().sort().values
    whole = torch.linalg.eigvals(jacobian).abs().sort().values
    assert torch.allclose(whole[-len(restricted) :], restricted, rtol=1e-6)
    assert float(whole[: -len(restricted)].max()) < 1e-6
    assert equilibrium_at(net, x).stability.radius == pytest.approx(float(restricted[-1]))


def test_bounds_of_the_radius_hold_far_from_normal():
    shift = torch.diag(torch.ones(5, dtype=torch.float64), 1)
    jordan = 0.9 * torch.eye(6, dtype=torch.float64) + 30 * shift
    assert stability_of(jordan).stable
    assert stability_of(jordan).lower <= 0.9 + 1e-12 <= stability_of(jordan).upper
    # All eigenvalues are zero, but the last place of an entry moves them to 16: no verdict.
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    hidden = stability_of(1e4 * turn @ shift @ turn.T)
    assert hidden.lower == 0.0
    assert not hidden.unstable
    # This one is stable, but one last place in its corner would make the radius 1.05.
    assert not stability_of(0.98 * torch.eye(6, dtype=torch.float64) + 30 * shift).stable
    turned = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    assert stability_of(1.01 * turned).unstable
    assert stability_of(0.99 * turned).stable
    huge = stability_of(1e200 * torch.eye(2, dtype=torch.float64))
    assert huge.radius == pytest.approx(1e200)
    assert huge.unstable
    assert stability_of(torch.zeros(2, 2)).margin == 1.0
    assert stability_of(torch.diag(torch.tensor([0.25, -3.0]))).margin == pytest.approx(2.0, 1e-3)


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
