"""The least entropy that softmax can have over logits of a given norm."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.streams import stream


def level_entropy(norm: float, keys: int, top: int) -> float:
    """The entropy where ``top`` of the keys share one logit and all others another, centred.

    >>> round(level_entropy(0.0, 4, 1) - math.log(4), 12)
    0.0

    Logits of mean 0 and norm σ on two levels, k keys on the upper one, differ by
    ``δ = σ√(T/(k(T − k)))``; with ``Z = k + (T − k)e^(−δ)`` the entropy is
    ``log Z + δ(T − k)e^(−δ)/Z``.
    """
    gap = norm * math.sqrt(keys / (top * (keys - top)))
    rest = (keys - top) * math.exp(-gap)
    total = top + rest
    return math.log(total) + gap * rest / total


def entropy_bound(norm: float, keys: int) -> float:
    """The least entropy of softmax over T keys whose logits, once centred, have norm σ at most.

    >>> round(entropy_bound(3.0, 5), 4)
    0.5421

    Zhai et al. 2023, theorem 3.1: one key above all others. Derived: along a ray the entropy falls,
    ``dH/dβ = −β Var_β(u)``, so that the norm is σ at the minimum, with a multiplier λ > 0. There
    ``p(log p + H) − λ log p`` is the same for every key's weight p, and is strictly convex in p, so
    that weights take two values at most. What is left are the two-level logits of
    ``level_entropy``; that one key on the upper level is best is checked (``best_level``), not
    proved here.
    """
    return level_entropy(norm, keys, 1) if keys > 1 else 0.0


def best_level(norm: float, keys: int) -> int:
    """How many keys are on the upper level where the entropy is least; the least of equals."""
    return min(range(1, keys), key=lambda top: (level_entropy(norm, keys, top), top))


def least_entropy_found(
    norm: float, keys: int, seed: int, *, starts: int = 16, steps: int = 400
) -> float:
    """The smallest entropy that descent finds over logits of this norm, from random starts."""
    generator = stream(seed, "least entropy", keys)
    logits = torch.randn(starts, keys, generator=generator, dtype=torch.float64)
    # From wide logits on, the weights of most keys vanish and with them the gradient: grow slowly.
    for step in range(steps):
        size = norm * min(1.0, 2 * (step + 1) / steps)
        logits = _on_sphere(logits, size).requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(entropies(logits).sum(), logits)
        slope = slope - slope.mean(-1, keepdim=True)
        length = slope.norm(dim=-1, keepdim=True).clamp(min=1e-300)
        logits = (logits - 0.3 * size * slope / length).detach()
    return float(entropies(_on_sphere(logits, norm)).min())


def entropies(logits: Float[Tensor, "... key"]) -> Float[Tensor, "..."]:
    """In nats."""
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


def _on_sphere(logits: Tensor, norm: float) -> Tensor:
    centred = logits - logits.mean(-1, keepdim=True)
    length: Tensor = centred.norm(dim=-1, keepdim=True)
    return norm * centred / length
