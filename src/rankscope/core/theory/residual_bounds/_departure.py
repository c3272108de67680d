"""How far attention is from rank one, entry by entry (Dong et al. 2021, appendix; claim D11)."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankscope.core.theory.residual_bounds._layer import HeadWeights


class Departure(NamedTuple):
    """By how much attention departs from what all queries share, for every pair that is allowed."""

    relative: Float[Tensor, "head query key"]
    """``P_ij/q_j − 1``; zero where nothing is seen."""
    spread: Float[Tensor, "head query"]
    """``D_i``."""
    shared: Float[Tensor, "head #query key"]
    """``q_j``, over what each query sees."""


def departure(
    weights: HeadWeights,
    rest: Float[Tensor, "token feature"],
    center: Float[Tensor, "feature"],
    visible: Bool[Tensor, "query key"] | None = None,
) -> Departure:
    """``P_ij/q_j − 1`` of tokens ``1cᵀ + R`` without cancellation.

    ``P_ij = q_j e^{E_ij} / Σ_k q_k e^{E_ik}``, so the ratio less one is ``expm1(E_ij − m_i)`` with
    ``m_i = log1p(Σ_k q_k expm1(E_ik))``: exact to rounding however close P and q are. Under a mask
    q is taken over the keys that query i sees, hence is the same for all queries that see the same.
    """
    seen = torch.ones((), dtype=torch.bool) if visible is None else visible
    own = weights.scale * rest @ weights.query_key @ rest.T
    query = center @ weights.query_key + weights.key_bias
    logits = (weights.scale * query @ rest.T).unsqueeze(1).expand_as(own)
    shared = logits.masked_fill(~seen, -math.inf).softmax(-1)
    mean = torch.log1p((shared * own.expm1()).sum(-1, keepdim=True))
    relative = torch.where(seen, (own - mean).expm1(), 0.0)
    high = torch.where(seen, own, -math.inf).amax(-1)
    low = torch.where(seen, own, math.inf).amin(-1)
    return Departure(relative, high - low, shared)


def worst_departure_layer(
    spread: float, preference: float
) -> tuple[HeadWeights, Float[Tensor, "token feature"], Float[Tensor, "feature"]]:
    """One query scores one key by D above all others, and nobody else looks at that key.

    Then ``P/q = e^D/(1 + q(e^D − 1))`` there, which tends to ``e^D`` as q → 0: no factor below
    ``(e^D − 1)/D`` can take the place of 2 in the lemma.
    """
    rest = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    query_key = torch.tensor([[[0.0, spread], [0.0, 0.0]]], dtype=torch.float64)
    key_bias = torch.tensor([[0.0, -preference]], dtype=torch.float64)
    nothing = torch.zeros(2, dtype=torch.float64)
    return (
        HeadWeights(query_key, torch.zeros_like(query_key), key_bias, nothing, 1.0),
        rest,
        nothing,
    )
