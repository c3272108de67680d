"""What is asked of tensors before anything is computed."""

import math

import pytest
import torch

from rankscope.core import checks
from rankscope.errors import (
    BlocksNotFoundError,
    InputError,
    KindError,
    RankscopeError,
    ShapeError,
    SpecError,
)

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (InputError, ValueError),
        (ShapeError, ValueError),
        (SpecError, ValueError),
        (KindError, TypeError),
        (BlocksNotFoundError, ValueError),
    ],
)
def test_errors_are_one_tree_and_builtin_kinds(error, builtin):
    assert issubclass(error, RankscopeError)
    assert issubclass(error, builtin)
    assert error.exit_code == 2


# Hidden states.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_upcast(dtype):
    x, token_mask = checks.measurable(torch.ones(2, 3, dtype=dtype), None)
    assert x.dtype == torch.float32
    assert token_mask is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_floats_are_left_alone(dtype):
    given = torch.ones(2, 3, dtype=dtype)
    assert checks.measurable(given, None)[0] is given


@pytest.mark.parametrize("garbage", [0.0, 7.0, NAN, INF, -INF])
def test_padding_becomes_zero_whatever_it_held(garbage):
    given = torch.ones(1, 3, 2)
    given[0, 2] = garbage
    x, token_mask = checks.measurable(given, torch.tensor([[True, True, False]]))
    assert x.tolist() == [[[1, 1], [1, 1], [0, 0]]]
    assert token_mask.tolist() == [[True, True, False]]


def test_one_mask_is_spread_over_the_batch():
    _, token_mask = checks.measurable(torch.ones(4, 2, 3, 5), torch.tensor([True, False, True]))
    assert token_mask.shape == (4, 2, 3)


@pytest.mark.parametrize(
    ("x", "error", "words"),
    [
        ([[1.0]], KindError, "x is a list, expected a torch.Tensor"),
        (None, KindError, "NoneType"),
        (torch.ones(2, 2).numpy(), KindError, "ndarray"),
        (torch.ones(2, 2).long(), KindError, "torch.int64.*token ids are not hidden states"),
        (torch.ones(2, 2).bool(), KindError, "torch.bool"),
        (torch.ones(2, 2, dtype=torch.complex64), KindError, "complex64"),
        (torch.ones(3), ShapeError, r"\(3,\).*\(\.\.\., token, feature\)"),
        (torch.tensor(1.0), ShapeError, r"\(\)"),
        (torch.ones(0, 3), ShapeError, "no empty axis"),
        (torch.ones(3, 0), ShapeError, "no empty axis"),
        (torch.tensor([[1.0, NAN]]), InputError, r"nan at \[0, 1\] \(1 of 2"),
        (torch.tensor([[1.0, 2.0], [-INF, INF]]), InputError, r"-inf at \[1, 0\] \(2 of 4"),
    ],
    ids=["list", "none", "numpy", "ids", "bool", "complex", "vector", "scalar", "no-token",
         "no-feature", "nan", "inf"],
)  # fmt: skip
def test_what_cannot_be_measured(x, error, words):
    with pytest.raises(error, match=words):
        checks.measurable(x, None)


def test_an_empty_batch_can_be_measured():
    assert checks.measurable(torch.ones(0, 3, 2), None)[0].shape == (0, 3, 2)


@pytest.mark.parametrize(
    "x",
    [
        torch.full((2, 2), 3e38),
        torch.tensor([[3e38, 3e38], [-3e38, -3e38]]),
        torch.full((300, 300), 6e4, dtype=torch.float16),
    ],
    ids=["overflow", "cancel", "half"],
)
def test_a_sum_that_overflows_is_no_infinity(x):
    """The cheap test may overflow; the verdict is about the entries."""
    assert checks.measurable(x, None)[0].isfinite().all()


def test_infinities_that_cancel_are_found():
    with pytest.raises(InputError, match="inf at"):
        checks.finite(torch.tensor([INF, -INF]), name="x")


# Masks.


@pytest.mark.parametrize(
    ("token_mask", "error", "words"),
    [
        (torch.ones(2, 3), KindError, "torch.float32, expected torch.bool.*attention_mask.bool()"),
        (torch.ones(2, 3).long(), KindError, "torch.int64"),
        ([True, True, True], KindError, "list"),
        (torch.ones(2, 4).bool(), ShapeError, r"\(2, 4\), expected \(2, 3\)"),
        (torch.ones(3, 3).bool(), ShapeError, r"\(3, 3\)"),
        (torch.ones(1, 2, 3).bool(), ShapeError, r"\(1, 2, 3\)"),
        (torch.tensor([[True] * 3, [False] * 3]), InputError, r"no token in sample \[1\]"),
    ],
    ids=["float", "integer", "list", "length", "batch", "axes", "empty"],
)
def test_wrong_masks(token_mask, error, words):
    with pytest.raises(error, match=words):
        checks.valid_mask(token_mask, (2, 3))


def test_an_empty_mask_without_batch():
    with pytest.raises(InputError, match="no token in the sample"):
        checks.valid_mask(torch.tensor([False, False]), (2,))


def test_counts():
    x = torch.ones(2, 3, 4, dtype=torch.float64)
    assert checks.valid_counts(x, None).tolist() == [3, 3]
    token_mask = torch.tensor([[True, False, False], [True, True, False]])
    counts = checks.valid_counts(x, token_mask)
    assert counts.tolist() == [1, 2]
    assert counts.dtype == torch.float64


# Attention matrices.


def test_stochastic_drops_rows_and_columns_of_padding():
    p = torch.tensor([[[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [NAN, 9.0, -1.0]]])
    cleaned, _ = checks.stochastic(p, torch.tensor([True, True, False]))
    assert cleaned.tolist() == [[[0.5, 0.5, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 0.0]]]


def test_softmax_in_half_precision_is_accepted():
    generator = torch.Generator().manual_seed(0)
    p = (5 * torch.randn(2, 3, 200, 200, generator=generator)).bfloat16().softmax(-1)
    assert checks.stochastic(p, None)[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("p", "error", "words"),
    [
        (torch.ones(2, 2), ShapeError, r"\(\.\.\., head, query, key\)"),
        (torch.ones(1, 2, 3), ShapeError, "2 queries but 3 keys"),
        (torch.tensor([[[1.0, 0.0], [0.4, 0.5]]]), InputError, r"row \[0, 1\].*sum 0.9"),
        (torch.tensor([[[1.5, -0.5], [0.5, 0.5]]]), InputError, r"row \[0, 0\].*smallest -0.5"),
        (torch.tensor([[[1.0, 0.0], [NAN, 1.0]]]), InputError, r"nan at \[0, 1, 0\]"),
        (torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), InputError, "after the softmax"),
        (torch.ones(1, 2, 2).long(), KindError, "torch.int64"),
    ],
    ids=["axes", "oblong", "sum", "negative", "nan", "logits", "integer"],
)
def test_what_is_no_attention(p, error, words):
    with pytest.raises(error, match=words):
        checks.stochastic(p, None)


def test_attention_to_padding_is_found():
    """A mask other than the one the matrix was computed with leaves rows that miss one."""
    uniform = torch.full((1, 1, 4, 4), 0.25)
    with pytest.raises(InputError, match="the token mask used to compute it"):
        checks.stochastic(uniform, torch.tensor([[True, True, True, False]]))
