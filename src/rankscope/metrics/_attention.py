"""What attention matrices do to tokens: functions of ``(..., head, query, key)`` tensors.

Each takes the softmaxed matrices and, where there is padding, the ``(..., token)`` mask they were
computed with, and answers per head, shape ``(..., head)``.
"""

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.checks import stochastic, valid_counts
from rankscope.metrics._norms import matrix_norm
from rankscope.metrics._spectrum import second, svdvals
from rankscope.shapes import PerHead


@checked
def attention_entropy(attention: Tensor, *, token_mask: Tensor | None = None) -> PerHead:
    """Mean entropy of the rows, in nats: 0 when one-hot, ``log n`` when uniform.

    >>> import torch
    >>> from rankscope.metrics import attention_entropy
    >>> attention_entropy(torch.full((1, 2, 2), 0.5))
    tensor([0.6931])
    """
    p, token_mask = stochastic(attention, token_mask)
    rows = -torch.special.xlogy(p, torch.where(p > 0, p, 1.0)).sum(-1)
    entropy: PerHead = rows.sum(-1) / _tokens(p, token_mask)
    return entropy


@checked
def dobrushin(attention: Tensor, *, token_mask: Tensor | None = None) -> PerHead:
    """The ergodicity coefficient ``τ(P) = ½ max_{i,i'} Σ_j |P_ij − P_i'j|`` of Dobrushin.

    >>> import torch
    >>> from rankscope.metrics import dobrushin
    >>> dobrushin(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]))
    tensor([0.5000])

    0 when all rows agree, so that one layer makes all tokens alike; 1 when two rows share no key.
    """
    p, token_mask = stochastic(attention, token_mask)
    distance = torch.cdist(p, p, p=1.0)
    if token_mask is not None:
        pair = (token_mask.unsqueeze(-1) & token_mask.unsqueeze(-2)).unsqueeze(-3)
        distance = torch.where(pair, distance, distance.new_zeros(()))
    return 0.5 * distance.amax((-2, -1))


@checked
def second_singular_value(attention: Tensor, *, token_mask: Tensor | None = None) -> PerHead:
    """``σ₂(P)``: what one application leaves of the differences at most; 0 for a single token.

    >>> import torch
    >>> from rankscope.metrics import second_singular_value
    >>> second_singular_value(torch.eye(2).unsqueeze(0))
    tensor([1.])
    """
    p, _ = stochastic(attention, token_mask)
    return second(svdvals(p))


@checked
def high_pass_ratio(attention: Tensor, *, token_mask: Tensor | None = None) -> PerHead:
    """``‖P − 11ᵀP/n‖_F / ‖11ᵀP/n‖_F``: how far the queries disagree about where to look.

    >>> import torch
    >>> from rankscope.metrics import high_pass_ratio
    >>> high_pass_ratio(torch.eye(2).unsqueeze(0))
    tensor([1.0000])

    The second factor is what all queries have in common (the DC part), the first what they do not
    (the high-pass part); 0 when all rows agree, ``√(n−1)`` for the identity.
    """
    p, token_mask = stochastic(attention, token_mask)
    tokens = _tokens(p, token_mask)
    common = p.sum(-2) / tokens.unsqueeze(-1)
    rest = p - common.unsqueeze(-2)
    if token_mask is not None:
        rest = torch.where(token_mask[..., None, :, None], rest, rest.new_zeros(()))
    shared: PerHead = tokens.sqrt() * torch.linalg.vector_norm(common, dim=-1)
    return matrix_norm(rest, "fro") / shared


def _tokens(p: Tensor, token_mask: Tensor | None) -> Tensor:
    """Valid tokens per sample, with a head axis of one to divide per-head values by."""
    return valid_counts(p[..., 0, :, :], token_mask).unsqueeze(-1)
