"""Steps on the unit sphere, written down by hand."""

import math

import torch

from rankscope.core.network import Network


def one_step(values, query_key=None, **options):
    """A layer of one head on the sphere, from matrices written as lists."""
    w = torch.as_tensor(values, dtype=torch.float64)[None, None]
    q = torch.zeros_like(w) if query_key is None else query_key[None, None].double()
    return Network.from_matrices(q, w, **({"head_width": 1, "norm": "sphere"} | options))


def two_tokens(sign):
    """Token 2 of the rank-two equilibrium proved in ``equilibria/_search.py``, worked out by hand.

    Uniform causal attention (r = 1), λ₁ = 1, λ₂ = ½, eigenvectors at cosine g = 0.9:
    ``x₂ = −2x₁ + b v₂`` has length one for ``b = 2g ± √(4g² − 3)``.
    """
    g = 0.9
    vectors = torch.tensor([[1.0, 0.0], [g, math.sqrt(1 - g * g)]], dtype=torch.float64)
    w = vectors.inverse() @ torch.diag(torch.tensor([1.0, 0.5], dtype=torch.float64)) @ vectors
    x2 = -2 * vectors[0] + (2 * g + sign * math.sqrt(4 * g * g - 3)) * vectors[1]
    return one_step(w, mask="causal"), torch.stack([vectors[0], x2])
