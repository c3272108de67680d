"""What a change costs, counted: parameters, and how much of the context each token still sees."""

import math
from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import nn

from rankscope.core.network import Described, Lent, Spec, build_norm
from rankscope.numerals import short

_NOTICED: Final = 0.01
"""Parts of all parameters below which more or fewer are no matter."""


@dataclass(frozen=True)
class Price:
    """Parameters as parts of those there were, and pairs seen as parts of all pairs."""

    parameters: float
    context: float
    context_before: float
    only_initial: bool
    """Whether nothing is changed but how weights are drawn."""
    branches: float = 1.0
    """How large what attention adds is at first, as a part of what it was."""

    @classmethod
    def of(cls, before: Spec, after: Spec, tokens: int) -> "Price":
        """Of the way from one design to another, on so many tokens."""
        names = [each.name for each in fields(before) if each.name != "init"]
        return cls(
            parameter_count(after) / parameter_count(before) - 1,
            context_share(after, tokens),
            context_share(before, tokens),
            all(getattr(before, name) == getattr(after, name) for name in names),
            _branch(after) / _branch(before) if _branch(before) else 1.0,
        )

    @property
    def level(self) -> int:
        """0 for another start, 1 for another function, 2 for other parameters, 3 for context lost.

        Between two changes that help equally the one of the lower level comes first.
        """
        if self.context < self.context_before:
            return 3
        if abs(self.parameters) > _NOTICED:
            return 2
        return 0 if self.only_initial else 1

    def in_words(self, drawback: str = "") -> str:
        """All of it, and what cannot be counted."""
        parts = []
        if self.parameters:
            more = "more" if self.parameters > 0 else "fewer"
            parts.append(f"{short(100 * abs(self.parameters), digits=2)} % {more} parameters")
        if self.context != self.context_before:
            seen, all_ = (
                short(100 * each, digits=2) for each in (self.context, self.context_before)
            )
            parts.append(f"a token attends to {seen} % of the tokens instead of {all_} %")
        if drawback:
            parts.append(drawback)
        elif self.only_initial and abs(math.log(self.branches or 1.0)) > _NOTICED:
            parts.append(f"branches start {short(self.branches, digits=2)} times as large")
        return "; ".join(parts) or "nothing that is counted here"


def _branch(spec: Spec) -> float:
    """How much values and outputs together lengthen a token, about."""
    inner, init = spec.heads * spec.head_width, spec.init
    if init.is_orthogonal(value=True):
        return init.scale**2
    into, out = init.deviation(spec.width, inner), init.deviation(inner, spec.width)
    return into * out * math.sqrt(inner * spec.width)


def parameter_count(spec: Spec) -> int:
    """How many numbers are trained: those of ``Network.random(spec)``, without making it."""
    width, queries = spec.width, spec.heads * spec.head_width
    keys = spec.kv_heads * spec.head_width
    block = 2 * width * (queries + keys)
    parts = 1
    if spec.bias:
        block += queries + 2 * keys + width
    if spec.mlp_width:
        into = 2 if spec.gated else 1
        block += (into + 1) * width * spec.mlp_width
        block += (into * spec.mlp_width + width) if spec.bias else 0
        parts = 2
    one = spec.parallel and spec.norm_place == "post"  # after the one sum
    norms = 1 if one else parts * (2 if spec.norm_place == "both" else 1)
    block += norms * _trained(build_norm(spec.norm, width, eps=spec.norm_eps, bias=spec.bias))
    if not isinstance(spec.scores, Described | Lent):  # positions of a model are no weights
        block += _trained(spec.build_scores(torch.float32))
    return block * (1 if spec.shared_layers else spec.layers)


def _trained(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def context_share(spec: Spec, tokens: int) -> float:
    """Which part of all pairs of tokens the masks allow, over the layers."""
    by_mask = {mask: float(mask.matrix(tokens).double().mean()) for mask in set(spec.masks)}
    return sum(by_mask[mask] for mask in spec.masks) / spec.layers
