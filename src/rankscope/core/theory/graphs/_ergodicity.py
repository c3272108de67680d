"""How fast given attention matrices forget: τ of each layer and of the products of layers.

Attention matrices are ``(..., query, key)`` and row-stochastic; layers multiply from the left,
``P⁽ᵗ⁾ … P⁽¹⁾``. Every layer multiplies the differences between tokens by at most its ergodicity
coefficient τ, and ``τ(PQ) ≤ τ(P) τ(Q)``.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import valid_mask
from rankscope.core.metrics import dobrushin
from rankscope.core.theory.graphs._stochastic import normalize_rows
from rankscope.errors import InputError, ShapeError
from rankscope.numerals import plural, power_of_ten, span_of


@checked
@dataclass(frozen=True, repr=False)
class Ergodicity:
    """τ of each layer's matrix, and log τ of the product of the layers up to it.

    Both are ``(layer, ...)``; ``log_products`` are natural logarithms and keep their digits far
    below float64's 10⁻¹⁶. ``rate`` is the geometric mean, over the layers, of the factor by which
    each layer multiplied the differences.
    """

    each: Float[Tensor, "layer *batch"]
    log_products: Float[Tensor, "layer *batch"]

    @property
    def products(self) -> Float[Tensor, "layer *batch"]:
        return self.log_products.exp()

    @property
    def rate(self) -> Float[Tensor, "*batch"]:
        return (self.log_products[-1] / len(self.log_products)).exp()

    def __repr__(self) -> str:
        shape = tuple(self.each.shape[1:])
        batch, most = (f", batch {shape}", "at most ") if shape else ("", "")
        taus = span_of(float(self.each.min()), float(self.each.max()))
        rates = span_of(float(self.rate.min()), float(self.rate.max()))
        last = power_of_ten(float(self.log_products[-1].max()) / math.log(10), digits=3)
        return (
            f"Ergodicity({plural(len(self.each), 'layer')}{batch}; τ of a layer {taus}, "
            f"of the product {most}{last}; rate {rates})"
        )


@checked
def ergodicity(matrices: Iterable[Tensor], *, token_mask: Tensor | None = None) -> Ergodicity:
    """τ of every attention matrix, first layer first, and of the running products.

    >>> ergodicity([torch.tensor([[1.0, 0.0], [0.5, 0.5]])] * 2).products
    tensor([0.5000, 0.2500], dtype=torch.float64)

    ``token_mask`` is ``(..., token)`` with the same axes before it as the matrices. **Derived:**
    with ``P⁽ᵗ⁾…P⁽¹⁾ = 1qᵀ + eˢΔ`` the next layer gives ``1qᵀ + eˢPΔ``, rows of Δ sum to zero, and τ
    depends on Δ alone; so Δ is centered and rescaled in every layer and never lost in the rounding
    of q. τ is ``dobrushin``'s: the rows of ``(1 + Δ)/n`` are distributions if no entry of Δ exceeds
    1. Where the rows of a layer's own matrix agree to float64's last place, its τ is known only to
    rounding: near 10⁻¹⁶, not exactly 0.
    """
    each, logs = [], []
    delta: Tensor | None = None
    scale = torch.tensor(0.0)
    for layer, matrix in enumerate(matrices):
        p = normalize_rows(matrix, token_mask, name=f"the matrix of layer {layer + 1}")
        if delta is not None and p.shape != delta.shape:
            raise ShapeError(
                f"layer {layer + 1} has a matrix of shape {tuple(p.shape)}, the layers before it "
                f"{tuple(delta.shape)}; give matrices of the same tokens."
            )
        mask = _expand_mask(token_mask, p)
        each.append(_tau(p, mask))
        # Only differences between rows of P act on Δ: what all rows share would add only rounding.
        difference = _subtract_mean_row(p, mask)
        delta = difference if delta is None else difference @ delta
        delta, grown = _rescale(delta, mask)
        scale = scale + grown
        tokens = mask.sum(-1).double()
        shifted = torch.where(_valid_pairs(mask), (1 + delta) / tokens[..., None, None], 0.0)
        logs.append(_tau(shifted, mask).log() + tokens.log() + scale)
    if not each:
        raise InputError("there is no attention matrix to multiply; give at least one layer's.")
    return Ergodicity(torch.stack(each), torch.stack(logs))


def _expand_mask(token_mask: Tensor | None, p: Tensor) -> Tensor:
    if token_mask is None:
        return torch.ones(p.shape[:-1], dtype=torch.bool, device=p.device)
    return valid_mask(token_mask, tuple(p.shape[:-1])).to(p.device)


def _valid_pairs(mask: Tensor) -> Tensor:
    return mask.unsqueeze(-1) & mask.unsqueeze(-2)


def _tau(p: Tensor, mask: Tensor) -> Tensor:
    return dobrushin(p.unsqueeze(-3), token_mask=mask).squeeze(-1)


def _subtract_mean_row(p: Tensor, mask: Tensor) -> Tensor:
    mean = p.sum(-2, keepdim=True) / mask.sum(-1)[..., None, None]
    return torch.where(_valid_pairs(mask), p - mean, 0.0)


def _rescale(delta: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Δ, centered again, scaled to a largest entry of one, and the logarithm of that factor.

    Rows of Δ sum to zero. Where those of P agree to the last place, Δ is nothing but rounding,
    whose rows would no longer sum to zero once scaled up: so the sums are subtracted as well.
    """
    delta = _subtract_mean_row(delta, mask)
    sums = delta.sum(-1, keepdim=True)
    delta = torch.where(_valid_pairs(mask), delta - sums / mask.sum(-1)[..., None, None], 0.0)
    largest = delta.abs().amax((-2, -1))
    return delta / torch.where(largest > 0, largest, 1.0)[..., None, None], largest.log()
