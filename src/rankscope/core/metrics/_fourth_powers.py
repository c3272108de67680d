"""The sum of fourth powers of singular values, from products alone."""

import torch
from torch import Tensor

from rankscope.core.metrics._mean_split import MeanSplit, PerMatrix, multiply_mixed

_GRAM_ENTRIES = 2**25


@torch.no_grad()
def sum_of_fourth_powers(split: MeanSplit) -> PerMatrix:
    """``Σσ⁴ = ‖XXᵀ‖_F²``, from the smaller Gram matrix of the terms ``Y`` and no decomposition.

    With ``a = Rĉ``, ``XXᵀ`` is ``[[s², s aᵀ], [s a, RRᵀ]]`` in the split basis, and because
    ``R = Y − e(Yᵀe)ᵀ``, ``‖RRᵀ‖_F² = ‖YYᵀ‖_F² − 2‖YYᵀe‖² + ‖Yᵀe‖⁴``. Derived by multiplying out;
    the last two are large only where ``s`` is.
    """
    mean = split.product(split.e[:, None], transposed=False)
    both = split.product(torch.cat([mean, split.c[:, None]], 1), transposed=True)
    onto, along = both[:, 0].square().sum(-1), both[:, 1]
    a = along - (along * split.e).sum(-1, keepdim=True) * split.e
    rest = _gram_energy(split.terms) - 2 * onto + mean[:, 0].square().sum(-1).square()
    coupling = split.s.square() * a.square().sum(-1)
    return split.s.square().square() + 2 * coupling + rest.clamp(min=0)


def _gram_energy(terms: tuple[Tensor, ...]) -> PerMatrix:
    """``‖YYᵀ‖_F²``, a few matrices at a time so that little memory is needed."""
    if terms[0].shape[-2] > terms[0].shape[-1]:
        terms = tuple(term.mT for term in terms)
    some = max(1, _GRAM_ENTRIES // terms[0].shape[-2] ** 2)
    found = []
    for part in zip(*(term.split(some) for term in terms), strict=True):
        if part[0].dtype != torch.bfloat16:
            gram = torch.bmm(part[0], part[0].mT)
        else:
            gram = multiply_mixed(part[0], part[0].mT)
        for lower in part[1:]:
            mixed = multiply_mixed(part[0], lower.mT)
            gram = gram + mixed + mixed.mT
        found.append(torch.linalg.vector_norm(gram.flatten(1), dim=-1).square())
    return torch.cat(found)
