"""Slopes against mpmath and autograd, gains against what MLPs do to rows."""

import mpmath
import pytest
import torch

from rankscope.core.metrics import matrix_norm
from rankscope.core.network import ACTIVATIONS, MLP, IdentityMLP
from rankscope.core.theory.residual_bounds import gated_gain, row_gain, slope_range
from rankscope.errors import InputError

mp = mpmath.mp.clone()
mp.dps = 40


def exact(name):
    root = mp.sqrt(2 / mp.pi)
    return {
        "gelu": lambda z: z * mp.ncdf(z),
        "gelu_tanh": lambda z: z * (1 + mp.tanh(root * (z + mp.mpf("0.044715") * z**3))) / 2,
        "silu": lambda z: z / (1 + mp.exp(-z)),
    }[name]


@pytest.mark.parametrize(
    ("name", "near"), [("gelu", "1.4142"), ("gelu_tanh", "1.41"), ("silu", "2.4")]
)
def test_slopes_are_the_extremes_to_all_digits(name, near):
    """The oracle solves ``φ'' = 0`` in 40 digits."""
    phi = exact(name)
    place = mp.findroot(lambda z: mp.diff(phi, z, 2), mp.mpf(near))
    low, high = slope_range(name)
    assert high == pytest.approx(float(mp.diff(phi, place)), rel=1e-15)
    assert low == pytest.approx(float(mp.diff(phi, -place)), rel=1e-13)


def test_the_known_constants():
    assert slope_range("gelu")[1] == pytest.approx(
        float((1 + mp.erf(1)) / 2 + mp.exp(-1) / mp.sqrt(mp.pi)), rel=1e-15
    )
    assert slope_range("relu") == (0.0, 1.0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_no_slope_of_what_the_network_runs_lies_outside(name):
    z = torch.linspace(-12, 12, 200_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(ACTIVATIONS[name](z).sum(), z)
    low, high = slope_range(name)
    assert low - 1e-12 <= float(slope.min()) < low + 1e-6
    assert high + 1e-12 >= float(slope.max()) > high - 1e-6


def test_an_unknown_activation_is_answered_with_a_sentence():
    with pytest.raises(InputError, match="sine"):
        slope_range("sine")


def made(width, hidden, name, *, gated=False, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)

    def linear(inputs, outputs):
        layer = torch.nn.Linear(inputs, outputs, dtype=torch.float64)
        for parameter in layer.parameters():
            parameter.data.normal_(0.0, scale, generator=generator)
        return layer.requires_grad_(False)

    return MLP(
        up=linear(width, hidden),
        down=linear(hidden, width),
        gate=linear(width, hidden) if gated else None,
        activation=name,
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("skip", [0.0, 0.7])
def test_gains_bound_every_entry_and_are_not_the_plain_product(tokens, name, skip):
    worst = 0.0
    for seed in range(20):
        mlp = made(3, 4, name, seed=seed)
        gain = row_gain(mlp, width=3, skip=skip)
        x, c = 3 * tokens(40, 5, 3, seed=seed), tokens(40, 1, 3, seed=seed + 50)
        moved = (skip * (x - c) + mlp(x) - mlp(c)).abs()
        allowed = (x - c).abs() @ gain
        assert bool((moved <= allowed * (1 + 1e-12)).all())
        worst = max(worst, float((moved / allowed).max()))
        plain = max(map(abs, slope_range(name))) * (mlp.up.weight.T.abs() @ mlp.down.weight.T.abs())
        assert bool((gain <= plain + skip * torch.eye(3).double() + 1e-12).all())
    assert worst > 0.8  # so the check has teeth: a gain a fifth smaller would have failed


def test_a_gain_worked_out_by_hand():
    """ReLU: slopes ½ ± ½, so ``M = |½ W₁W₂| + ½ |W₁||W₂|`` = |½(6 − 4)| + ½(6 + 4) = 6."""
    mlp = made(1, 2, "relu")
    mlp.up.weight.copy_(torch.tensor([[2.0], [-1.0]]))
    mlp.down.weight.copy_(torch.tensor([[3.0, 4.0]]))
    assert row_gain(mlp, width=1).item() == 6.0
    # With a skip: |1 + ½·2| + 5.
    assert row_gain(mlp, width=1, skip=1.0).item() == 7.0


def test_parts_without_weights_have_the_gain_of_the_identity():
    assert torch.equal(row_gain(None, width=2, skip=0.5), torch.eye(2).double())
    assert torch.equal(row_gain(IdentityMLP(), width=2, skip=0.5), 1.5 * torch.eye(2).double())
    assert row_gain(made(2, 3, "silu", gated=True), width=2) is None


def test_the_spectral_norm_would_be_no_bound_in_this_norm():
    """Four tokens, R = I, a Hadamard matrix: the residual grows fourfold, the 2-norm says 2."""
    h = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    hadamard = torch.kron(h, h)
    assert float(torch.linalg.matrix_norm(hadamard, 2)) == pytest.approx(2.0)
    assert float(matrix_norm(torch.eye(4).double() @ hadamard, "composite")) == pytest.approx(4.0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gated_gains_hold_inside_their_ball(tokens, name):
    worst = 0.0
    for seed in range(20):
        mlp = made(3, 4, name, gated=True, seed=seed)
        center, step = tokens(30, 3, seed=seed), tokens(30, 6, 3, seed=seed + 50)
        radius = torch.logspace(-6, 1, 30, dtype=torch.float64)
        step = step / step.abs().sum(-1, keepdim=True) * radius[:, None, None]
        gain = gated_gain(mlp, center, radius, skip=0.3)
        rows = center.unsqueeze(1) + step
        moved = (0.3 * step + mlp(rows) - mlp(center.unsqueeze(1))).abs()
        allowed = step.abs() @ gain
        assert bool((moved <= allowed * (1 + 1e-9) + 1e-14).all())
        worst = max(worst, float((moved / allowed).max()))
    assert worst > 0.5


def test_a_gated_mlp_outgrows_every_gain_outside_its_ball():
    """``φ(g)u`` grows like a square: what holds near the center cannot hold far away."""
    mlp = made(1, 1, "relu", gated=True)
    for part in (mlp.up, mlp.gate, mlp.down):
        part.weight.fill_(1.0)
        part.bias.zero_()
    center, radius = torch.zeros(1, 1).double(), torch.ones(1).double()
    gain = gated_gain(mlp, center, radius).item()
    assert gain == 1.0
    assert mlp(torch.full((1, 1, 1), 1.0).double()).item() == 1.0
    assert mlp(torch.full((1, 1, 1), 2.0).double()).item() == 4.0 > 2 * gain
