"""How large the tokens are."""

import math

import torch
from torch import Tensor

from rankscope.arguments import checked
from rankscope.core.checks import measurable, valid_counts
from rankscope.core.metrics._norms import matrix_norm
from rankscope.core.shapes import PerSample


@checked
def token_norm(x: Tensor, *, token_mask: Tensor | None = None) -> PerSample:
    """``‖X‖_F / √n``: the root mean square of the tokens' lengths.

    >>> import torch
    >>> from rankscope.core.metrics import token_norm
    >>> token_norm(torch.tensor([[3.0, 4.0], [0.0, 5.0]]))
    tensor(5.)
    """
    x, token_mask = measurable(x, token_mask)
    if token_mask is None:
        return matrix_norm(x, "fro") / math.sqrt(x.shape[-2])
    whole = matrix_norm(torch.where(token_mask.unsqueeze(-1), x, x.new_zeros(())), "fro")
    return whole / valid_counts(x, token_mask).sqrt()
