"""Every metric at a value worked out by hand."""

import math

import pytest
import torch

from rankscope.core import metrics as m

# Two tokens (4, 0) and (0, 2): mean (2, 1), differences ±(2, −1).
PAIR = torch.tensor([[4.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
# Three collinear tokens and one odd one; column medians (1, 0), means (1.5, 1).
FOUR = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [4.0, 4.0]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("norm", "expected"),
    [
        ("one", 4.0),  # columns: |2|+|−2|, |−1|+|1|
        ("inf", 3.0),  # rows: |2|+|−1|
        ("composite", math.sqrt(12.0)),
        ("fro", math.sqrt(10.0)),
        ("spectral", math.sqrt(10.0)),  # the two differences are opposite: rank one
    ],
)
def test_residual_of_a_pair(norm: str, expected: float) -> None:
    assert m.residual(PAIR, norm=norm).item() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("norm", "expected"), [("one", 4 / 4), ("inf", 3 / 4), ("composite", math.sqrt(12 / 16))]
)
def test_relative_residual_divides_by_the_norm_of_x(norm: str, expected: float) -> None:
    assert m.residual(PAIR, norm=norm, relative=True).item() == pytest.approx(expected, rel=1e-14)


def test_median_center_minimises_the_one_norm() -> None:
    # around the medians the columns sum to 1+0+0+3 and 0+0+0+4; around the means to 5 and 6
    assert m.residual(FOUR, norm="one", center="median").item() == 4.0
    assert m.residual(FOUR, norm="one", center="mean").item() == 6.0


def test_optimal_center_of_two_tokens_is_any_midpoint_row() -> None:
    # inf norm: the tokens are 6 apart in the one-norm, so no center is nearer than 3 to both
    got = m.residual(PAIR, norm="inf", center="optimal", certified=True)
    assert got.value.item() == pytest.approx(3.0, rel=1e-4)
    assert got.lower_bound.item() == pytest.approx(3.0, rel=1e-4)
    assert got.lower_bound.item() <= got.value.item()


def test_certified_bound_is_below_mean_and_median_too() -> None:
    for center in ("mean", "median", "optimal"):
        got = m.residual(FOUR, center=center, certified=True)
        assert got.lower_bound <= got.value


def test_dispersion() -> None:
    assert m.dispersion(PAIR).item() == pytest.approx(math.sqrt(10.0), rel=1e-14)


def test_spectrum_of_a_diagonal() -> None:
    x = torch.diag(torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64))
    p = torch.tensor([4 / 7, 3 / 7])
    assert m.singular_values(x).tolist() == [4.0, 3.0, 0.0]
    assert m.numerical_rank(x).item() == 2
    assert m.stable_rank(x).item() == pytest.approx(25 / 16)
    assert m.participation_ratio(x).item() == pytest.approx(625 / (256 + 81))
    assert m.spectral_ratio(x).item() == pytest.approx(0.75)
    assert m.effective_rank(x).item() == pytest.approx(math.exp(-(p * p.log()).sum()), rel=1e-6)


def test_numerical_rank_uses_the_epsilon_of_the_dtype_that_came_in() -> None:
    x = torch.diag(torch.tensor([1.0, 1e-4]))
    assert m.numerical_rank(x).item() == 2
    assert m.numerical_rank(x.bfloat16()).item() == 1
    assert m.numerical_rank(x, rtol=1e-3).item() == 1


def test_mean_cosine_counts_pairs_and_keeps_signs() -> None:
    x = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 5.0]])
    assert m.mean_cosine(x).item() == pytest.approx(-1 / 3)
    assert m.mean_cosine(x, exclude=[2]).item() == pytest.approx(-1.0)
    assert m.mean_cosine(x, exclude=[-2, 0]).item() == 1.0


def test_mean_cosine_excludes_positions_among_the_valid_tokens() -> None:
    x = torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    mask = torch.tensor([False, True, True, True])
    assert m.mean_cosine(x, exclude=[0], token_mask=mask).item() == pytest.approx(1.0)
    assert m.mean_cosine(x, exclude=[-1], token_mask=mask).item() == pytest.approx(0.0)


def test_mean_cosine_against_the_pairwise_matrix() -> None:
    x = torch.randn(3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(x, dim=-1)
    pairs = unit @ unit.mT
    off = pairs[:, ~torch.eye(7, dtype=torch.bool)].mean(-1)
    assert torch.allclose(m.mean_cosine(x), off, atol=1e-12)


def test_uniformity_counts_pairs() -> None:
    # at length 1: squared distances 2 (orthogonal), 4 (opposite) and 2
    x = torch.tensor([[2.0, 0.0], [0.0, 3.0], [-1.0, 0.0]], dtype=torch.float64)
    for t in (2.0, 0.5):
        mean = (2 * math.exp(-2 * t) + math.exp(-4 * t)) / 3
        assert m.uniformity(x, t=t).item() == pytest.approx(math.log(mean), rel=1e-13)
    assert m.uniformity(x[:1]).item() == 0.0
    assert m.uniformity(x[:2]).item() == pytest.approx(-4.0, rel=1e-13)


def test_uniformity_of_random_directions() -> None:
    """−2t + 2t²/d, from the variance 1/d of a cosine: −4 + 8/64 here."""
    x = torch.randn(2000, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert m.uniformity(x).item() == pytest.approx(-4 + 8 / 64, abs=5e-3)


def test_uniformity_and_zero_rows() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64, requires_grad=True)
    value = m.uniformity(x)
    assert value.item() == pytest.approx(-4.0)  # cosine 0
    (gradient,) = torch.autograd.grad(value, x)
    assert torch.isfinite(gradient).all()


def test_alignment_is_a_mean_over_pairs() -> None:
    # at length 1: squared distances 0, 2 and 4
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0]], dtype=torch.float64)
    y = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, -2.0]], dtype=torch.float64)
    assert m.alignment(x, y).item() == pytest.approx(2.0, rel=1e-14)
    roots = (math.sqrt(2) + 2) / 3
    assert m.alignment(x, y, alpha=1.0).item() == pytest.approx(roots, rel=1e-14)
    assert m.alignment(x, y, token_mask=torch.tensor([True, True, False])).item() == 1.0
    assert m.alignment(x, torch.zeros_like(x)).item() == 2.0  # unrelated
    near = x + 1e-9 * torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert m.alignment(x[:1], near[:1]).item() == pytest.approx(1e-18, rel=1e-6)


HEADS = torch.tensor(
    [
        [[1.0, 0.0], [0.0, 1.0]],  # identity
        [[0.5, 0.5], [0.5, 0.5]],  # uniform
        [[1.0, 0.0], [0.5, 0.5]],  # causal, uniform
    ],
    dtype=torch.float64,
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (m.attention_entropy, [0.0, math.log(2), math.log(2) / 2]),
        (m.dobrushin, [1.0, 0.0, 0.5]),
        # PᵀP of the third is [[5/4, 1/4], [1/4, 1/4]]: eigenvalues (3 ± √5)/4
        (m.second_singular_value, [1.0, 0.0, math.sqrt((3 - math.sqrt(5)) / 4)]),
        # third: the rows differ by (½, −½) from each other, by half of it from (¾, ¼)
        (m.high_pass_ratio, [1.0, 0.0, math.sqrt(4 / 16) / math.sqrt(2 * (9 / 16 + 1 / 16))]),
    ],
)
def test_attention_metrics(metric, expected: list[float]) -> None:
    assert metric(HEADS).tolist() == pytest.approx(expected, abs=1e-12)


def test_identity_attention_of_n_tokens_has_high_pass_root_n_minus_one() -> None:
    eye = torch.eye(10, dtype=torch.float64).unsqueeze(0)
    assert m.high_pass_ratio(eye).item() == pytest.approx(3.0)
