"""The kernel of half a step in Triton's interpreter, against plain PyTorch; prints what differs."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

import torch

from rankscope.metrics import _half_step_kernel as kernel
from rankscope.metrics import _half_steps as half
from rankscope.metrics._mean_split import Side, room_for, split_mean

kernel._BLOCK = 16  # several blocks for every vector

for tokens, features in ((20, 40), (40, 20)):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(2, tokens, features, generator=generator) + 1).bfloat16()
    mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 5]])
    matrix = split_mean(x, mask, room_for(x, 1, pieced=True))
    near = matrix.e if matrix.wide else matrix.c
    rest = torch.randn(2, 3, near.shape[-1], generator=generator) * (near != 0)[:, None]
    rest = rest - (rest * near[:, None]).sum(-1, keepdim=True) * near[:, None]
    here, _ = half.normalise(Side(torch.tensor([[1.0, 0.0, 0.5]] * 2), rest))
    forth, back = half.ways(matrix)
    for take in (half.step, half.fused_step):
        there, alpha = take(matrix, forth, here, None, None)
        ahead, beta = take(matrix, back, there, here, alpha)
        last, gamma = take(matrix, forth, ahead, there, beta)
        found = (*there[:2], alpha, *ahead[:2], beta, *last[:2], gamma)
        if take is half.step:
            expected = found
    for got, want in zip(found, expected, strict=True):
        print(float((got - want).abs().max() / want.abs().max()))
