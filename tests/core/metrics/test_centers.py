"""Centers against values worked out by hand, linear programs, and what they promise."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar
from torch import Tensor

from rankscope.core.metrics import _centers as centers
from rankscope.core.metrics import _minimax as minimax
from rankscope.core.metrics import mean_center, median_center, optimal_center, residual
from rankscope.errors import InputError

SEARCHED = ("one", "inf", "composite")
ALL = (*SEARCHED, "fro", "spectral")
TOLERANCE = 1e-4


def value(x: Tensor, center: Tensor, norm: str) -> Tensor:
    """The norm of the residual, written once more and differently from the source."""
    r = x - center.unsqueeze(-2)
    if norm == "fro":
        return torch.linalg.vector_norm(r, dim=(-2, -1))
    if norm == "spectral":
        return torch.linalg.svdvals(r)[..., 0]
    columns = torch.linalg.vector_norm(r, ord=1, dim=-2).max(-1).values
    rows = torch.linalg.vector_norm(r, ord=1, dim=-1).max(-1).values
    return {"one": columns, "inf": rows, "composite": columns.sqrt() * rows.sqrt()}[norm]


def data(kind: str, *shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    normal = torch.randn(*shape, generator=g, dtype=torch.float64)
    other = torch.randn(*shape, generator=g, dtype=torch.float64)
    uniform = torch.rand(*shape, generator=g, dtype=torch.float64)
    match kind:
        case "gaussian":
            return normal
        case "heavy":
            return normal / other.abs().clamp(min=1e-3)
        case "sparse":
            return normal * (uniform < 0.3)
        case "outlier columns":
            return normal * torch.where(torch.arange(shape[-1]) < max(1, shape[-1] // 8), 50.0, 1.0)
        case "outlier rows":
            return normal * torch.where(torch.arange(shape[-2]) < 2, 30.0, 1.0)[:, None]
        case "low rank":
            return normal[..., :1] @ other[..., :1, :] + 0.05 * uniform
        case "integers":
            return torch.floor(4 * uniform)
        case "row scales":
            return normal * 10 ** (4 * uniform[..., :1] - 2)
        case "states":  # what a transformer's residual stream looks like
            states = normal + 20 * other[..., :1, :]
            return states * torch.where(torch.arange(shape[-1]) < 2, 50.0, 1.0)
    raise AssertionError(kind)


KINDS = ("gaussian", "heavy", "sparse", "outlier columns", "outlier rows", "low rank", "integers",
         "row scales", "states")  # fmt: skip


def program(x: Tensor, budget: float | None = None) -> float:
    """The least largest row sum, as a linear program in (center, |residual|, largest row sum).

    With a budget, every column sum must stay within it.
    """
    entries = x.numpy().ravel()
    n, d = x.shape
    identity = sp.identity(d)
    center, size = sp.kron(np.ones((n, 1)), identity), sp.identity(n * d)
    rows, columns = sp.kron(sp.identity(n), np.ones((1, d))), sp.kron(np.ones((1, n)), identity)
    none = sp.csr_matrix((n * d, 1))
    blocks = [[-center, -size, none], [center, -size, none], [None, rows, -np.ones((n, 1))]]
    limits = [-entries, entries, np.zeros(n)]
    if budget is not None:
        blocks.append([None, columns, None])
        limits.append(np.full(d, budget))
    cost = np.append(np.zeros(d + n * d), 1.0)
    bounds = [(None, None)] * d + [(0, None)] * (n * d + 1)
    answer = linprog(cost, sp.bmat(blocks).tocsr(), np.concatenate(limits), bounds=bounds)
    assert answer.status == 0, answer.message
    return float(answer.fun)


def composite_program(x: Tensor, upper: float) -> float:
    """The least √(budget × program) over budgets: a grid, then a search around its best point.

    Budgets start at the medians' and end where even the least row sum would exceed ``upper``.
    """
    first = float(value(x, median_center(x, None), "one")) * (1 + 1e-12)
    last = max(upper**2 / program(x), first * (1 + 1e-6))

    def product(budget: float) -> float:
        return budget * program(x, budget)

    grid = np.linspace(first, last, 8)
    products = [product(a) for a in grid]
    k = int(np.argmin(products))
    around = (grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)])
    found = minimize_scalar(product, bounds=around, method="bounded", options={"maxiter": 10})
    return math.sqrt(min(*products, found.fun))


def assert_certified(x: Tensor, norm: str, *, slack: float = 1e-12) -> float:
    """value ≤ (1 + tolerance) × lower bound ≤ (1 + tolerance) × value; the value."""
    found = optimal_center(x, norm, None)
    got = value(x, found.center, norm)
    assert (found.lower_bound <= got * (1 + slack)).all()
    assert (got <= (1 + TOLERANCE + slack) * found.lower_bound).all()
    return got.item() if got.ndim == 0 else float(got.max())


# --- the mean and the median ---------------------------------------------------------------------


def test_mean_and_median_by_hand():
    x = torch.tensor([[0.0, 1.0], [1.0, 1.0], [8.0, 4.0]])
    assert mean_center(x, None).tolist() == [3.0, 2.0]
    assert median_center(x, None).tolist() == [1.0, 1.0]
    assert median_center(x[1:], None).tolist() == [4.5, 2.5]


@pytest.mark.parametrize("center", [mean_center, median_center])
def test_plain_centers_ignore_padding(center):
    x = data("gaussian", 2, 3, 6, 4)
    mask = torch.tensor([True, False, True, True, False, True]).expand(2, 3, 6).clone()
    mask[1, 2] = torch.tensor([False, False, False, True, False, False])
    padded = torch.where(mask[..., None], x, torch.nan)
    got = center(padded, mask)
    assert torch.allclose(got[0, 0], center(x[0, 0][mask[0, 0]], None), rtol=1e-14)
    assert torch.equal(got[1, 2], x[1, 2, 3])


def test_plain_centers_of_equal_tokens_are_those_tokens():
    token = torch.tensor([0.1, -1e30, 1e-40])
    for center in (mean_center, median_center):
        for n in (1, 2, 7):
            assert torch.equal(center(token.expand(n, 3), None), token)


def test_mean_keeps_its_digits_under_a_common_offset():
    x = data("gaussian", 64, 5).float() * 1e-3 + 1000
    exact = x.double().mean(-2)
    assert ((mean_center(x, None) - exact).abs() <= 3.1e-5).all()  # half of float32's spacing


def test_median_of_opposite_extremes_does_not_overflow():
    x = torch.tensor([[3e38, 3e38], [-3e38, 2e38]])
    assert median_center(x, None).tolist() == pytest.approx([0.0, 2.5e38])


def test_gradients_of_mean_and_median():
    x = torch.tensor([[0.0], [5.0], [1.0], [torch.nan], [9.0]], requires_grad=True)
    mask = torch.tensor([True, True, True, False, True])
    (g,) = torch.autograd.grad(mean_center(x, mask).sum(), x)
    assert g.squeeze().tolist() == [0.25, 0.25, 0.25, 0.0, 0.25]
    (g,) = torch.autograd.grad(median_center(x, mask).sum(), x)
    assert g.squeeze().tolist() == [0.0, 0.5, 0.5, 0.0, 0.0]


# --- values worked out by hand -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "norm", "expected"),
    [
        ([[0.0], [1.0], [4.0]], "one", 4.0),
        ([[0.0], [1.0], [4.0]], "inf", 2.0),
        # (3 + x)(4 − x) for 1 ≤ x ≤ 2, (3 + x) x after: least at the middle of the range, x = 2
        ([[0.0], [1.0], [4.0]], "composite", math.sqrt(10)),
        # (1 + 8x)(1 − x) for 0 ≤ x ≤ 1/2 is concave: 1 at the median 0, 5/2 at x = 1/2
        ([[0.0]] * 9 + [[1.0]], "composite", 1.0),
        # two tokens at distance 4, and a third between them
        ([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]], "inf", 2.0),
        ([[3.0], [1.0]], "fro", math.sqrt(2)),
        ([[3.0, 0.0], [1.0, 0.0]], "spectral", math.sqrt(2)),
    ],
)
def test_by_hand(tokens, norm, expected):
    x = torch.tensor(tokens, dtype=torch.float64)
    assert assert_certified(x, norm) == pytest.approx(expected, rel=TOLERANCE)
    assert optimal_center(x, norm, None).lower_bound <= expected * (1 + 1e-12)


def test_two_tokens_are_half_their_distance_away():
    x = data("heavy", 2, 9)
    assert assert_certified(x, "inf") == pytest.approx(float((x[0] - x[1]).abs().sum() / 2))


# --- against linear programs ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(6, 14), (14, 6), (12, 12)])
@pytest.mark.parametrize("kind", KINDS)
def test_against_a_linear_program(kind, shape):
    x = data(kind, *shape, seed=3)
    found = optimal_center(x, "inf", None)
    exact = program(x)
    assert found.lower_bound <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= value(x, found.center, "inf") <= exact * (1 + TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
def test_composite_against_linear_programs(kind):
    x = data(kind, 9, 8, seed=4)
    found = optimal_center(x, "composite", None)
    got = float(value(x, found.center, "composite"))
    exact = composite_program(x, got)
    assert found.lower_bound <= exact * (1 + 1e-9)
    assert exact * (1 - TOLERANCE) <= got <= exact * (1 + TOLERANCE)


def test_median_is_exact_for_the_one_norm():
    x = data("heavy", 7, 5)
    found = optimal_center(x, "one", None)
    assert found.lower_bound == pytest.approx(value(x, median_center(x, None), "one").item())


# --- certificates --------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ALL)
@pytest.mark.parametrize("kind", KINDS)
def test_certified_for_every_kind_of_data(kind, norm):
    for shape in ((3, 24, 40), (3, 40, 6), (2, 3, 3)):
        assert_certified(data(kind, *shape, seed=5), norm)


def test_finer_tolerances_are_reached():
    x = data("gaussian", 12, 20)
    for norm in ("inf", "composite"):
        found = optimal_center(x, norm, None, tolerance=1e-6)
        assert value(x, found.center, norm) <= (1 + 1e-6) * found.lower_bound


def test_the_impossible_tolerance_zero_ends_close():
    x = data("integers", 6, 7)
    for norm in ("inf", "composite"):
        found = optimal_center(x, norm, None, tolerance=0.0)
        assert value(x, found.center, norm) <= (1 + 1e-6) * found.lower_bound


def test_no_center_beats_the_bound():
    x = data("outlier rows", 8, 5)
    for norm in ALL:
        found = optimal_center(x, norm, None)
        for seed in range(50):
            other = found.center + 10.0 ** -(seed % 6) * data("gaussian", 5, seed=seed)
            assert value(x, other, norm) >= found.lower_bound * (1 - 1e-12)


def test_lines_lie_below_the_trade_off_for_any_weights():
    x = data("heavy", 9, 6, seed=1)
    x = x - median_center(x, None)
    columns = minimax.SortedColumns.of(x[None])
    for seed in range(30):
        weights = data("gaussian", 1, 9, seed=seed).exp()
        least = value(x, torch.zeros(6), "one")
        budget = least * (1 + 0.1 * seed)
        lines = centers._lines_below(columns, weights, budget[None])[0]
        for trial in range(30):
            center = 0.1 * trial * data("gaussian", 6, seed=trial)
            a, b = value(x, center, "one"), value(x, center, "inf")
            assert (lines[:, 0] + lines[:, 1] * a <= b * (1 + 1e-12)).all()
        # and the first touches what the weights prove at its own budget
        proof = columns.row_bound(weights, centers._box_within(columns, budget[None]))
        assert lines[0, 0] + lines[0, 1] * budget == pytest.approx(proof.item())


def test_budget_boxes_hold_exactly_the_centers_within_budget():
    for seed in range(20):
        x = data("heavy", 4 + seed % 2, 6, seed=seed)
        x = x - median_center(x, None)
        columns, sums = minimax.SortedColumns.of(x[None]), x.abs().sum(-2)
        for factor in (1.0, 1.3, 50.0):
            budget = factor * sums.max()
            box = centers._box_within(columns, budget[None])
            assert (box.lower <= 0).all()
            assert (box.upper >= 0).all()
            for side, last in ((box.lower, x.amin(-2)), (box.upper, x.amax(-2))):
                reached = (x - side).abs().sum(-2)
                assert (reached <= budget * (1 + 1e-12)).all()
                full = torch.isclose(reached, budget, rtol=1e-12)
                assert (full | (side[0] == last)).all()


def test_the_row_solver_stays_in_its_box():
    x = data("gaussian", 3, 7, 6)  # an odd number: the fullest column has no freedom at all
    x = x - median_center(x, None)[:, None]
    x = x / x.abs().sum(-1).mean(-1)[:, None, None]
    columns = minimax.SortedColumns.of(x)
    box = centers._box_within(columns, x.abs().sum(-2).amax(-1))
    found = minimax.least_row_sum(columns, box, tolerance=TOLERANCE)
    assert ((box.lower <= found.center) & (found.center <= box.upper)).all()
    assert torch.allclose(found.value, value(x, found.center, "inf"))
    assert (found.value <= (1 + TOLERANCE) * found.bound).all()


def test_stopped_early_the_bound_is_still_true(monkeypatch):
    monkeypatch.setattr(minimax, "_MAX_STEPS", 3)
    x = data("gaussian", 12, 12)
    found = optimal_center(x, "inf", None)
    assert found.lower_bound <= program(x) <= value(x, found.center, "inf")
    assert value(x, found.center, "inf") > (1 + TOLERANCE) * found.lower_bound


def test_steps_stay_few(monkeypatch):
    steps = []
    advance = minimax._advance
    monkeypatch.setattr(minimax, "_advance", lambda path: steps.append(0) or advance(path))
    for kind in KINDS:
        steps.clear()
        optimal_center(data(kind, 24, 48, seed=6), "inf", None)
        assert len(steps) <= 35


@pytest.mark.parametrize("norm", ALL)
def test_bound_in_float32_is_not_rounded_up(norm):
    for seed in range(8):
        x = data("gaussian", 6, 5, seed=seed).float()
        single, double = optimal_center(x, norm, None), optimal_center(x.double(), norm, None)
        assert single.center.dtype == single.lower_bound.dtype == torch.float32
        assert single.lower_bound.double() <= double.lower_bound
        assert single.lower_bound <= value(x, single.center, norm) * (1 + 1e-6)


# --- guarantees ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("norm", SEARCHED)
def test_never_worse_than_mean_median_or_zero_even_if_the_solver_fails(norm, dtype, monkeypatch):
    def useless(columns, tolerance):  # noqa: ARG001
        return columns.tokens[:, 0] + 1e6, torch.zeros_like(columns.tokens[:, 0, 0])

    monkeypatch.setitem(centers._SOLVERS, norm, useless)
    symmetric = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [1.0, -2.0]])  # zero wins
    skewed = torch.tensor([[0.0, 0.0], [0.0, 0.1], [9.0, 9.0]])  # the median wins in the 1-norm
    even = data("gaussian", 30, 3)  # mostly the mean
    for x in (symmetric.to(dtype), skewed.to(dtype), even.to(dtype)):
        got = value(x, optimal_center(x, norm, None).center, norm)
        plain = (mean_center(x, None), median_center(x, None), torch.zeros_like(x[0]))
        best = min(value(x, c, norm).item() for c in plain)
        assert got.item() == pytest.approx(best, rel=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("norm", ALL)
def test_relative_residual_never_exceeds_one(norm):
    for seed in range(10):
        x = data("sparse", 5, 7, seed=seed).float()
        zero = value(x, torch.zeros(7), norm)
        assert value(x, optimal_center(x, norm, None).center, norm) <= zero * (1 + 1e-6)


@pytest.mark.parametrize("norm", ["fro", "spectral"])
def test_the_mean_is_best_for_unitarily_invariant_norms(norm):
    x = data("heavy", 7, 5)
    found = optimal_center(x, norm, None)
    assert torch.equal(found.center, mean_center(x, None))
    assert found.lower_bound == pytest.approx(value(x, found.center, norm).item(), rel=1e-12)


# --- invariances ---------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ALL)
def test_padding_and_companions_change_nothing(norm):
    x = data("gaussian", 2, 2, 7, 5, seed=8)
    lengths = torch.tensor([[7, 3], [1, 3]])
    mask = torch.arange(7) < lengths[..., None]
    mask[0, 1] = torch.tensor([False, True, False, True, False, False, True])
    found = optimal_center(torch.where(mask[..., None], x, torch.nan), norm, mask)
    assert found.center.shape == (2, 2, 5)
    assert found.lower_bound.shape == (2, 2)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        alone = optimal_center(x[i, j][mask[i, j]], norm, None)
        assert torch.allclose(found.center[i, j], alone.center, rtol=1e-7, atol=1e-9)
        assert torch.allclose(found.lower_bound[i, j], alone.lower_bound, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("norm", ["inf", "composite"])
def test_easy_and_hard_companions_change_nothing(norm):
    x = torch.stack([data(kind, 12, 9, seed=2) for kind in KINDS])
    together = optimal_center(x, norm, None)
    for k in range(len(KINDS)):
        alone = optimal_center(x[k], norm, None)
        assert torch.allclose(together.center[k], alone.center, rtol=1e-6, atol=1e-8)
        assert torch.allclose(together.lower_bound[k], alone.lower_bound, rtol=1e-8)


def test_chunks_change_nothing(monkeypatch):
    x = data("integers", 5, 6, 4)
    whole = optimal_center(x, "composite", None)
    monkeypatch.setattr(centers, "_CHUNK", 1)
    assert torch.allclose(optimal_center(x, "composite", None).center, whole.center, atol=1e-9)


@pytest.mark.parametrize("norm", ALL)
def test_scale_and_translation(norm):
    x = data("heavy", 6, 5, seed=9)
    base = value(x, optimal_center(x, norm, None).center, norm)
    for scale in (-3.0, 1e-30, 1e30, 2.0**-1000, 2.0**1000):
        found = optimal_center(scale * x, norm, None)
        got = value(scale * x / abs(scale), found.center / abs(scale), norm)
        assert got == pytest.approx(base.item(), rel=2 * TOLERANCE)
        assert found.lower_bound / abs(scale) == pytest.approx(base.item(), rel=2 * TOLERANCE)
    moved = x + 100 * data("gaussian", 5)
    got = value(moved, optimal_center(moved, norm, None).center, norm)
    assert got == pytest.approx(base.item(), rel=2 * TOLERANCE)


def test_repeated_tokens_leave_the_row_norm_alone():
    x = data("gaussian", 6, 5)
    twice = torch.cat([x, x[:4], x[:1]])
    assert assert_certified(twice, "inf") == pytest.approx(assert_certified(x, "inf"), rel=2e-4)


# --- edges ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ALL)
@pytest.mark.parametrize(
    "x",
    [
        torch.tensor([[0.3, -7.0, 1e30]]),  # one token
        torch.tensor([[0.1, 5.0]]).expand(7, 2),  # equal tokens
        torch.tensor([[0.1, 5.0]]).expand(2, 4, 2),
        torch.zeros(3, 4),
        torch.full((3, 2), 3e38),
        torch.full((3, 2), 1e-45),
    ],
)
def test_nothing_left_is_exactly_zero(x, norm):
    found = optimal_center(x, norm, None)
    assert torch.equal(found.center, x[..., 0, :])
    assert (found.lower_bound == 0).all()


def test_one_valid_token_among_padding():
    x = torch.full((4, 3), torch.nan)
    x[2] = torch.tensor([1.0, 2.0, 3.0])
    for norm in ALL:
        found = optimal_center(x, norm, torch.tensor([False, False, True, False]))
        assert torch.equal(found.center, x[2])
        assert found.lower_bound == 0


@pytest.mark.parametrize("norm", SEARCHED)
def test_columns_of_hugely_different_scale(norm):
    scales = 10.0 ** torch.tensor([30, -30, 0, 12, -12], dtype=torch.float64)
    x = scales * data("gaussian", 9, 5)
    assert_certified(x, norm)
    assert_certified(x.float(), norm, slack=1e-6)
    assert_certified(x.roll(1, -1) * 1e-30 + torch.tensor([0, 1e30, 0, 0, 0]), norm)


@pytest.mark.parametrize("scale", [1e-320, 1e-310, 1e300, 1.7e307])
def test_ends_of_the_number_range(scale):
    x = data("gaussian", 6, 5).clamp(-3, 3) * scale
    for norm in SEARCHED:
        found = optimal_center(x, norm, None)
        got = value(x, found.center, norm)
        assert found.center.isfinite().all()
        assert 0 < found.lower_bound <= got <= (1 + 2 * TOLERANCE) * found.lower_bound


def test_differences_beyond_the_largest_number():
    x = torch.tensor([[1.7e308], [torch.nan], [1.7e308], [-1.7e308]], dtype=torch.float64)
    mask = torch.tensor([True, False, True, True])
    for norm in ALL:
        found = optimal_center(x, norm, mask)
        assert found.center.isfinite().all()
        assert 1e308 < found.lower_bound < torch.inf


def test_no_samples_is_no_error():
    found = optimal_center(torch.zeros(2, 0, 4, 3), "composite", None)
    assert found.center.shape == (2, 0, 3)
    assert found.lower_bound.shape == (2, 0)


def test_gradients_stop_at_the_optimum():
    x = data("gaussian", 4, 3).requires_grad_()
    found = optimal_center(x, "composite", None)
    assert not found.center.requires_grad
    assert not found.lower_bound.requires_grad


def test_an_unknown_norm_is_named():
    with pytest.raises(InputError, match=r"nuclear.*composite, one, inf, fro, spectral"):
        optimal_center(torch.zeros(2, 2), "nuclear", None)


EXTREMES = (0.0, 0.0, 1.0, -1.0, 2.0, -3.5, 1e-30, -1e30, 1e-300, 1e300, 5e-324)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 5), st.integers(1, 4), st.sampled_from(SEARCHED))
def test_small_matrices_with_extremes(draw, n, d, norm):
    entries = st.lists(st.sampled_from(EXTREMES), min_size=n * d, max_size=n * d)
    x = torch.tensor(draw.draw(entries), dtype=torch.float64).reshape(n, d)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = optimal_center(x, norm, None)
    got = value(x, found.center, norm)
    assert found.center.isfinite().all()
    assert 0 <= found.lower_bound <= got * (1 + 1e-12)
    for plain in (mean_center(x, None), median_center(x, None), torch.zeros(d)):
        assert got <= value(x, plain, norm) * (1 + 1e-12)
    if got > 1e-290:  # below, a bound has too few digits for the tolerance
        assert got <= (1 + TOLERANCE + 1e-12) * found.lower_bound


@pytest.mark.parametrize("norm", ["composite", "one", "inf", "fro", "spectral"])
def test_the_residual_at_the_optimum_is_as_small_as_its_certificate_allows(norm):
    x = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).exp()
    value, bound = residual(x, norm=norm, center="optimal", certified=True)
    assert torch.all(value <= 1.0001 * bound + 1e-12)
    assert torch.equal(value, residual(x, norm=norm, center="optimal"))
    for center in ("mean", "median"):
        assert torch.all(bound <= residual(x, norm=norm, center=center) * (1 + 1e-12))
