"""Multi-head attention: ``SA(X) = Σ_h P_h X W_h + 1bᵀ`` with ``W_h = W_V,h W_O,h``."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from rankscope.network.linear import Projection
from rankscope.network.scores import Heads, Scores
from rankscope.network.sight import Sight
from rankscope.shapes import Hidden


class Attention(nn.Module):
    """One layer of attention, with as many key and value heads as query heads or a divisor."""

    def __init__(
        self,
        *,
        query: Projection,
        key: Projection,
        value: Projection,
        output: Projection,
        scores: Scores,
        heads: int,
        kv_heads: int,
        scale: float,
        removed: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = query, key, value, output
        self.scores = scores
        self.heads, self.kv_heads, self.scale = heads, kv_heads, scale
        self.removed = removed

    def without_heads(self, removed: frozenset[int]) -> "Attention":
        """The same attention, on the same weights, with exactly these heads silent."""
        return Attention(
            query=self.query,
            key=self.key,
            value=self.value,
            output=self.output,
            scores=self.scores,
            heads=self.heads,
            kv_heads=self.kv_heads,
            scale=self.scale,
            removed=removed,
        )

    def forward(self, x: Hidden, sight: Sight) -> Hidden:
        """Attend without ever holding the attention matrices of a layer."""
        query, key = self._query_key(x, sight)
        bias = self.scores.bias(query, key, sight.positions)
        mixed = scaled_dot_product_attention(
            query,
            key,
            self._split(self.value(x), self.kv_heads),
            attn_mask=sight.allowed if bias is None else _hide(bias, sight),
            scale=self.scale,
        )
        if self.removed:
            mixed = mixed.index_fill(1, torch.tensor(sorted(self.removed), device=x.device), 0.0)
        out: Hidden = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def pattern(self, x: Hidden, sight: Sight) -> Float[Tensor, "batch head query key"]:
        """The attention matrices ``P_h`` themselves; each row sums to one."""
        query, key = self._query_key(x, sight)
        logits = (query @ key.mT) * self.scale
        bias = self.scores.bias(query, key, sight.positions)
        return _hide(logits if bias is None else logits + bias, sight).softmax(-1)

    def _query_key(self, x: Hidden, sight: Sight) -> tuple[Heads, Heads]:
        query = self._split(self.query(x), self.heads)
        key = self._split(self.key(x), self.kv_heads)
        return self.scores.prepare(query, key, sight.positions)

    def _split(self, x: Hidden, heads: int) -> Heads:
        """Features → heads; grouped heads are repeated so that every query head has its own."""
        split: Heads = x.unflatten(-1, (heads, -1)).transpose(1, 2)
        return split if heads == self.heads else split.repeat_interleave(self.heads // heads, 1)


def _hide(
    logits: Float[Tensor, "#batch #head query key"], sight: Sight
) -> Float[Tensor, "#batch #head query key"]:
    """Set the logits of pairs that may not attend to minus infinity."""
    if sight.allowed is None:
        return logits
    return torch.where(sight.allowed, logits, logits.new_full((), -math.inf))
