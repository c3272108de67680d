"""The Triton kernel gives what the chunked path gives, which is tested against the formulas."""

import json
from pathlib import Path

import pytest
import torch

from rankscope.core.metrics import AttentionScores
from rankscope.core.metrics._attention_scores import fused_here

from ...scripts import output_of

SCRIPT = Path(__file__).with_name("attention_kernel_interpreted.py")


def test_the_kernel_agrees_with_the_chunked_path() -> None:
    apart = json.loads(output_of(SCRIPT))
    assert len(apart) == 14
    assert {name: far for name, far in apart.items() if not far < 1e-5} == {}


def test_many_heads_are_on_the_axis_that_has_room_for_them(monkeypatch) -> None:
    """The second and third axes of a grid end at 65,535."""
    kernel = pytest.importorskip("rankscope.core.metrics._attention_kernel")
    grids: list[tuple[int, ...]] = []

    class Recording:
        def __getitem__(self, grid):
            grids.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(kernel, "_kernel", Recording())
    query = torch.zeros(1, 1, 1, 1).expand(70_000, 2, 65, 1)
    kernel.row_figures(AttentionScores(query=query, key=query, scale=1.0))
    assert grids == [(140_000, 2)]


def test_the_kernel_is_for_cuda_alone() -> None:
    query = torch.zeros(1, 1, 2, 4)
    assert not fused_here(AttentionScores(query=query, key=query, scale=1.0))
