"""One table: what each metric ignores, what it scales with, tried on random and extreme input."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankscope.core import metrics as m


@dataclass(frozen=True)
class Row:
    """A metric and its invariances; ``power`` is how it scales: f(cX) = c^power f(X)."""

    name: str
    compute: Callable[..., Tensor]
    shift: bool
    orthogonal: bool
    power: int
    tolerance: float = 1e-9


def _residual(norm: str, center: str, *, relative: bool = False) -> Callable[..., Tensor]:
    return lambda x, **k: m.residual(x, norm=norm, center=center, relative=relative, **k)


PAIRS = [(norm, "optimal") for norm in ("composite", "one", "inf", "fro", "spectral")]
PAIRS += [("composite", "mean"), ("spectral", "mean"), ("one", "median"), ("fro", "median")]
ROWS = [
    Row(
        f"residual {norm} {center}",
        _residual(norm, center),
        shift=True,
        orthogonal=norm in ("fro", "spectral") and center != "median",
        power=1,
        tolerance=3e-4 if center == "optimal" else 1e-9,
    )
    for norm, center in PAIRS
] + [
    Row("relative residual", _residual("composite", "mean", relative=True), False, False, 0),
    Row("relative residual fro", _residual("fro", "mean", relative=True), False, True, 0),
    Row("dispersion", m.dispersion, True, True, 1),
    Row("mean_cosine", m.mean_cosine, False, True, 0),
    Row("uniformity", m.uniformity, False, True, 0),
    Row("singular_values", m.singular_values, False, True, 1),
    Row("numerical_rank", m.numerical_rank, False, True, 0),
    Row("stable_rank", m.stable_rank, False, True, 0),
    Row("effective_rank", m.effective_rank, False, True, 0),
    Row("participation_ratio", m.participation_ratio, False, True, 0),
    Row("spectral_ratio", m.spectral_ratio, False, True, 0),
]
table = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def tokens(seed: int = 0, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*(shape or (3, 6, 4)), dtype=torch.float64, generator=generator) + 0.5


def close(row: Row, got: Tensor, expected: Tensor) -> bool:
    return torch.allclose(got.double(), expected.double(), rtol=row.tolerance, atol=1e-12)


@table
def test_permuting_tokens_changes_nothing(row: Row) -> None:
    x = tokens()
    order = torch.randperm(x.shape[-2], generator=torch.Generator().manual_seed(1))
    assert close(row, row.compute(x[:, order]), row.compute(x))


@table
def test_adding_the_same_row_to_all_tokens(row: Row) -> None:
    x = tokens()
    moved = x + torch.tensor([5.0, -2.0, 1.0, 0.25], dtype=torch.float64)
    assert close(row, row.compute(moved), row.compute(x)) == (row.shift or row.name in RANK_LIKE)


RANK_LIKE = ("numerical_rank",)  # generic tokens have full rank before and after


@table
def test_scaling(row: Row) -> None:
    x = tokens()
    plain = row.compute(x)
    for scale in (-3.0, 1e-12, 1e12):
        assert close(row, row.compute(x * scale), plain * abs(scale) ** row.power), scale


@table
def test_orthogonal_maps_of_the_features(row: Row) -> None:
    x = tokens()
    q, _ = torch.linalg.qr(tokens(7, 4, 4))
    if row.orthogonal:
        assert close(row, row.compute(x @ q), row.compute(x))
    else:
        assert not close(row, row.compute(x @ q), row.compute(x))


@table
def test_padding(row: Row) -> None:
    x = tokens()
    expected = row.compute(x)
    for left, right in ((0, 3), (2, 0), (1, 2)):
        padded = torch.full((3, left + 6 + right, 4), float("nan"), dtype=torch.float64)
        padded[:, left : left + 6] = x
        mask = torch.zeros(padded.shape[:2], dtype=torch.bool)
        mask[:, left : left + 6] = True
        got = row.compute(padded, token_mask=mask)
        assert close(row, got[..., : expected.shape[-1]] if got.ndim > 1 else got, expected)


@table
def test_batch_axes_are_independent(row: Row) -> None:
    x = tokens(3, 2, 2, 5, 4)
    together = row.compute(x)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        assert close(row, together[i, j], row.compute(x[i, j]))


@table
def test_repeating_a_batch_with_ragged_masks(row: Row) -> None:
    x = tokens(4, 4, 6, 4)
    mask = torch.arange(6) < torch.tensor([6, 4, 2, 5])[:, None]
    together = row.compute(x, token_mask=mask)
    for i, length in enumerate([6, 4, 2, 5]):
        alone = row.compute(x[i, :length])
        got = together[i][..., : alone.shape[-1]] if alone.ndim else together[i]
        assert close(row, got, alone)


SMOOTH = [
    row
    for row in ROWS
    if row.name not in ("numerical_rank", "residual inf optimal", "residual composite optimal")
]


@pytest.mark.parametrize("row", SMOOTH, ids=lambda row: row.name)
def test_gradients_are_those_of_finite_differences(row: Row) -> None:
    x = tokens(5, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda y: row.compute(y).sum(), (x,), atol=1e-6)


@pytest.mark.parametrize("norm", ["inf", "composite"])
def test_searched_centers_come_without_a_gradient(norm: str) -> None:
    x = tokens(5, 5, 3).requires_grad_()
    assert not m.residual(x, norm=norm, center="optimal").requires_grad


@pytest.mark.parametrize(
    "compute", [m.dispersion, m.residual, m.effective_rank, m.mean_cosine, m.uniformity]
)
def test_gradients_stay_finite_where_tokens_are_equal(compute: Callable[..., Tensor]) -> None:
    x = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(compute(x), x)
    assert torch.isfinite(gradient).all()


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(0, 2**31),
    st.sampled_from([1e-150, 1e-8, 1.0, 1e8, 1e150]),
)
def test_any_shape_and_scale_gives_finite_and_sane_answers(
    n: int, d: int, seed: int, scale: float
) -> None:
    x = (tokens(seed, n, d) * scale).requires_grad_(False)
    for row in ROWS:
        assert torch.isfinite(row.compute(x).double()).all(), row.name
    assert m.residual(x, center="optimal", relative=True) <= 1.0
    assert 0 <= m.numerical_rank(x) <= min(n, d)
    assert m.stable_rank(x) <= m.numerical_rank(x, rtol=0.0) + 1e-9
    assert -1 <= m.mean_cosine(x) <= 1


def test_alignment_of_pairs() -> None:
    """What it ignores: order of pairs and of the two in one, joint rotations, sizes, padding."""
    x, y = tokens(1), tokens(2)
    plain = m.alignment(x, y)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(1))
    q, _ = torch.linalg.qr(tokens(7, 4, 4))
    padding = torch.full((3, 2, 4), float("nan"), dtype=torch.float64)
    mask = torch.arange(8) < 6
    same = {
        "pairs in another order": m.alignment(x[:, order], y[:, order]),
        "the two swapped": m.alignment(y, x),
        "both rotated": m.alignment(x @ q, y @ q),
        "sizes": m.alignment(1e-12 * x, 1e12 * y),
        "padding": m.alignment(
            torch.cat([x, padding], 1), torch.cat([y, padding], 1), token_mask=mask.expand(3, 8)
        ),
    }
    for name, value in same.items():
        assert torch.allclose(value, plain, rtol=1e-9), name
    other = {
        "other partners": m.alignment(x[:, order], y),
        "one of them rotated": m.alignment(x @ q, y),
        "one of them turned round": m.alignment(-x, y),
        "another power": m.alignment(x, y, alpha=1.0),
    }
    for name, value in other.items():
        assert not torch.allclose(value, plain, rtol=1e-3), name


def test_gradients_of_alignment_are_those_of_finite_differences() -> None:
    x, y = tokens(5, 4, 3).requires_grad_(), tokens(6, 4, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: m.alignment(a, b), (x, y), atol=1e-6)
