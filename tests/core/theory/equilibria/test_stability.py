"""The Jacobian of a step and the bounds on its spectral radius."""

import pytest
import torch

from rankscope.core.network import Spec
from rankscope.core.theory import design_values, equilibrium_at, stability_of, step_jacobian


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
    net = design_values(x, net)
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
