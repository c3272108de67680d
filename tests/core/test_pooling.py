"""Every way of pooling at a value worked out by hand, with padding on either side."""

import math

import pytest
import torch
from torch import nn

from rankscope.core.pooling import (
    CLASS,
    LAST,
    MAXIMUM,
    MEAN,
    ROOT,
    WEIGHTED,
    Pooling,
    pool,
    usual_pooling,
)

# Three tokens (1, 6), (3, −2), (5, 2).
TOKENS = [[1.0, 6.0], [3.0, -2.0], [5.0, 2.0]]
PADDINGS = [(0, 0), (2, 0), (0, 2), (1, 1)]


def padded(left: int, right: int) -> tuple[torch.Tensor, torch.Tensor]:
    junk = [[1e6, math.nan]]
    x = torch.tensor([junk * left + TOKENS + junk * right], dtype=torch.float64)
    return x, torch.tensor([[False] * left + [True] * 3 + [False] * right])


@pytest.mark.parametrize(("left", "right"), PADDINGS)
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (CLASS, [1.0, 6.0]),
        (LAST, [5.0, 2.0]),
        (MAXIMUM, [5.0, 6.0]),
        (MEAN, [3.0, 2.0]),
        (ROOT, [9 / math.sqrt(3), 6 / math.sqrt(3)]),
        (WEIGHTED, [(1 + 6 + 15) / 6, (6 - 4 + 6) / 6]),  # weights 1, 2, 3
    ],
)
def test_a_mode_by_hand(mode: str, expected: list[float], left: int, right: int) -> None:
    assert pool(*padded(left, right), mode)[0].tolist() == pytest.approx(expected)


def test_texts_of_different_lengths_do_not_mix() -> None:
    x = torch.arange(12.0, dtype=torch.float64).view(2, 3, 2)
    mask = torch.tensor([[True, True, False], [False, True, True]])
    assert pool(x, mask, MEAN).tolist() == [[1.0, 2.0], [9.0, 10.0]]
    assert pool(x, mask, LAST).tolist() == [[2.0, 3.0], [10.0, 11.0]]
    assert pool(x, mask, CLASS).tolist() == [[0.0, 1.0], [8.0, 9.0]]


def test_norm_modes_and_steps_follow_each_other() -> None:
    norm = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))  # swaps the features
    pooling = Pooling((CLASS, MEAN), "", norm, steps=(lambda x: 2 * x, lambda x: x + 1))
    x, mask = padded(0, 2)
    got = pooling(torch.where(mask.unsqueeze(-1), x, 0.0).float(), mask)
    assert got.tolist() == [[13.0, 3.0, 5.0, 7.0]]  # 2 (6, 1, 2, 3) + 1
    assert got.dtype == torch.float64


def test_a_head_takes_the_place_of_the_modes() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum(1)

    for left, right in PADDINGS:
        assert Pooling((), "", head=Sum())(*padded(left, right)).tolist() == [[9.0, 6.0]]


def test_the_usual_choice_depends_on_the_direction_of_reading() -> None:
    assert (usual_pooling(causal=True).modes, usual_pooling(causal=False).modes) == (
        (LAST,),
        (MEAN,),
    )
    assert not usual_pooling(causal=True).own
