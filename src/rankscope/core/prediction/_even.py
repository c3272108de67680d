"""The entropy attention would have if it preferred no key to another."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankscope.core.masks import Mask
from rankscope.core.network import Spec, Visibility


def even_entropy(
    spec: Spec, tokens: int, token_mask: Tensor | None, *, repeat: int = 1
) -> Float[Tensor, "layer sample"]:
    """By layer and sample, the mean over the queries of the logarithm of how many keys they see.

    Without padding there is one sample for all; the input, layer 0, has no attention.
    """
    real = torch.ones(1, tokens, dtype=torch.bool) if token_mask is None else token_mask
    by_mask: dict[Mask, Tensor] = {}
    for mask in set(spec.masks):
        allowed = Visibility.of(mask, tokens, real, real.device).allowed
        assert allowed is not None  # it is None without a token mask alone
        seen = allowed.expand(len(real), 1, tokens, tokens).sum(-1).squeeze(1)
        logs = torch.where(real, seen.double().log(), 0.0)
        by_mask[mask] = logs.sum(-1) / real.sum(-1)
    rows = [by_mask[mask] for mask in spec.masks] * repeat
    return torch.stack([torch.full_like(rows[0], math.nan), *rows])
