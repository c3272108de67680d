"""Edge cases have defined answers; bad input has an error that says which and where."""

import math

import pytest
import torch

from rankscope.core import metrics as m
from rankscope.errors import InputError, KindError, RankscopeError, ShapeError

HIDDEN = {
    **{
        f"residual {norm} {center}": lambda x, norm=norm, center=center, **k: m.residual(
            x, norm=norm, center=center, **k
        )
        for norm in ("composite", "one", "inf", "fro", "spectral")
        for center in ("mean", "median", "optimal")
    },
    "relative": lambda x, **k: m.residual(x, relative=True, **k),
    "dispersion": m.dispersion,
    "mean_cosine": m.mean_cosine,
    "numerical_rank": m.numerical_rank,
    "stable_rank": m.stable_rank,
    "effective_rank": m.effective_rank,
    "participation_ratio": m.participation_ratio,
    "spectral_ratio": m.spectral_ratio,
}
RANKS = ("numerical_rank", "stable_rank", "effective_rank", "participation_ratio")


def value_when_alike(name: str) -> float:
    """One token, or equal tokens: no differences, one direction, all cosines one."""
    return 1.0 if name in RANKS or name == "mean_cosine" else 0.0


@pytest.mark.parametrize("name", HIDDEN)
def test_one_token(name: str) -> None:
    got = HIDDEN[name](torch.tensor([[3.0, -4.0, 0.5]]))
    assert got.item() == pytest.approx(value_when_alike(name), abs=1e-6)


@pytest.mark.parametrize("name", HIDDEN)
def test_all_tokens_equal(name: str) -> None:
    got = HIDDEN[name](torch.tensor([[3.0, -4.0, 0.5]]).expand(4, 3))
    assert got.item() == pytest.approx(value_when_alike(name), abs=1e-6)


@pytest.mark.parametrize("name", HIDDEN)
def test_zero_matrix(name: str) -> None:
    assert HIDDEN[name](torch.zeros(3, 4)).item() == 0.0


@pytest.mark.parametrize("name", HIDDEN)
def test_one_valid_token_among_padding(name: str) -> None:
    x = torch.tensor([[7.0, 7.0], [3.0, -4.0], [float("nan"), 1.0]])
    got = HIDDEN[name](x, token_mask=torch.tensor([False, True, False]))
    assert got.item() == pytest.approx(value_when_alike(name), abs=1e-6)


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_extreme_scales_stay_finite(name: str, scale: float) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [2.0, -1.0]]) * scale
    assert math.isfinite(HIDDEN[name](x).item())


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_upcast(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 5.0], [2.0, -1.0]])
    got = HIDDEN[name](x.to(dtype))
    assert got.dtype == (torch.int64 if name == "numerical_rank" else torch.float32)
    assert got.item() == pytest.approx(HIDDEN[name](x).item(), rel=1e-5)


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_says_where(name: str, bad: float) -> None:
    x = torch.zeros(2, 3, 4)
    x[1, 2, 3] = bad
    with pytest.raises(InputError, match=r"\[1, 2, 3\]"):
        HIDDEN[name](x)


@pytest.mark.parametrize("name", HIDDEN)
@pytest.mark.parametrize(
    ("x", "mask", "error", "says"),
    [
        (torch.zeros(3), None, ShapeError, r"\(3,\)"),
        (torch.zeros(0, 3), None, ShapeError, "no empty axis"),
        (torch.zeros(2, 3, dtype=torch.int64), None, KindError, "int64"),
        (torch.zeros(2, 3, dtype=torch.complex64), None, KindError, "complex64"),
        ([[1.0, 2.0]], None, KindError, "list"),
        (torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool), ShapeError, r"\(2, 3\)"),
        (torch.zeros(2, 3, 4), torch.ones(2, 3), KindError, "bool"),
        (torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool), InputError, "no token"),
        (
            torch.zeros(2, 3, 4),
            torch.tensor([[True] * 3, [False] * 3]),
            InputError,
            r"sample \[1\]",
        ),
    ],
)
def test_bad_input(name: str, x, mask, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        HIDDEN[name](x, token_mask=mask)
    assert isinstance(caught.value, RankscopeError)
    assert isinstance(caught.value, ValueError | TypeError)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), 1.0])
def test_tolerances_out_of_range(tolerance: float) -> None:
    with pytest.raises(InputError, match="tolerance"):
        m.residual(torch.eye(3), center="optimal", tolerance=tolerance)


@pytest.mark.parametrize("norm", ["composite", "one", "inf", "fro", "spectral"])
def test_relative_residual_at_the_optimum_is_never_above_one(norm: str) -> None:
    generator = torch.Generator().manual_seed(0)
    for dtype in (torch.float32, torch.float64):
        half = torch.randn(50, 10, 6, generator=generator, dtype=dtype)
        mirrored = torch.cat((half, -half), dim=1)  # the mean is zero but for rounding
        for x in (mirrored, torch.eye(20, dtype=dtype)):
            assert m.residual(x, norm=norm, center="optimal", relative=True).max() <= 1.0


def test_sizes_near_the_limit_of_the_dtype() -> None:
    large = torch.full((3, 4), 2e38)
    assert m.effective_rank(large).item() == pytest.approx(1.0)
    assert m.numerical_rank(torch.full((3, 3), 3e38, dtype=torch.bfloat16)).item() == 1
    with pytest.raises(InputError, match="does not fit"):
        m.residual(torch.randn(128, 768) * 1e36, relative=True)


@pytest.mark.parametrize("certified", [False, True])
@pytest.mark.parametrize("center", ["mean", "median", "optimal"])
@pytest.mark.parametrize("norm", ["composite", "one", "inf", "fro", "spectral"])
def test_residuals_beyond_the_largest_number_are_refused(norm, center, certified) -> None:
    """The difference of 1e308 and −1e308 is none; the norm says so, not a decomposition."""
    x = 1e308 * torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"does not fit into torch\.float64"):
        m.residual(x, norm=norm, center=center, certified=certified)
    fine = m.residual(x * 1e-3, norm=norm, center=center, certified=certified)
    assert torch.isfinite(fine.value if certified else fine)


@pytest.mark.parametrize("exclude", [[0.5], ["0"], "0"])
def test_excluded_positions_are_whole_numbers(exclude) -> None:
    with pytest.raises(KindError, match="exclude"):
        m.mean_cosine(torch.eye(3), exclude=exclude)


def test_unknown_names() -> None:
    x = torch.zeros(2, 2)
    with pytest.raises(InputError, match="composite"):
        m.residual(x, norm="nuclear")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="median"):
        m.residual(x, center="mode")  # type: ignore[call-overload]
    with pytest.raises(InputError, match="rtol"):
        m.numerical_rank(x, rtol=-1.0)
    with pytest.raises(InputError, match="exclude"):
        m.mean_cosine(x, exclude=[0, 1])


ATTENTION = {
    "entropy": m.attention_entropy,
    "dobrushin": m.dobrushin,
    "second": m.second_singular_value,
    "high_pass": m.high_pass_ratio,
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_one_token(name: str) -> None:
    assert ATTENTION[name](torch.ones(2, 1, 1)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_padding_changes_nothing(name: str) -> None:
    logits = torch.randn(
        2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    alone = logits.softmax(-1)
    padded = torch.full((2, 3, 8, 8), float("nan"), dtype=torch.float64)
    padded[:, :, 2:7, 2:7] = alone
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[:, 2:7] = True
    got = ATTENTION[name](padded, token_mask=mask)
    assert torch.allclose(got, ATTENTION[name](alone), atol=1e-12)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize(
    ("p", "error", "says"),
    [
        (torch.ones(2, 2), ShapeError, r"\(2, 2\)"),
        (torch.ones(1, 2, 3) / 3, ShapeError, "square"),
        (torch.ones(1, 2, 2), InputError, r"row \[0, 0\]"),
        (torch.tensor([[[1.5, -0.5], [0.5, 0.5]]]), InputError, "smallest -0.5"),
        (torch.tensor([[[float("nan"), 1.0], [0.5, 0.5]]]), InputError, "nan"),
        (torch.eye(2, dtype=torch.int64)[None], KindError, "int64"),
    ],
)
def test_bad_attention(name: str, p, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ATTENTION[name](p)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40), (40, 40)])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_a_second_value_of_float32_far_below_the_first_has_digits(shape, size) -> None:
    """A decomposition in float32 is off by as much as this value."""
    tokens, features = shape
    draw = torch.Generator().manual_seed(3)
    x = torch.ones(tokens, 1) @ torch.randn(1, features, generator=draw)
    x = size * (x + 1e-6 * torch.randn(shape, generator=draw))
    exact = torch.linalg.svdvals(x.double())
    assert exact[1] < 1e-6 * exact[0]
    assert float(m.spectral_ratio(x)) == pytest.approx(float(exact[1] / exact[0]), rel=2e-3)
