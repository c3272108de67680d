"""From the tokens of a text or an image to one vector."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from rankscope.core.tracing import evaluating

Step = Callable[[Tensor], Tensor]

CLASS: Final = "class token"
MAXIMUM: Final = "maximum of its tokens"
MEAN: Final = "mean of its tokens"
ROOT: Final = "sum of its tokens over the root of their number"
WEIGHTED: Final = "mean of its tokens weighted by position"
LAST: Final = "last token"


@dataclass(frozen=True)
class Pooling:
    """From the states after the last block to one vector for each sample.

    ``norm`` is what follows the last block, ``modes`` are joined, ``head`` (a module that reads
    all tokens) takes their place, and ``steps`` follow. ``words`` describe it, ``notes`` say what
    could not be done as the model does it. ``own`` is False if the model says nothing about it.
    """

    modes: tuple[str, ...]
    words: str
    norm: nn.Module | None = None
    head: nn.Module | None = None
    steps: tuple[Step, ...] = ()
    notes: tuple[str, ...] = ()
    own: bool = True

    @torch.no_grad()
    def __call__(self, hidden: Tensor, token_mask: Tensor) -> Tensor:
        """``(batch, feature)`` in float64; padding takes no part in it."""
        if self.norm is not None:
            hidden = apply(self.norm, hidden)
        mask = token_mask.to(hidden.device)
        if self.head is None:
            x = hidden.double()
            pooled = torch.cat([pool(x, mask, mode) for mode in self.modes], -1)
        elif bool(mask.all()):
            pooled = apply(self.head, hidden)
        else:  # heads take no mask
            samples = zip(hidden, mask, strict=True)
            pooled = torch.cat([apply(self.head, x[real].unsqueeze(0)) for x, real in samples])
        for step in self.steps:
            pooled = step(pooled)
        return pooled.double()


def apply(module: nn.Module, x: Tensor) -> Tensor:
    """A module of the original, in the dtype and on the device of its weights."""
    weight = next(module.parameters(), x)
    with evaluating(module):
        output: Tensor = module(x.to(weight))
    return output


def pool(x: Tensor, token_mask: Tensor, mode: str) -> Tensor:
    """One vector of the tokens ``(batch, token, feature)``.

    Positions count real tokens only, so padding on the left changes nothing either.
    """
    rows, mask = torch.arange(len(x), device=x.device), token_mask.unsqueeze(-1)
    if mode == CLASS:
        return x[rows, token_mask.int().argmax(-1)]
    if mode == LAST:
        return x[rows, x.shape[1] - 1 - token_mask.flip(-1).int().argmax(-1)]
    if mode == MAXIMUM:
        return torch.where(mask, x, -torch.inf).amax(1)
    weights = token_mask.to(x.dtype)
    if mode == WEIGHTED:
        weights = weights * token_mask.cumsum(-1)
    total = weights.sum(-1, keepdim=True)
    summed = (weights.unsqueeze(-1) * torch.where(mask, x, x.new_zeros(()))).sum(1)
    return summed / (total.sqrt() if mode == ROOT else total)


def usual_pooling(*, causal: bool) -> Pooling:
    """What is used where a model says nothing: the last token, or the mean of all of them.

    The last token of a causal model is the only one that has read the whole text. For other
    encoders the mean serves better than the first token, or a pooler trained for another task
    (Reimers and Gurevych 2019).
    """
    mode, kind = (LAST, "a causal model") if causal else (MEAN, "an encoder")
    words = f"{mode}, the usual choice for {kind} that states no pooling"
    return Pooling((mode,), words, own=False)
