"""Multi-head attention: ``SA(X) = Σ_h P_h X W_h + 1bᵀ`` with ``W_h = W_V,h W_O,h``."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from rankscope.network.linear import Projection
from rankscope.network.scores import Heads, Pairs, Scores, hide
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
        """Attend, without ever holding the matrices of a layer unless the score asks for it."""
        values = self.split(self.value(x), self.kv_heads)
        if self.scores.fused:
            mixed = self._fused(x, values, sight)
        else:
            mixed = self.pattern(x, sight) @ values
        if self.removed:
            mixed = mixed.index_fill(1, torch.tensor(sorted(self.removed), device=x.device), 0.0)
        out: Hidden = self.output(mixed.transpose(1, 2).flatten(2))
        return out

    def pattern(self, x: Hidden, sight: Sight) -> Pairs:
        """The attention matrices ``P_h`` themselves; each row sums to one."""
        return self.scores.weights(self.logits(x, sight), sight)

    def logits(self, x: Hidden, sight: Sight) -> Pairs:
        """What the weights are made of, nothing hidden yet."""
        query, key = self._query_key(x, sight)
        logits = (query @ key.mT) * self.scale
        bias = self.scores.bias(query, key, sight.positions)
        return logits if bias is None else logits + bias

    def _fused(self, x: Hidden, values: Heads, sight: Sight) -> Heads:
        """``P_h V_h`` by the kernel that never holds ``P_h``."""
        query, key = self._query_key(x, sight)
        bias = self.scores.bias(query, key, sight.positions)
        return scaled_dot_product_attention(
            query,
            key,
            values,
            attn_mask=sight.allowed if bias is None else hide(bias, sight),
            scale=self.scale,
        )

    def _query_key(self, x: Hidden, sight: Sight) -> tuple[Heads, Heads]:
        query = self.split(self.query(x), self.heads)
        key = self.split(self.key(x), self.kv_heads)
        return self.scores.prepare(query, key, sight.positions)

    def split(self, x: Hidden, heads: int) -> Heads:
        """Features → heads; grouped heads are repeated so that every query head has its own."""
        split: Heads = x.unflatten(-1, (heads, -1)).transpose(1, 2)
        return split if heads == self.heads else split.repeat_interleave(self.heads // heads, 1)
