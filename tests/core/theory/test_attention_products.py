"""Rates of collapse: values by hand, 60-digit arithmetic, and the bound against matrices."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.core.masks import Causal, as_mask, causal_window, from_edges, window
from rankscope.core.metrics import dobrushin
from rankscope.core.theory import (
    a_priori_log_decay,
    a_priori_log_loss,
    a_priori_rate,
    class_weights,
    ergodicity,
    graph_facts,
    limit_weights,
    perron_weights,
    second_eigenvalue,
    second_modulus,
    smallest_allowed_weight,
)
from rankscope.errors import InputError, KindError, ShapeError

INF = math.inf


def double(rows):
    return torch.tensor(rows, dtype=torch.float64)


def weights(allowed, epsilon, generator, *, one_key=False):
    """A random matrix whose allowed weights are ``epsilon`` at least, the rest spread or on one."""
    spread = torch.rand(allowed.shape, generator=generator, dtype=torch.float64) ** 3 + 1e-9
    spread = torch.where(allowed, spread, 0.0)
    if one_key:
        spread = torch.zeros_like(spread).scatter(-1, spread.argmax(-1, keepdim=True), 1.0)
    rest = 1 - epsilon * allowed.double().sum(-1, keepdim=True)
    return epsilon * allowed.double() + rest * spread / spread.sum(-1, keepdim=True)


# What the graph guarantees.


def test_rate_by_hand():
    assert a_priori_rate(0.5, 1).item() == pytest.approx(0.5, rel=1e-15)
    assert a_priori_rate(0.5, 2).item() == pytest.approx(math.sqrt(0.75), rel=1e-15)
    assert a_priori_rate(double([0.0, 1.0]), 3).tolist() == [1, 0]
    assert a_priori_rate(0.5, INF).item() == 1
    assert a_priori_rate(0.5, 0).item() == 0
    assert a_priori_rate(torch.rand(2, 3), 2).shape == (2, 3)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-17, 1e-5, 0.03, 0.3, 0.5, 0.9, 1 - 1e-9])
@pytest.mark.parametrize("radius", [1, 2, 7, 1000])
def test_rate_in_sixty_digits(epsilon, radius):
    with mpmath.workdps(60):
        power = mpmath.mpf(epsilon) ** radius
        # log1p by its first terms where 1 − ε^r would need more digits than there are.
        logarithm = power + power**2 / 2 if power < 1e-40 else -mpmath.log(1 - power)
        decay = mpmath.log(logarithm / radius)
        rate = mpmath.exp(-logarithm / radius)
    assert a_priori_log_decay(epsilon, radius).item() == pytest.approx(
        float(decay), rel=2e-15, abs=2e-14
    )
    assert a_priori_rate(epsilon, radius).item() == pytest.approx(float(rate), rel=1e-13)


@pytest.mark.parametrize(("epsilon", "radius"), [(-0.1, 1), (1.1, 1), (math.nan, 1), (0.5, -1),
                                                 (0.5, 1.5), (0.5, math.nan)])  # fmt: skip
def test_rates_that_make_no_sense(epsilon, radius):
    with pytest.raises(InputError, match=r"epsilon is|radius is"):
        a_priori_rate(epsilon, radius)


def holds(tau, epsilon, radius, *, broken=0):
    """τ of r layers ≤ 1 − ε^r; ``broken`` asks for as much after fewer layers."""
    return tau <= 1 - epsilon ** (radius - broken) + 1e-14


@settings(max_examples=120, deadline=None)
@given(
    tokens=st.integers(2, 9),
    density=st.floats(0, 1),
    share=st.floats(0.01, 1),
    one_key=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_the_bound_is_never_broken(tokens, density, share, one_key, seed):
    generator = torch.Generator().manual_seed(seed)
    allowed = torch.rand(tokens, tokens, generator=generator) < density
    allowed |= torch.eye(tokens).bool() | causal_window(1).matrix(tokens)  # so that a center exists
    facts = graph_facts(allowed)
    epsilon = share / int(allowed.sum(-1).max())
    radius = int(facts.contracts_after)
    layers = [weights(allowed, epsilon, generator, one_key=one_key) for _ in range(2 * radius)]
    found = ergodicity(layers)
    least = min(float(smallest_allowed_weight(p, allowed)) for p in layers)
    assert least == pytest.approx(epsilon, rel=1e-9) or least > epsilon
    assert holds(found.products[radius - 1], epsilon, radius)
    assert found.products[-1] <= a_priori_rate(epsilon, radius) ** (2 * radius) + 1e-14


@pytest.mark.parametrize("tokens", [2, 3, 5])
def test_a_chain_attains_the_bound_and_catches_a_broken_one(tokens):
    """Each token leaves ε to the one before: after r = n − 1 layers rows 0 and r share ε^r."""
    epsilon, radius = 0.3, tokens - 1
    p = (1 - epsilon) * torch.eye(tokens, dtype=torch.float64)
    p += epsilon * torch.ones(radius, dtype=torch.float64).diag(-1)
    p[0, 0] = 1
    assert graph_facts(p > 0).contracts_after == radius
    tau = ergodicity([p] * radius).products[-1]
    assert tau.item() == pytest.approx(1 - epsilon**radius, rel=1e-14)
    assert holds(tau, epsilon, radius)
    assert not holds(tau, epsilon, radius, broken=1)
    assert not holds(tau, 1.01 * epsilon, radius)


def test_a_center_that_cannot_wait_guarantees_nothing():
    """Two tokens that swap: radius 1, weights 1, yet τ stays 1."""
    swap = double([[0, 1], [1, 0]])
    facts = graph_facts(swap > 0)
    assert facts.radius == 1
    assert ergodicity([swap] * 3).products.tolist() == [1, 1, 1]
    assert a_priori_rate(1.0, facts.contracts_after).item() == 1


def test_smallest_allowed_weight():
    p = double([[[1.0, 0.0], [0.2, 0.8]], [[0.4, 0.6], [0.1, 0.9]]])
    assert smallest_allowed_weight(p, Causal().matrix(2)).tolist() == [0.2, 0.1]
    assert smallest_allowed_weight(p, torch.ones(2, 2).bool()).tolist() == [0, 0.1]
    with pytest.raises(KindError, match="boolean"):
        smallest_allowed_weight(p, torch.ones(2, 2))
    with pytest.raises(ShapeError, match=r"\(3, 3\)"):
        smallest_allowed_weight(p, torch.ones(3, 3).bool())


# What matrices do.


def test_ergodicity_by_hand():
    """Rows of the identity are 1 apart; each further layer halves that."""
    p = double([[1, 0], [0.5, 0.5]])
    found = ergodicity(iter([torch.eye(2).double(), p, p]))
    assert found.coefficients.tolist() == [1, 0.5, 0.5]
    assert found.products.tolist() == pytest.approx([1, 0.5, 0.25], rel=1e-15)
    assert found.rate.item() == pytest.approx(0.25 ** (1 / 3), rel=1e-15)


def test_layers_multiply_from_the_left():
    """Token 0 copies token 2 before, or after, tokens 0 and 1 are mixed."""
    mix = double([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])
    copy = double([[0, 0, 1], [0, 1, 0], [0, 0, 1]])
    assert ergodicity([mix, copy]).products[1].item() == pytest.approx(1)
    assert ergodicity([copy, mix]).products[1].item() == pytest.approx(0.5)


def test_products_are_dobrushin_of_the_product(tokens):
    logits = tokens(6, 2, 3, 5, 5)
    p = logits.softmax(-1)
    found = ergodicity(p)
    product = torch.eye(5).double().expand(2, 3, 5, 5)
    for layer in range(6):
        product = p[layer] @ product
        torch.testing.assert_close(
            found.coefficients[layer], dobrushin(p[layer]), rtol=0, atol=1e-15
        )
        torch.testing.assert_close(found.products[layer], dobrushin(product), rtol=1e-9, atol=1e-15)
    assert found.rate.shape == (2, 3)


def test_products_far_below_the_last_place_of_float64(tokens):
    """Twelve layers at τ ≈ 10⁻⁴, against products in 200 digits."""
    layers = (0.0003 * tokens(12, 4, 4)).softmax(-1)
    layers = layers / layers.sum(-1, keepdim=True)
    found = ergodicity(layers)
    with mpmath.workdps(200):
        product = mpmath.eye(4)
        for layer in layers.tolist():
            exact = mpmath.matrix(layer)
            for row in range(4):
                total = sum(exact[row, :])
                for key in range(4):
                    exact[row, key] /= total
            product = exact * product
        tau = max(
            sum(abs(product[i, key] - product[other, key]) for key in range(4)) / 2
            for i in range(4)
            for other in range(4)
        )
    assert tau < 1e-40
    assert found.log_products[-1].item() == pytest.approx(float(mpmath.log(tau)), rel=1e-12)


def test_ergodicity_after_equal_rows():
    equal = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    found = ergodicity([equal, torch.eye(3).double()])
    assert found.coefficients.tolist() == [0, 1]
    assert found.log_products.tolist() == [-INF, -INF]


@pytest.mark.parametrize("tokens", [2, 3, 7])
def test_rows_that_agree_but_for_rounding(tokens):
    """What is left is rounding, whose rows do not sum to zero; it is small, and no error."""
    generator = torch.Generator().manual_seed(tokens)
    row = torch.rand(tokens, generator=generator, dtype=torch.float64)
    for noise in (torch.eye(tokens).double(), torch.ones(tokens, tokens).double().triu()):
        p = (row / row.sum()).expand(tokens, tokens) * (1 + 2.0**-52 * noise)
        found = ergodicity([p, p, p])
        assert (found.products <= 1e-15).all()
        assert (found.log_products.diff() < -20).all()
    assert ergodicity([double([[0.5, 0.5], [0.5 - 2**-54, 0.5]])] * 2).products.max() <= 1e-15


def test_ergodicity_ignores_padding(tokens):
    p = tokens(3, 2, 4, 4).softmax(-1)
    token_mask = torch.tensor([[1, 1, 0, 1, 1, 0]] * 2).bool()
    wide = torch.full((3, 2, 6, 6), math.nan, dtype=torch.float64)
    real = token_mask[0].nonzero().flatten()
    wide[..., real[:, None], real] = p
    found, wanted = ergodicity(wide, token_mask=token_mask), ergodicity(p)
    torch.testing.assert_close(found.coefficients, wanted.coefficients, rtol=1e-14, atol=0)
    torch.testing.assert_close(found.log_products, wanted.log_products, rtol=1e-13, atol=0)


def test_ergodicity_refuses():
    with pytest.raises(InputError, match="no attention matrices"):
        ergodicity([])
    with pytest.raises(ShapeError, match=r"layer 2 has a matrix of shape \(3, 3\)"):
        ergodicity([torch.eye(2), torch.eye(3)])
    with pytest.raises(ShapeError, match="layer 1 is"):
        ergodicity(torch.eye(2))
    with pytest.raises(InputError, match="not a probability distribution"):
        ergodicity([2 * torch.eye(2)])


# What uniform attention forgets.


def test_second_eigenvalues_by_hand():
    """Causal: the diagonal 1, ½, ⅓, …; a ring of n: ⅓(1 + 2cos 2π/n); separate blocks: 1 twice."""
    assert second_eigenvalue("full", 5) == pytest.approx(0.0, abs=1e-12)
    assert second_eigenvalue(as_mask("causal"), 5) == pytest.approx(0.5)
    ring = from_edges(6, [(j % 6, i) for i in range(6) for j in (i - 1, i, i + 1)])
    assert second_eigenvalue(ring, 6) == pytest.approx((1 + 2 * math.cos(math.pi / 3)) / 3)
    assert second_eigenvalue("block:2", 4) == pytest.approx(1.0)
    assert second_eigenvalue("full", 1) == 0.0
    # Hundreds of equal eigenvalues on the diagonal, and none of them blurred.
    assert [second_eigenvalue(f"causal-window:{reach}", 300) for reach in (1, 4)] == [0.5, 0.5]


def test_second_moduli_are_those_of_numpy_however_small():
    """Of random matrices, and of uniform ones plus ε times what has a known eigenvalue."""
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(3, 5, 5, dtype=torch.float64, generator=generator)
    p /= p.sum(-1, keepdim=True)
    sizes = np.sort(np.abs(np.linalg.eigvals(p.numpy())), axis=-1)[:, -2]
    assert second_modulus(p).tolist() == pytest.approx(sizes.tolist())
    epsilon = 2.0**-40
    tilted = torch.full((4, 4), 0.25, dtype=torch.float64)
    tilted[:2, :2] += epsilon
    tilted[:2, 2:] -= epsilon
    tilted[2:, :2] -= epsilon
    tilted[2:, 2:] += epsilon  # (1, 1, −1, −1) is multiplied by 4ε
    assert float(second_modulus(tilted)) == pytest.approx(4 * epsilon, rel=1e-3)
    assert second_modulus(torch.ones(3, 1, 1)).tolist() == [0.0] * 3
    first, second = (as_mask(f"block:{size}").matrix(48).double() / size for size in (16, 24))
    assert float(second_modulus(second @ first)) == pytest.approx(2 / 3)  # of blocks of 8: 44 zeros


@pytest.mark.parametrize("mask", ["causal", "window:2", "star:1", "causal-window:2"])
def test_the_second_eigenvalue_is_the_rate_in_the_long_run(mask):
    """Causal attention of 6 tokens has a simple second eigenvalue, and so have the others."""
    allowed = as_mask(mask).matrix(6).double()
    p = allowed / allowed.sum(-1, keepdim=True)
    logs = ergodicity([p] * 80).log_products
    rate = float((logs[-1] - logs[-2]).exp())
    assert rate == pytest.approx(second_eigenvalue(mask, 6), rel=1e-6)


def test_second_eigenvalue_refuses_what_is_no_number_of_tokens():
    with pytest.raises(KindError, match="whole number"):
        second_eigenvalue("full", 2.0)
    with pytest.raises(InputError, match="tokens=0"):
        second_eigenvalue("full", 0)


def test_a_short_repr():
    found = ergodicity([double([[1, 0], [0.5, 0.5]])] * 40)
    assert (
        repr(found) == "Ergodicity(40 layers; τ of a layer 0.5, of the product 10^−12.04; rate 0.5)"
    )
    many = repr(ergodicity(torch.rand(30, 8, 12, 4, 4).softmax(-1)))
    assert "30 layers, batch (8, 12)" in many
    assert len(many) < 200


def test_what_a_layer_loses_at_least():
    """ε = 1/2 and radius 2: after two layers at most 3/4 is left, so 1 − √(3/4) is lost in each."""
    assert a_priori_log_loss(0.5, 2) == pytest.approx(math.log(1 - math.sqrt(0.75)))
    assert a_priori_log_loss(1e-9, 40) == pytest.approx(40 * math.log(1e-9) - math.log(40))
    assert a_priori_log_loss(0.0, 1) == a_priori_log_loss(0.5, math.inf) == -math.inf


def test_weights_in_the_limit_are_rows_of_the_product():
    first, second = double([[1, 0], [0.5, 0.5]]), double([[0.25, 0.75], [0, 1]])
    (found,) = limit_weights([first, second], [[0, 1]])
    assert found.tolist() == pytest.approx((second @ first).mean(0).tolist())


def test_perron_by_hand():
    """Causal attention listens to the first token alone; a window to its weights' balance."""
    causal = (torch.ones(4, 4).tril() / torch.arange(1, 5)[:, None]).double()
    assert perron_weights(causal).tolist() == [1, 0, 0, 0]
    # Uniform over a window: as many votes as neighbours, since the graph is symmetric.
    allowed = window(1).matrix(4).double()
    assert perron_weights(allowed / allowed.sum(-1, keepdim=True)).tolist() == pytest.approx(
        [0.2, 0.3, 0.3, 0.2], rel=1e-15
    )
    assert perron_weights(torch.ones(1, 1)).tolist() == [1]
    swap = double([[0, 1], [1, 0]])
    assert perron_weights(swap).tolist() == [0.5, 0.5]


def test_perron_of_nearly_separate_tokens():
    """They listen to each other with 10⁻¹⁸ and 3·10⁻¹⁸, which no eigenvalue solver sees."""
    p = double([[1, 1e-18], [3e-18, 1]])
    assert perron_weights(p).tolist() == pytest.approx([0.75, 0.25], rel=1e-15)


def test_perron_is_what_powers_tend_to(tokens):
    p = tokens(2, 3, 6, 6).softmax(-1)
    limit = torch.linalg.matrix_power(p, 200)
    torch.testing.assert_close(
        perron_weights(p), limit[..., 0, :], rtol=1e-12, atol=0, check_stride=False
    )
    p[..., :3, 3:] = 0  # tokens 0 to 2 are closed, the others pass on
    p /= p.sum(-1, keepdim=True)
    limit = torch.linalg.matrix_power(p, 400)
    torch.testing.assert_close(perron_weights(p), limit[..., 5, :], rtol=1e-11, atol=1e-15)
    assert (perron_weights(p)[..., 3:] == 0).all()


def test_perron_of_two_closed_classes():
    p = double([[0.5, 0.5, 0, 0], [0.25, 0.75, 0, 0], [0, 0, 1, 0], [0.1, 0.2, 0.3, 0.4]])
    first, second = class_weights(p)
    assert first.tolist() == pytest.approx([1 / 3, 2 / 3, 0, 0], rel=1e-15)
    assert second.tolist() == [0, 0, 1, 0]
    with pytest.raises(InputError, match="2 closed classes"):
        perron_weights(p)
    with pytest.raises(ShapeError, match=r"one \(query, key\) matrix"):
        class_weights(p.unsqueeze(0))


def test_perron_against_numpy():
    generator = np.random.default_rng(0)
    p = generator.random((7, 7)) ** 4
    p /= p.sum(1, keepdims=True)
    values, vectors = np.linalg.eig(p.T)
    wanted = vectors[:, values.argmax()].real
    assert perron_weights(torch.from_numpy(p)).numpy() == pytest.approx(
        wanted / wanted.sum(), rel=1e-12
    )


def test_weights_at_the_end_of_the_floats():
    drift = torch.diag(torch.full((599,), 0.9, dtype=torch.float64), 1)
    drift += torch.diag(torch.full((599,), 0.1, dtype=torch.float64), -1)
    drift[0, 0], drift[-1, -1] = 0.1, 0.9
    (weights,) = class_weights(drift)
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights[-1] / weights[-2]) == pytest.approx(9)
    tiny = torch.tensor([[0.5, 0.5], [1e-320, 1.0]], dtype=torch.float64)
    assert class_weights(tiny)[0].tolist() == [0.0, 1.0]
