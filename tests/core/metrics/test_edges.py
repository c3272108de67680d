"""Edge cases have defined answers; bad input has an error that says which and where."""

import math

import pytest
import torch

from rankscope.core import metrics as m
from rankscope.errors import InputError, KindError, RankscopeError, ShapeError

NORMS = ("composite", "one", "inf", "fro", "spectral")
PAIRS = [
    ("composite", "mean"), ("one", "median"), ("inf", "optimal"), ("fro", "optimal"),
    ("spectral", "median"), ("composite", "optimal"),
]  # fmt: skip
HIDDEN = {
    **{
        f"residual {norm} {center}": lambda x, norm=norm, center=center, **k: m.residual(
            x, norm=norm, center=center, **k
        )
        for norm, center in PAIRS
    },
    "relative": lambda x, **k: m.residual(x, relative=True, **k),
    "dispersion": m.dispersion,
    "mean_cosine": m.mean_cosine,
    "uniformity": m.uniformity,
    "numerical_rank": m.numerical_rank,
    "stable_rank": m.stable_rank,
    "effective_rank": m.effective_rank,
    "participation_ratio": m.participation_ratio,
    "spectral_ratio": m.spectral_ratio,
}
RANKS = ("numerical_rank", "stable_rank", "effective_rank", "participation_ratio")
every_metric = pytest.mark.parametrize("name", HIDDEN)
X = torch.tensor([[1.0, 2.0], [3.0, 5.0], [2.0, -1.0]])


@every_metric
@pytest.mark.parametrize(
    ("x", "mask"),
    [
        (torch.tensor([[3.0, -4.0, 0.5]]), None),
        (torch.tensor([[3.0, -4.0, 0.5]]).expand(4, 3), None),
        (torch.tensor([[7, 7], [3, -4], [torch.nan, 1]]), torch.tensor([False, True, False])),
    ],
    ids=["one token", "equal tokens", "one token among padding"],
)
def test_tokens_that_are_all_alike(name: str, x, mask) -> None:
    """No differences, one direction, all cosines one."""
    expected = 1.0 if name in RANKS or name == "mean_cosine" else 0.0
    assert HIDDEN[name](x, token_mask=mask).item() == pytest.approx(expected, abs=1e-6)


@every_metric
def test_zero_matrix(name: str) -> None:
    expected = -4.0 if name == "uniformity" else 0.0  # cosines of 0
    assert HIDDEN[name](torch.zeros(3, 4)).item() == expected


@every_metric
def test_extreme_scales_stay_finite(name: str) -> None:
    for scale in (1e-30, 1e30):
        assert math.isfinite(HIDDEN[name](X * scale).item()), scale


@every_metric
def test_half_precision_is_upcast(name: str) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        got = HIDDEN[name](X.to(dtype))
        assert got.dtype == (torch.int64 if name == "numerical_rank" else torch.float32)
        assert got.item() == pytest.approx(HIDDEN[name](X).item(), rel=1e-5)


@every_metric
def test_not_finite_says_where(name: str) -> None:
    for bad in (torch.nan, torch.inf):
        x = torch.zeros(2, 3, 4)
        x[1, 2, 3] = bad
        with pytest.raises(InputError, match=r"\[1, 2, 3\]"):
            HIDDEN[name](x)


BAD = [
    (torch.zeros(3), None, ShapeError, r"\(3,\)"),
    (torch.zeros(0, 3), None, ShapeError, "no empty axis"),
    (torch.zeros(2, 3, dtype=torch.int64), None, KindError, "int64"),
    (torch.zeros(2, 3, dtype=torch.complex64), None, KindError, "complex64"),
    ([[1.0, 2.0]], None, KindError, "list"),
    (torch.zeros(2, 3, 4), torch.ones(2, 4, dtype=torch.bool), ShapeError, r"\(2, 3\)"),
    (torch.zeros(2, 3, 4), torch.ones(2, 3), KindError, "bool"),
    (torch.zeros(3, 4), torch.zeros(3, dtype=torch.bool), InputError, "no token"),
    (torch.zeros(2, 3, 4), torch.tensor([[True] * 3, [False] * 3]), InputError, r"sample \[1\]"),
]


@pytest.mark.parametrize(
    ("name", "case"),
    # Every kind of bad input for one metric; of every other one, a bad shape and a bad mask.
    [("residual composite mean", case) for case in BAD]
    + [(name, case) for name in list(HIDDEN)[1:] for case in (BAD[0], BAD[-1])],
)
def test_bad_input(name: str, case) -> None:
    x, mask, error, says = case
    with pytest.raises(error, match=says) as caught:
        HIDDEN[name](x, token_mask=mask)
    assert isinstance(caught.value, RankscopeError)
    assert isinstance(caught.value, ValueError | TypeError)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_of_halves_is_that_of_their_values(norm: str, dtype: torch.dtype) -> None:
    halves = torch.tensor([[3.0, 4.0, 0.0], [0.0, 5.0, 1.0]], dtype=dtype)
    size = m.matrix_norm(halves, norm)
    assert size.dtype == dtype
    torch.testing.assert_close(
        size.double(), m.matrix_norm(halves.double(), norm), rtol=1e-2, atol=0
    )


@pytest.mark.parametrize("name", ["dobrushin", "second_singular"])
def test_a_lower_and_an_upper_bound_are_those_of_the_pair(name: str) -> None:
    p = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]])
    bounds = getattr(m, f"{name}_bounds")(p)
    assert torch.equal(getattr(m, f"{name}_lower")(p), bounds.lower)
    assert torch.equal(getattr(m, f"{name}_upper")(p), bounds.upper)
    torch.testing.assert_close(bounds.lower, torch.ones(1))
    torch.testing.assert_close(bounds.upper, torch.ones(1))


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), 1.0])
def test_tolerances_out_of_range(tolerance: float) -> None:
    with pytest.raises(InputError, match="tolerance"):
        m.residual(torch.eye(3), center="optimal", tolerance=tolerance)


@pytest.mark.parametrize("norm", NORMS)
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
    with pytest.raises(InputError, match="overflows"):
        m.residual(torch.randn(128, 768) * 1e36, relative=True)


@pytest.mark.parametrize(
    ("norm", "center", "certified"),
    [(*pair, False) for pair in PAIRS]
    + [("one", "mean", True), ("fro", "median", True), ("inf", "optimal", True)],
)
def test_residuals_beyond_the_largest_number_are_refused(norm, center, certified) -> None:
    """The difference of 1e308 and −1e308 is none; the norm says so, not a decomposition."""
    x = 1e308 * torch.tensor([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InputError, match=r"overflows torch\.float64"):
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


FIGURES = (
    "attention_entropy", "dobrushin", "second_singular_value", "high_pass_ratio", "renyi_entropy",
    "largest_weight", "sink_mass", "score_gamma", "dobrushin_lower", "dobrushin_upper",
    "second_singular_lower", "second_singular_upper",
)  # fmt: skip
ONES = ("largest_weight", "sink_mass", "score_gamma")


@pytest.mark.parametrize("name", FIGURES)
def test_attention_of_one_token(name: str) -> None:
    assert getattr(m, name)(torch.ones(2, 1, 1)).tolist() == [float(name in ONES)] * 2


@pytest.mark.parametrize("name", FIGURES)
def test_attention_padding_changes_nothing(name: str) -> None:
    logits = torch.randn(
        2, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    alone = logits.softmax(-1)
    padded = torch.full((2, 3, 8, 8), float("nan"), dtype=torch.float64)
    padded[:, :, 2:7, 2:7] = alone
    mask = torch.zeros(2, 8, dtype=torch.bool)
    mask[:, 2:7] = True
    got = getattr(m, name)(padded, token_mask=mask)
    # Bounds of singular values start from other vectors if there are more keys.
    far = 0.1 if name.startswith("second_singular_") and name != "second_singular_value" else 1e-12
    assert torch.allclose(got, getattr(m, name)(alone), atol=far)


BAD_ATTENTION = [
    (torch.ones(2, 2), ShapeError, r"\(2, 2\)"),
    (torch.ones(1, 2, 3) / 3, ShapeError, "square"),
    (torch.ones(1, 2, 2), InputError, r"row \[0, 0\]"),
    (torch.tensor([[[1.5, -0.5], [0.5, 0.5]]]), InputError, "smallest -0.5"),
    (torch.tensor([[[float("nan"), 1.0], [0.5, 0.5]]]), InputError, "nan"),
    (torch.eye(2, dtype=torch.int64)[None], KindError, "int64"),
]


@pytest.mark.parametrize(
    ("name", "case"),
    [("attention_entropy", case) for case in BAD_ATTENTION]
    + [(name, BAD_ATTENTION[2]) for name in FIGURES[1:]],
)
def test_bad_attention(name: str, case) -> None:
    p, error, says = case
    with pytest.raises(error, match=says):
        getattr(m, name)(p)


@pytest.mark.parametrize(
    ("shape", "size"), [((40, 60), 1e-30), ((60, 40), 1e30), ((40, 40), 1.0), ((60, 40), 1.0)]
)
def test_a_second_value_of_float32_far_below_the_first_has_digits(shape, size) -> None:
    """A decomposition in float32 is off by as much as this value."""
    tokens, features = shape
    draw = torch.Generator().manual_seed(3)
    x = torch.ones(tokens, 1) @ torch.randn(1, features, generator=draw)
    x = size * (x + 1e-6 * torch.randn(shape, generator=draw))
    exact = torch.linalg.svdvals(x.double())
    assert exact[1] < 1e-6 * exact[0]
    assert float(m.spectral_ratio(x)) == pytest.approx(float(exact[1] / exact[0]), rel=2e-3)
