"""How far attention is from rank one, against other arithmetic and by hand."""

import math

import mpmath
import pytest
import torch

from rankscope.core.theory.residual_bounds import HeadWeights, departure, worst_departure_layer


@pytest.mark.parametrize("size", [1e-9, 1e-3, 1.0])
@pytest.mark.parametrize("causal", [False, True])
def test_departures_agree_with_forty_digits(size: float, causal: bool) -> None:
    """From the logits of whole tokens, in which nothing is taken apart."""
    generator = torch.Generator().manual_seed(3)
    rest, center, bias, matrix = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((4, 3), (3,), (1, 3), (1, 3, 3))
    )
    rest = size * rest
    weights = HeadWeights(matrix, matrix, bias, torch.zeros(3).double(), 0.7)
    visible = torch.ones(4, 4).tril().bool() if causal else None
    found = departure(weights, rest, center, visible)
    with mpmath.workdps(40):
        w, r, c, b = (mpmath.matrix(each.tolist()) for each in (matrix[0], rest, center, bias[0]))
        exact = mpmath.mpf(0.7)
        for i in range(4):
            keys = range(i + 1) if causal else range(4)
            query = (c + r[i, :].T).T * w + b.T
            at_center = c.T * w + b.T
            p, q = (
                [mpmath.exp(exact * (each * (c + r[j, :].T))[0]) for j in keys]
                for each in (query, at_center)
            )
            own = [exact * (r[i, :] * w * r[j, :].T)[0] for j in keys]
            assert found.spread[0, i].item() == pytest.approx(float(max(own) - min(own)))
            for j in keys:
                want = (p[j] / mpmath.fsum(p)) / (q[j] / mpmath.fsum(q)) - 1
                got = found.relative[0, i, j].item()
                assert got == pytest.approx(float(want), rel=1e-8, abs=1e-300)


@pytest.mark.parametrize("spread", [0.01, 1.0, 2.0])
def test_the_worst_layer_is_as_bad_as_can_be(spread: float) -> None:
    found = departure(*worst_departure_layer(spread, 40.0))
    assert found.spread.max().item() == pytest.approx(spread)
    assert found.relative.max().item() == pytest.approx(math.expm1(spread))
    some = departure(*worst_departure_layer(spread, 0.0))  # a key of weight 1/3
    assert some.relative.max().item() == pytest.approx(
        math.exp(spread) / (1 + math.expm1(spread) / 3) - 1
    )
