"""The parts of a block on plain coordinates: many random networks run as one batch."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankscope.core.metrics import attention_entropy
from rankscope.core.network import (
    Attention,
    NormRule,
    Spec,
    Stack,
    Visibility,
    activation,
    build_norm,
    norm_rule,
)
from rankscope.core.prediction._coordinates import Coordinates, compress, triangular
from rankscope.core.prediction._weights import Weights
from rankscope.core.shapes import PerSample


@dataclass(frozen=True)
class Plain:
    """Floats, as long as tokens are neither nearly alike nor beyond all measure."""

    weights: Weights
    visibility: Visibility
    token_mask: Tensor | None
    removed: frozenset[int]

    @property
    def spec(self) -> Spec:
        """What the networks are made of."""
        return self.weights.spec

    def columns(self, x: Coordinates) -> int:
        return x.shape[-1]

    def norm(self, x: Coordinates) -> Coordinates:
        rule = rule_of(self.spec)
        return x if rule is None else apply_rule(rule, x, self.spec.width)

    def attention(self, x: Coordinates) -> tuple[Coordinates, PerSample]:
        heads = random_attention(self.weights, x.shape[-1], self.removed)
        pattern = heads.pattern(x, self.visibility)
        entropy = attention_entropy(pattern.detach(), token_mask=self.token_mask).mean(-1)
        values = heads.split(heads.value(x), heads.kv_heads)
        return heads.join(heads.center(pattern, self.visibility) @ values), entropy

    def hidden(self, x: Coordinates) -> Coordinates:
        phi = activation(self.spec.activation).function
        units = self.spec.mlp_width
        up = x @ self.weights.from_stream(x.shape[-1], units)
        if not self.spec.gated:
            return phi(up)
        return phi(x @ self.weights.from_stream(x.shape[-1], units)) * up

    def into_stream(self, rows: Coordinates, known: int, *, value: bool) -> Coordinates:
        short = triangular(rows)
        inputs = rows.shape[-1]
        return short @ self.weights.into_stream(short.shape[-1], inputs, known, value=value)

    def add(self, skip: float, x: Coordinates, branches: list[Coordinates]) -> Coordinates:
        terms = [*branches, skip * x] if skip else branches
        widest = max(term.shape[-1] for term in terms)
        return torch.stack([pad(term, (0, widest - term.shape[-1])) for term in terms]).sum(0)

    def compress(self, x: Coordinates) -> Coordinates:
        return compress(x)


def random_attention(weights: Weights, known: int, removed: frozenset[int]) -> Attention:
    """Attention whose queries, keys and values are drawn in the known coordinates."""
    spec = weights.spec
    inner, kv_inner = spec.heads * spec.head_width, spec.kv_heads * spec.head_width

    def drawn(outputs: int, *, value: bool = False) -> Stack:
        return Stack(weights.from_stream(known, outputs, value=value).mT)

    return Attention(
        query=drawn(inner),
        key=drawn(kv_inner),
        value=drawn(kv_inner, value=True),
        # What leaves the heads is drawn when it is known.
        output=Stack(torch.empty(len(weights.streams), 0, inner, dtype=weights.dtype)),
        scores=spec.build_scores(weights.dtype),
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        scale=spec.score_scale,
        removed=removed,
        centered=spec.centered,
    )


def rule_of(spec: Spec) -> NormRule | None:
    """What the norms of a spec do; gains are one and biases zero, as they start."""
    norm = build_norm(spec.norm, 1, eps=spec.norm_eps, bias=False)
    return norm_rule(norm, torch.float64)


def apply_rule(rule: NormRule, x: Coordinates, width: int) -> Coordinates:
    """A norm in coordinates, of tokens that have ``width`` features."""
    if rule.centers:
        x = torch.cat((torch.zeros_like(x[..., :1]), x[..., 1:]), -1)
    square = x.square().sum(-1, keepdim=True)
    if rule.square == "mean":
        square = square / width
    # A token of zeros stays zero, whether the norm says so or the token is padding.
    empty = square + rule.eps == 0
    return x * torch.rsqrt(torch.where(empty, 1.0, square + rule.eps))
