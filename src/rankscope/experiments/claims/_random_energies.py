"""The random energy model: what softmax does to independent normal logits.

Attention of a random layer is one such model for every query. Given the query q, its logits over
the keys are normal with variance ``s²|q|²``, s the scale of the scores; keys of tokens with overlap
p have a part of variance p in common, which shifts all logits alike and drops out of the softmax.
What is left are independent normal logits, of 1 − p times that variance.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.streams import stream

CRITICAL = math.sqrt(2)
"""The ratio of a logit's deviation to √(log T) at which the weights condense."""
_FAR = 8.0
"""Deviations beyond which the largest of T normal numbers is as good as never."""
_FINE = 0.4
"""Steps of logarithms in the integrals; all integrands vary on the scale 1, as ``e^(x − eˣ)``."""
_AT_ONCE = 2**23


def critical_ratio(overlap: float) -> float:
    """β_c = √(2/(1 − p)), for logits of deviation β√(log T) over tokens with overlap p.

    >>> critical_ratio(0.5)
    2.0
    """
    return CRITICAL / math.sqrt(1 - overlap)


def limit_participation(ratio: float) -> float:
    """Σ_j P_j² for T → ∞ at β = ratio·β_c: 0 below, ``1 − β_c/β`` above.

    >>> limit_participation(0.9), limit_participation(2.0)
    (0.0, 0.5)
    """
    return max(0.0, 1 - 1 / ratio) if ratio > 0 else 0.0


def mean_participation(log_tokens: float, ratio: float) -> float:
    """The mean of Σ_j P_j² over T tokens, for any T, by quadrature.

    With ``w = e^(σg)``, ``σ = √2·ratio·√(log T)``, and ``1/Z² = ∫ t e^(−tZ) dt`` it is
    ``T ∫ t E[w² e^(−tw)] E[e^(−tw)]^(T−1) dt``: one normal integral inside another, both of smooth
    functions of logarithms, for which the plain sum is exact to many digits.
    """
    deviation = CRITICAL * ratio * math.sqrt(log_tokens)
    top = math.sqrt(2 * log_tokens)
    g = torch.arange(-_FAR - 2, top + _FAR + 2, min(0.1, _FINE / deviation), dtype=torch.float64)
    step = float(g[1] - g[0])
    density = torch.exp(-(g**2) / 2) * (step / math.sqrt(2 * math.pi))
    highest = max(deviation * (top + _FAR), log_tokens + deviation**2 / 2) + 15
    lowest = max(deviation * min(0.0, top - _FAR), -highest) - 5
    log_t = torch.arange(-highest, -lowest, _FINE, dtype=torch.float64)
    others = math.expm1(log_tokens)
    total = 0.0
    for part in log_t.split(max(1, _AT_ONCE // len(g))):
        log_tw = part.unsqueeze(1) + deviation * g
        tw = log_tw.clamp(max=50.0).exp()
        missing = (-torch.expm1(-tw)) @ density  # 1 − E[e^(−tw)], exact where it is tiny
        alone = torch.exp(2 * log_tw.clamp(max=50.0) - tw) @ density
        survival = torch.exp(others * torch.log1p(-missing.clamp(max=1 - 1e-16)))
        total += float((alone * survival).sum()) * _FINE
    return math.exp(log_tokens) * total


def sampled_participation(
    tokens: int, ratios: tuple[float, ...], draws: int, seed: int
) -> Float[Tensor, "ratio draw"]:
    """Σ_j P_j² of drawn models, the same normal numbers at every ratio."""
    generator = stream(seed, "random energies", tokens)
    scale = CRITICAL * math.sqrt(math.log(tokens))
    columns = []
    for _ in range(draws):
        g = torch.randn(tokens, generator=generator, dtype=torch.float64)
        columns.append(
            torch.stack([(scale * ratio * g).softmax(0).square().sum() for ratio in ratios])
        )
    return torch.stack(columns, 1)
