"""What each head mixes, read off its attention matrix."""

from typing import Final

import torch
from torch import Tensor

from rankscope.core.metrics import attention_entropy, dobrushin
from rankscope.core.network import Visibility
from rankscope.experiments.estimates import MOST_TOKENS_CUBED

HEADS: Final = ("entropy_share", "dobrushin", "sink_share")


def head_figures(
    pattern: Tensor, visibility: Visibility, token_mask: Tensor | None
) -> dict[str, Tensor]:
    """Every figure of ``HEADS`` as (sample, head), on the CPU in float64.

    NaN where there is nothing to tell: queries that see one key only, too many tokens for τ.
    """
    mask = None if token_mask is None else token_mask.to(pattern.device)
    rows = pattern / pattern.sum(-1, keepdim=True)  # a sink's share of a row is no key's
    few = pattern.shape[-1] <= MOST_TOKENS_CUBED
    found = {
        "entropy_share": _entropy_share(rows, visibility, mask),
        "dobrushin": dobrushin(rows, token_mask=mask)
        if few
        else torch.full(pattern.shape[:2], torch.nan),
        "sink_share": _sink_share(pattern, mask),
    }
    return {name: values.double().cpu() for name, values in found.items()}


def _entropy_share(rows: Tensor, visibility: Visibility, mask: Tensor | None) -> Tensor:
    """The mean entropy of the rows over that of attention even over all keys a query sees."""
    even = visibility.uniform(torch.float64).expand(len(rows), 1, rows.shape[-2], -1)
    most = attention_entropy(even, token_mask=mask)
    share = attention_entropy(rows, token_mask=mask).double() / most
    return torch.where(most > 0, share.clamp(max=1.0), torch.nan)


def _sink_share(pattern: Tensor, mask: Tensor | None) -> Tensor:
    """The mean weight of the first real token as a key, over the queries that come after it."""
    batch, heads, tokens, _ = pattern.shape
    if mask is None:
        mask = torch.ones(batch, tokens, dtype=torch.bool, device=pattern.device)
    first = mask.int().argmax(-1)
    index = first.view(batch, 1, 1, 1).expand(batch, heads, tokens, 1)
    weight = pattern.gather(-1, index).squeeze(-1)
    others = mask.clone()
    others[torch.arange(batch, device=mask.device), first] = False
    counted = others.unsqueeze(1).to(weight.dtype)
    return (weight * counted).sum(-1) / counted.sum(-1)
