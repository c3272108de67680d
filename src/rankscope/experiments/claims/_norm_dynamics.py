"""One layer of attention and a norm, repeated, from many starts: what W6 and D10 follow.

**Values that keep rank two (derived).** Causal mask, unit sphere, two features, no skip,
``W = diag(1, l)`` with 0 < l < 1, and scores ``κ x (J − aI) yᵀ`` with ``J = [[0, 1], [−1, 0]]``: a
token prefers tokens on one side of it, avoids those on the other and, by a ≥ 0, itself. Token 1
tends to ±e₁; let it be e₁. Let token 2 be ``(−cos φ, sin φ)``, φ > 0. It gives token 1 the weight
``r = exp(−κ(sin φ − a(1 + cos φ)))`` times its own, so that ``tan φ' = l sin φ / (cos φ − r)``. The
values pull it to the pole −e₁; the closer it comes, the more it sees of token 1, which pushes it
off. They balance where

    ``(1 − l) cos φ = r``.

There token 1 has the multiplier l, and token 2
``(l cos²φ + sin²φ − κ r sin φ (cos φ + a sin φ))/l``. For l = 0.7, κ = 8 and a = 0.2 they are 0.7
and −0.36 at φ = 0.57: a stable equilibrium of rank two, hence an open set of starts that never
collapse. Further tokens have the same choice, so that the share of such starts does not vanish with
their number.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.masks import as_mask
from rankscope.core.network import Network, NormKind
from rankscope.streams import stream

Values = Literal["diagonal", "skewed", "orthogonal", "random"]
Scores = Literal["turned", "uniform", "random"]


@checked
@dataclass(frozen=True)
class Dynamics:
    """One head, repeated; ``values`` and ``scores`` are its weights by kind.

    ``decay`` is l: the eigenvalue of each further feature, or of the second one of skewed values,
    whose eigenvectors have the cosine ``skew``. ``strength`` is κ, ``avoidance`` a.
    """

    name: str
    values: Values = "diagonal"
    scores: Scores = "turned"
    tokens: int = 8
    width: int = 2
    mask: str = "causal"
    norm: NormKind = "sphere"
    decay: float = 0.7
    skew: float = 0.9
    strength: float = 8.0
    avoidance: float = 0.2
    fresh: bool = False
    """Random weights drawn anew for every layer."""


def build(case: Dynamics, layers: int, seed: int) -> Network:
    """The network of so many layers; a deeper one begins with the same layers."""
    drawn = layers if case.fresh else 1
    matrices = [
        torch.stack([make(case, stream(seed, kind, case.width, layer)) for layer in range(drawn)])
        for kind, make in (("scores", _scores), ("values", _values))
    ]
    query_key, values = (each.unsqueeze(1).expand(layers, -1, -1, -1) for each in matrices)
    mask = as_mask(case.mask)
    return Network.from_matrices(query_key, values, head_width=1, norm=case.norm, mask=mask)


def starts(case: Dynamics, count: int, seed: int) -> Tensor:
    """Tokens in general position: independent and uniform on the sphere."""
    shape = (count, case.tokens, case.width)
    x = torch.randn(shape, generator=stream(seed, "starts", *shape), dtype=torch.float64)
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return unit


def _values(case: Dynamics, generator: torch.Generator) -> Tensor:
    width = case.width
    if case.values == "diagonal":
        return torch.diag(case.decay ** torch.arange(width, dtype=torch.float64))
    if case.values == "skewed":
        along = torch.tensor([[1.0, 0.0], [case.skew, math.sqrt(1 - case.skew**2)]]).double()
        skewed: Tensor = torch.linalg.solve(along, torch.tensor([[1.0], [case.decay]]) * along)
        return skewed
    drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
    if case.values == "orthogonal":
        q: Tensor = torch.linalg.qr(drawn).Q
        return q
    return drawn / math.sqrt(width)


def _scores(case: Dynamics, generator: torch.Generator) -> Tensor:
    width = case.width
    if case.scores == "random":
        drawn = torch.randn(width, width, generator=generator, dtype=torch.float64)
        return case.strength * drawn
    if case.scores == "uniform":
        return torch.zeros(width, width, dtype=torch.float64)
    turned = -case.avoidance * torch.eye(width, dtype=torch.float64)
    for first in range(0, width - 1, 2):
        turned[first, first + 1], turned[first + 1, first] = 1.0, -1.0
    return case.strength * turned
