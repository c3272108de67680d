"""A subject without weights and numbers: as much of it as an estimate looks at."""

from functools import lru_cache

import torch
from torch import Tensor, nn

from rankscope.core.network import Network, Spec
from rankscope.experiments.subject import Subject


class _Design(Network):
    """A network of which there is the description alone."""

    def __init__(self, spec: Spec) -> None:
        nn.Module.__init__(self)
        self.name, self.spec, self.blocks = "Network", spec, nn.ModuleList()
        self._seed = None


def outline(spec: Spec, *, samples: int, tokens: int) -> Subject:
    """What estimates and configurations ask of a subject, at no cost.

    >>> subject = outline(Spec(96, 96, 12288), samples=32, tokens=2048)
    >>> subject.x.shape, sum(weight.numel() for weight in subject.network.parameters())
    (torch.Size([32, 2048, 12288]), 0)
    """
    return Subject(_Design(spec), _numbers(samples, tokens, spec.width))


@lru_cache(maxsize=64)
def _numbers(samples: int, tokens: int, width: int) -> Tensor:
    """One number for each token, seen from everywhere: tokens that differ, in no memory."""
    return torch.arange(float(tokens))[None, :, None].expand(samples, tokens, width)
