"""The kernels of the spectra in Triton's interpreter, against plain PyTorch; prints differences."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before Triton is loaded

import torch

from rankscope.core.metrics import _lanczos_quadrature as quadrature
from rankscope.core.metrics import _mean_split as splitting
from rankscope.core.metrics import _spectrum_kernels as kernels
from rankscope.core.metrics._mean_split import Split, allocate_terms

generator = torch.Generator().manual_seed(0)


def report(name, found, expected):
    for got, want in zip(found, expected, strict=True):
        off = (got.double() - want.double()).abs().max() / want.double().abs().max()
        print(name, float(off))


def states(tokens, features, dtype):
    x = torch.randn(2, tokens, features, generator=generator) * 0.1 + 1
    x[..., ::3] -= 1  # features that stay as they are, beside those that lose their mean
    x[:, 0, 1::6] = 7.3  # and some that would, but for one token
    mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 5]])
    return x.to(dtype), mask


def plain_split(x, mask):
    terms = allocate_terms(x, 1, pieced=True)
    return splitting.assemble(terms, splitting.move_plainly(x, mask, None, terms))


def compare_centring(x, mask, center):
    """Terms and shift must come to the state itself: the interpreter rounds to bfloat16 its way."""
    wanted, found = allocate_terms(x, 1, pieced=True), allocate_terms(x, 1, pieced=True)
    plain = splitting.move_plainly(x, mask, center, wanted)
    moved = splitting.Moved(*kernels.move_mean(x, mask, center, found))
    want, got = splitting.assemble(wanted, plain), splitting.assemble(found, moved)
    whole = [
        (sum(each.double() for each in terms) + shift[:, None]) * plain.valid[..., None]
        for terms, shift in ((found, moved.shift), (wanted, plain.shift))
    ]
    outside = sum(each.double() for each in found)[plain.valid == 0]
    assert not outside.any()
    names = ("e", "c", "s", "energy")
    report("centring", *([getattr(each, name) for name in names] for each in (got, want)))
    report(f"whole-{len(found)}", whole[:1], whole[1:])
    report("noise", [got.noise], [want.noise])


kernels._FEATURES, kernels._TOKENS, kernels._MOST_CHUNKS = 16, 4, 2
for dtype in (torch.bfloat16, torch.float16, torch.float32):
    x, mask = states(21, 24, dtype)
    mean = torch.where(mask[..., None], x, 0).float().sum(-2) / mask.sum(-1, keepdim=True)
    padded = torch.where(mask[..., None], x, torch.nan)
    compare_centring(padded, mask, None)
    compare_centring(padded, mask, mean)
    compare_centring(x[:1].mT, None, None)  # strides
    if dtype != torch.float16:
        compare_centring((x[:1].float() * 1.5e38).to(dtype), None, None)
        compare_centring((x[:1].float() * 1e-30).to(dtype), None, None)

for block in (16, 64):  # several blocks for every vector, and one
    kernels._BLOCK = block
    for tokens, features in ((20, 40), (40, 20)):
        matrix = plain_split(*states(tokens, features, torch.bfloat16))
        near = matrix.e if matrix.wide else matrix.c
        rest = torch.randn(2, 3, near.shape[-1], generator=generator) * (near != 0)[:, None]
        rest = rest - (rest * near[:, None]).sum(-1, keepdim=True) * near[:, None]
        here, _ = quadrature.normalise(Split(torch.tensor([[1.0, 0.0, 0.5]] * 2), rest))
        forth, back = not matrix.wide, matrix.wide
        results = []
        for take in (quadrature.fused_step, quadrature.plain_step):
            there, alpha = take(matrix, here, None, None, to_tokens=forth)
            ahead, beta = take(matrix, there, here, alpha, to_tokens=back)
            last, gamma = take(matrix, ahead, there, beta, to_tokens=forth)
            results.append((*there[:2], alpha, *ahead[:2], beta, *last[:2], gamma))
        report("half-step", *results)
