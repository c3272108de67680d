"""The counterexample to βH: groups against whole matrices, and against other arithmetic."""

import math

import mpmath
import pytest
import torch

from rankscope.core.metrics import matrix_norm, residual
from rankscope.core.theory import bounds
from rankscope.core.theory.residual_bounds import TwoHeadLayer, _two_heads
from rankscope.core.theory.residual_bounds._two_heads import Grouped, least_residual
from rankscope.errors import InputError


@pytest.mark.parametrize(("width", "tokens"), [(40, 12), (9, 30), (200, 5)])
def test_groups_give_what_whole_matrices_give(width, tokens):
    """Every number of the layer from the dense network, by functions that know no groups."""
    made = TwoHeadLayer(width, tokens)
    network, x = made.dense()
    (layer,) = bounds(network, x).layers
    assert layer.condition.all()
    assert 10 ** layer.log10_input_residual.item() == pytest.approx(made.rest.composite, rel=1e-6)
    assert layer.gamma.item() == pytest.approx(made.gamma) == 1.0
    assert 10 ** layer.log10_score_difference.item() == pytest.approx(0.05)
    assert 10 ** layer.log10_a_priori_bound.item() == pytest.approx(made.proved_bound, rel=1e-6)
    ratio = (layer.paper_beta / layer.beta).item()
    assert made.paper_bound / made.proved_bound == pytest.approx(ratio)
    best = residual(network(x), center="optimal", certified=True, tolerance=1e-6)
    assert best.lower_bound.item() * (1 - 1e-9) <= made.residual <= best.value.item() * (1 + 1e-9)


def test_tokens_that_are_alike_are_counted_in_every_softmax(monkeypatch):
    """With a weak preference for tokens 1 and 2 the others have weight, too."""
    monkeypatch.setattr(_two_heads, "_PREFERENCE", 0.5)
    made = TwoHeadLayer(12, 9)
    network, x = made.dense()
    y, rows = network(x)[0].detach(), made.output.dense()
    torch.testing.assert_close(y - y[-1], rows - rows[-1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("width", "ratio"), [(10_000, 0.862), (20_000, 1.007), (30_000, 1.100)])
def test_the_ratio_agrees_with_its_formula_in_other_arithmetic(width, ratio):
    """``v = 2bδ(e_o + 1/√d)``, ``δ = ½ tanh(D/2)``, the center at its first corner."""
    with mpmath.workdps(30):
        d, b, n, spread = mpmath.mpf(width), mpmath.mpf(width - 3), 1500, mpmath.mpf("0.05")
        size = 2 * b * mpmath.tanh(spread / 2) / 2
        tall, flat = size * (1 + 1 / mpmath.sqrt(d)), size / mpmath.sqrt(d)
        rows = tall + (d - 1) * flat
        lowest = tall * (rows - (d - 1) * (tall - flat) / (n - 2))
        kappa = spread / (4 * b / mpmath.sqrt(2))
        bound = 4 * 2 * kappa * mpmath.sqrt(b) * (2 * (b + 2)) ** mpmath.mpf(1.5) / mpmath.sqrt(2)
        want = float(mpmath.sqrt(lowest) / bound)
    made = TwoHeadLayer(width, n)
    assert made.residual / made.paper_bound == pytest.approx(want, rel=1e-6)
    assert made.residual / made.paper_bound == pytest.approx(ratio, abs=5e-4)


def test_the_corrected_constant_is_never_exceeded_and_the_papers_grows_past_one():
    ratios = []
    for width in (10, 100, 10_000, 1_000_000):
        made = TwoHeadLayer(width, width)
        assert made.residual < made.proved_bound / math.sqrt(32)
        ratios.append(made.residual / made.paper_bound)
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(2.796, abs=5e-4)


@pytest.mark.parametrize("tokens", [3, 4, 7, 60])
@pytest.mark.parametrize("counts", [(1, 1, 1), (1, 5, 30), (2, 1, 9)])
def test_the_best_center_of_one_token_among_equal_ones(counts, tokens):
    row = torch.tensor([-3.0, 0.5, 0.125]).double()
    groups = torch.tensor(counts).double()
    x = torch.zeros(tokens, sum(counts), dtype=torch.float64)
    x[0] = row.repeat_interleave(groups.long())
    best = residual(x, center="optimal", certified=True, tolerance=1e-7)
    found = least_residual(row, groups, tokens)
    assert best.lower_bound.item() * (1 - 1e-9) <= found <= best.value.item() * (1 + 1e-9)


def test_grouped_matrices_are_matrices():
    rows, columns, inner = (torch.tensor(each).double() for each in ([2, 1], [1, 3], [4, 1, 2]))
    left = Grouped(torch.tensor([[1.0, -2, 0], [3, 0.5, 4]]).double(), rows, inner)
    right = Grouped(torch.tensor([[1.0, -2], [3, 0.5], [0, 7]]).double(), inner, columns)
    torch.testing.assert_close(left.times(right).dense(), left.dense() @ right.dense())
    for name in ("one", "inf", "composite"):
        assert getattr(left, name) == pytest.approx(matrix_norm(left.dense(), name).item())


def test_sizes_without_room_for_the_construction_are_refused():
    for size in ((4, 10), (10, 4)):
        with pytest.raises(InputError, match="out of range"):
            TwoHeadLayer(*size)
