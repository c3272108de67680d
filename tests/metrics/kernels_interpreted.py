"""The kernels of the spectra in Triton's interpreter, against plain PyTorch; prints what differs."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

import torch

from rankscope.metrics import _centring as centring
from rankscope.metrics import _centring_kernel as centring_kernel
from rankscope.metrics import _half_step_kernel as kernel
from rankscope.metrics import _half_steps as half
from rankscope.metrics._mean_split import Side, room_for

generator = torch.Generator().manual_seed(0)


def report(name, found, expected):
    for got, want in zip(found, expected, strict=True):
        off = (got.double() - want.double()).abs().max() / want.double().abs().max()
        print(name, float(off))


def states(tokens, features, dtype):
    x = torch.randn(2, tokens, features, generator=generator) * 0.1 + 1
    x[..., ::3] -= 1  # features that stay as they are, beside those that lose their mean
    mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 5]])
    return x.to(dtype), mask


def plain_split(x, mask):
    terms = room_for(x, 1, pieced=True)
    return centring.assemble(terms, centring.move_plainly(x, mask, None, terms))


def compare_centring(x, mask, center):
    wanted, found = room_for(x, 1, pieced=True), room_for(x, 1, pieced=True)
    want = centring.assemble(wanted, centring.move_plainly(x, mask, center, wanted))
    moved = centring.Moved(*centring_kernel.move_mean(x, mask, center, found))
    got = centring.assemble(found, moved)
    # Powers of two are chosen by another rule, so that sizes are compared without them.
    factor = (got.energy / want.energy).sqrt()
    exact = torch.exp2(factor.log2().round())
    terms = [sum(term.double() for term in each) for each in (got.terms, want.terms)]
    left = (terms[0] / exact[:, None, None], got.e, got.c, got.s / exact, got.energy / exact**2)
    report("centring", (*left, got.noise / exact), (terms[1], *want_fields(want)))


def want_fields(split):
    return split.e, split.c, split.s, split.energy, split.noise


centring_kernel._FEATURES, centring_kernel._TOKENS, centring_kernel._MOST_CHUNKS = 16, 4, 4
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    x, mask = states(37, 40, dtype)
    mean = torch.where(mask[..., None], x, 0).float().sum(-2) / mask.sum(-1, keepdim=True)
    padded = torch.where(mask[..., None], x, torch.nan)
    for case in ((x, None, None), (padded, mask, None), (padded, mask, mean)):
        compare_centring(*case)
    compare_centring(x.mT, None, None)  # strides, and features that are no multiple of a block
    if dtype != torch.float16:
        for size in (1e30, 1e-30, 1.5e38):
            compare_centring((x.float() * size).to(dtype), None, None)

for block in (16, 64):  # several blocks for every vector, and one
    kernel._BLOCK = block
    for tokens, features in ((20, 40), (40, 20)):
        matrix = plain_split(*states(tokens, features, torch.bfloat16))
        near = matrix.e if matrix.wide else matrix.c
        rest = torch.randn(2, 3, near.shape[-1], generator=generator) * (near != 0)[:, None]
        rest = rest - (rest * near[:, None]).sum(-1, keepdim=True) * near[:, None]
        here, _ = half.normalise(Side(torch.tensor([[1.0, 0.0, 0.5]] * 2), rest))
        forth, back = half.ways(matrix)
        results = []
        for take in (half.fused_step, half.step):
            there, alpha = take(matrix, forth, here, None, None)
            ahead, beta = take(matrix, back, there, here, alpha)
            last, gamma = take(matrix, forth, ahead, there, beta)
            results.append((*there[:2], alpha, *ahead[:2], beta, *last[:2], gamma))
        report("half-step", *results)
